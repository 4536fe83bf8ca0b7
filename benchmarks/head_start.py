"""What M3's heads are worth before the first step: nDCG@10 of computed heads, next to others.

    python -m benchmarks.head_start --model=path/to/encoder --corpus=../shared/data/ir_cranfield

`--model` is a folder of sentence-transformers with a WordPiece tokenizer, of whose token states the
heads are computed as `models.objectives.m3_heads` does, from a sample of the corpus; `--corpus` is
in BEIR's layout. Every test query is compared with every passage. Sparse: all words alike, the
computed weights, and BM25 of the same tokens. Vectors of tokens: a random projection, the computed
one, and whole states. Needs the extra `interop`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import code_hash
from models.objectives import m3_heads
from t5x_style.evaluation import ranking
from t5x_style.interfaces.representation import MULTI_VECTOR, SPARSE, Entries
from t5x_style.retrieval import beir_collection, exact_index

_MODEL = flags.DEFINE_string("model", None, "Folder of sentence-transformers.", required=True)
_CORPUS = flags.DEFINE_string("corpus", None, "Folder in BEIR's layout.", required=True)
_SAMPLE = flags.DEFINE_integer("sample", 2000, "Passages that heads are computed from.")
_SIZE = flags.DEFINE_integer("size", 64, "Numbers of a vector of a token.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the sample and of the random projection.")
DEPTH, METRIC = 100, "nDCG@10"
Text = tuple[np.ndarray, np.ndarray]  # ids [n], states [n, D]
Weigh = Callable[[np.ndarray, np.ndarray], np.ndarray]  # ids, states -> [n]


def encoded(model: Any, texts: Sequence[str]) -> list[Text]:
    """The tokens of each text, and their states."""
    found = model.encode(list(texts), batch_size=32, output_value=None)
    counts = [int(one["attention_mask"].sum()) for one in found]
    return [
        (one["input_ids"][:n].cpu().numpy(), one["token_embeddings"][:n].cpu().numpy())
        for one, n in zip(found, counts, strict=True)
    ]


def groups(texts: Sequence[Text]) -> Iterator[dict[str, np.ndarray]]:
    """A token group for each text."""
    for ids, _ in texts:
        ones = np.ones((1, len(ids)), np.int32)
        yield {"tokens": ids[None], "segment_ids": ones, "segment_valid": np.ones((1, 1), bool)}


def heads(texts: Sequence[Text], counts: m3_heads.Counts) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the states and bias [D + 1], and the projection [D, size]."""
    total = np.zeros((), np.float64)
    for (_, states), group in zip(texts, groups(texts), strict=True):
        wanted = counts.wanted(group)[0]
        some = wanted > 0
        row = np.concatenate([states, np.ones((len(states), 1)), wanted[:, None]], 1)[some]
        total = total + row.T.astype(np.float64) @ row
    squares = float(total[-1, -1] - total[-2, -1] ** 2 / total[-2, -2])
    weights, explained = m3_heads.ridge(total[:-1, :-1], total[:-1, -1], squares, 1.0)
    projection, kept = m3_heads.components(total[:-2, :-2], _SIZE.value)
    print(f"the states show {explained:.0%} of BM25's variance; {kept:.0%} of squares are kept")
    return weights, projection


def sparse(texts: Sequence[Text], special: Sequence[int], weigh: Weigh) -> Entries:
    """Each token of a text once, with the largest of its weights; none at or below 0."""
    offsets, tokens, weights = [0], [], []
    for ids, states in texts:
        here: dict[int, float] = {}
        for token, weight in zip(ids.tolist(), weigh(ids, states).tolist(), strict=True):
            if token not in special and weight > 0:
                here[token] = max(weight, here.get(token, 0.0))
        tokens += list(here)
        weights += list(here.values())
        offsets.append(len(tokens))
    arrays = {"tokens": np.array(tokens, np.int32), "weights": np.array(weights, np.float32)}
    return Entries(np.array(offsets), arrays)


def vectors(texts: Sequence[Text], projection: np.ndarray) -> Entries:
    """Projected states of all tokens but the first, at unit length."""
    found = np.concatenate([states[1:] for _, states in texts]) @ projection.astype(np.float32)
    found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)
    lengths = [len(ids) - 1 for ids, _ in texts]
    return Entries(np.cumsum([0, *lengths]), {"vectors": found})


def main(_: list[str]) -> None:
    """Encodes once, then prints a line for each head."""
    from sentence_transformers import SentenceTransformer

    passages = beir_collection.Passages(_CORPUS.value)
    queries = beir_collection.read_queries(_CORPUS.value)
    qrels = beir_collection.read_qrels(_CORPUS.value, "test", queries, passages)
    model = SentenceTransformer(_MODEL.value, device="cpu")
    special = tuple(model.tokenizer.all_special_ids)
    given = encoded(model, [" ".join(filter(None, (p.title, p.text))) for p in passages])
    asked = encoded(model, [queries[query] for query in qrels])
    rng = np.random.default_rng(_SEED.value)
    sample = [given[row] for row in rng.permutation(len(given))[: _SAMPLE.value]]
    counts = m3_heads.Counts.of(groups(sample), special, 0.9, 0.4)
    everything = m3_heads.Counts.of(groups(given), special, 0.9, 0.4)
    weights, projection = heads(sample, counts)
    width = len(projection)

    def bm25(ids: np.ndarray, _: np.ndarray) -> np.ndarray:
        (group,) = groups([(ids, _)])
        return everything.wanted(group)[0]

    def show(name: str, kind: str, one: Entries, other: Entries) -> None:
        hits = exact_index.top_k(one, other, DEPTH, kind)
        run = ranking.make_run(list(qrels), passages.ids, *hits)
        value = ranking.score_run(run, qrels, [METRIC]).means()[METRIC]
        print(f"{name:<40} {value:.4f}", flush=True)

    print(f"{len(passages):,} passages, {len(qrels):,} queries; {METRIC}")
    rules: dict[str, Weigh] = {
        "weights of words: all alike": lambda ids, _: np.ones(len(ids)),
        "weights of words: computed": lambda _, states: states @ weights[:-1] + weights[-1],
        "weights of words: those of BM25": bm25,
    }
    for name, rule in rules.items():
        show(name, SPARSE, sparse(asked, special, rule), sparse(given, special, rule))
    projections = {
        "at random": rng.normal(size=(width, _SIZE.value)),
        "computed": projection,
        "whole states": np.eye(width),
    }
    for name, one in projections.items():
        show(f"vectors of tokens: {name}", MULTI_VECTOR, vectors(asked, one), vectors(given, one))


if __name__ == "__main__":
    code_hash.announce("head_start")
    app.run(main)
