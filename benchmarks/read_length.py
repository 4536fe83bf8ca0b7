"""What an encoder and its fine-tuned version gain where they read long passages further.

    python -m benchmarks.read_length --run=runs/finetune --model=path/to/encoder --length=512

`--run` is a finished `kennel finetune` of the encoder. Passages that have as many tokens as its
models read are embedded once more, by sentence-transformers, up to `--length` tokens; the vectors
of the other passages are those of the run. Nothing is trained: whether an encoder that was trained
on longer passages is better is another question.

Prints the metric on the run's test queries, and apart on those that ask for one of these passages.
BM25, which reads everything, and the bag are those of the run. Needs the extra `interop`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import code_hash
from benchmarks.contrastive_contestants import sentence_transformer
from input_pipelines.store.token_store import TokenStore
from t5x_style.evaluation import ranking
from t5x_style.retrieval import beir_collection, encoding, exact_index

_RUN = flags.DEFINE_string("run", None, "Folder of a finished `kennel finetune`.", required=True)
_MODEL = flags.DEFINE_string("model", None, "The encoder that it started from.", required=True)
_LENGTH = flags.DEFINE_integer("length", 512, "Tokens that are read of a long passage.")
_METRIC = flags.DEFINE_string("metric", "nDCG@10", "What is printed.")

DEPTH = 100
TOLERANCE = 1e-4  # of a number of a vector: the run's embeddings next to those of the folder


class Collection:
    """Passages, test queries and judgements of a run; N passages, Q queries."""

    def __init__(self, run: Path, read: int):
        folder = str(run / "collection/corpus")
        self.passages = beir_collection.Passages(folder)
        queries = beir_collection.read_queries(folder)
        self.qrels = beir_collection.read_qrels(folder, "test", queries, self.passages)
        self.queries = [queries[name] for name in self.qrels]
        store = TokenStore.open(run / "passages/store")
        self.long = np.flatnonzero(store.lengths >= read)  # rows, of the run's vectors too
        if not len(self.long):
            raise SystemExit(f"{run}: no passage has {read} tokens, so that all are read whole")
        ids = {store.ids[row] for row in self.long}
        self.for_long = {
            name for name, judged in self.qrels.items()
            if not ids.isdisjoint(one for one, grade in judged.items() if grade > 0)
        }  # fmt: skip
        self.names = list(store.ids)

    def texts(self, rows: Sequence[int]) -> list[str]:
        """Title and text of rows of the store."""
        found = [self.passages.passage(self.passages.row(self.names[row])) for row in rows]
        return [" ".join(filter(None, (one.title, one.text))) for one in found]

    def scores(self, queries: np.ndarray, passages: np.ndarray) -> ranking.Scores:
        """By exact search; [Q, D] and [N, D] float32."""
        found = exact_index.top_k(queries, passages, DEPTH)
        run = ranking.make_run(list(self.qrels), self.names, *found)
        return ranking.score_run(run, self.qrels, [_METRIC.value])


def vectors_of(model: Any, texts: Sequence[str], prompt: str) -> np.ndarray:
    """[n, D] float32 of unit length; `prompt` is 'query' or 'document'."""
    encode = model.encode_query if prompt == "query" else model.encode_document
    return np.asarray(encode(list(texts), batch_size=8, normalize_embeddings=True), np.float32)


def both(collection: Collection, model: Any, run_vectors: Path) -> list[ranking.Scores]:
    """The metric with the run's vectors, and with long passages read up to `--length` tokens."""
    stored = encoding.load_embeddings(run_vectors, "dense")
    if list(stored.ids) != collection.names:
        raise SystemExit(f"{run_vectors}: expected vectors of the run's passages, found others")
    before = np.array(stored.passages[np.arange(len(stored.ids))], np.float32)
    before /= np.linalg.norm(before, axis=1, keepdims=True)
    check = collection.long[:1]
    off = np.abs(vectors_of(model, collection.texts(check), "document") - before[check]).max()
    if off > TOLERANCE:
        raise SystemExit(f"{run_vectors}: expected vectors of the given model, found others: {off}")
    queries = vectors_of(model, collection.queries, "query")
    after = before.copy()
    model.max_seq_length = _LENGTH.value
    after[collection.long] = vectors_of(model, collection.texts(collection.long), "document")
    return [collection.scores(queries, vectors) for vectors in (before, after)]


def main(_: list[str]) -> None:
    """Embeds long passages again, searches, prints a row for each system."""
    run = Path(_RUN.value)
    models = {"untouched": (_MODEL.value, "vectors")}
    models["finetuned"] = (str(run / "export/encoder"), "finetuned_vectors")
    read = sentence_transformer(_MODEL.value).max_seq_length
    if _LENGTH.value <= read:
        raise SystemExit(f"--length: expected more than the {read} tokens that it reads")
    collection = Collection(run, read)
    before = json.loads((run / "evaluation/per_query.json").read_text(encoding="utf-8"))
    rows = {
        (name, "all" if name == "bm25" else str(read)): ranking.Scores(
            tuple(before["queries"]),
            {_METRIC.value: np.array(before["systems"][name][_METRIC.value])},
        )
        for name in ("bm25", "bag_of_embeddings")
    }
    for name, (folder, vectors) in models.items():
        model = sentence_transformer(folder).eval()
        found = both(collection, model, run / vectors)
        rows |= {(name, str(n)): s for n, s in zip((read, _LENGTH.value), found, strict=True)}
    others = set(collection.qrels) - collection.for_long
    print(
        f"{run.name}: {len(collection.long)} of {len(collection.names)} passages have {read} "
        f"tokens or more; {len(collection.for_long)} of {len(collection.qrels)} queries ask for one"
    )
    print(f"{_METRIC.value:<20} {'tokens':>6} {'all':>8} {'long':>8} {'others':>8}")
    for (name, tokens), scores in rows.items():
        parts = (scores, scores.of(collection.for_long), scores.of(others))
        numbers = " ".join(f"{one.means()[_METRIC.value]:8.4f}" for one in parts)
        print(f"{name:<20} {tokens:>6} {numbers}")


if __name__ == "__main__":
    code_hash.announce("read_length")
    app.run(main)
