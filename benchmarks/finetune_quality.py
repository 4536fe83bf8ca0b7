"""Quality of a fine-tuned encoder next to one that sentence-transformers trained on the triplets.

    python -m benchmarks.finetune_quality --run=runs/finetune --model=path/to/encoder

`--run` is a finished `kennel finetune --model=... --data=...`. The peer starts from the same folder
and sees as many steps of as many queries, with one answer and the negatives of the run each:
MultipleNegativesRankingLoss, AdamW without weight decay, as its trainer has it, warm-up over a
tenth of the steps and linear decay, float32, the folder's dropout. Its last weights count, as its
trainer saves them. Ours are those that the run chose on development queries. Rate, batch and
temperature are flags, with the recipe's defaults: give those of the run, if it has others. A
passage that answers two queries of a batch is a negative of either there, and not here; how many
there are is printed.

Prints the metric of both and of the untouched encoder on the run's test queries, the paired
difference with a 95 % interval (bootstrap over the run's groups of queries), and seconds. Needs the
extra `interop`.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import code_hash
from benchmarks.finetune_triplets import Triplets
from t5x_style.evaluation import comparison, ranking
from t5x_style.retrieval import beir_collection, exact_index

_RUN = flags.DEFINE_string("run", None, "Folder of a finished `kennel finetune`.", required=True)
_MODEL = flags.DEFINE_string("model", None, "The encoder that it started from.", required=True)
_QUERIES = flags.DEFINE_integer("queries", 32, "Queries in a step, as in the run.")
_GROUP = flags.DEFINE_integer("group_size", 2, "Passages of a query, as in the run.")
_LENGTH = flags.DEFINE_integer("length", 256, "Tokens at which texts are cut, as in the run.")
_RATE = flags.DEFINE_float("learning_rate", 3e-5, "At the peak; the recipe's up to width 384.")
_TEMPERATURE = flags.DEFINE_float("temperature", 0.05, "What cosines are divided by.")
_STEPS = flags.DEFINE_integer("steps", None, "Steps; by default those of the run.")
_SEED = flags.DEFINE_integer("seed", 1, "Of the order of the queries, and of dropout.")
_METRIC = flags.DEFINE_string("metric", "nDCG@10", "What is compared.")

PEER = "sentence-transformers"
DEPTH, SAMPLES = 100, 10_000


def steps_of(run: Path) -> int:
    """How many the run's training took."""
    with open(run / "retriever/metrics.jsonl", encoding="utf-8") as file:
        return max(int(json.loads(line)["step"]) for line in file)


def triplets() -> Triplets:
    """What the run trained on; in an order of `--seed`."""
    judged = "judged_negatives/negatives.jsonl"
    given = {"negatives": judged} if (Path(_RUN.value) / judged).exists() else {}
    sizes = (_QUERIES.value, _GROUP.value, _LENGTH.value)
    return Triplets(_RUN.value, *sizes, **given, seed=_SEED.value)


def tuned(steps: int) -> Any:
    """The peer's model after its training."""
    import torch
    import transformers
    from sentence_transformers.sentence_transformer import losses

    from benchmarks import contrastive_contestants, torch_retromae

    torch.manual_seed(_SEED.value)
    model = contrastive_contestants.sentence_transformer(_MODEL.value)
    loss_of = losses.MultipleNegativesRankingLoss(model, scale=1 / _TEMPERATURE.value)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE.value, weight_decay=0.0, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(steps / 10), steps)
    texts = triplets()
    pairs, twice = texts.unpacked(), 0
    for number in range(steps):
        sides = texts.chosen(pairs, number)
        twice += len(sides[1][1]) - len(np.unique(sides[1][1]))
        padded = [torch_retromae.padded(store, rows, _LENGTH.value) for store, rows in sides]
        columns = contrastive_contestants.columns_of(model, padded)
        loss = loss_of(columns, None)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if number % 10 == 0:
            print(f"{PEER}: step {number} of {steps}, loss {loss.item():.4f}", flush=True)
    print(f"{PEER}: {twice} answers came a second time in their batch", flush=True)
    return model.eval()


def scored(model: Any, corpus: str, queries: Sequence[str]) -> ranking.Scores:
    """The peer's metric on the test queries, by exact search; `queries` are those of the run."""
    passages, known = beir_collection.Passages(corpus), beir_collection.read_queries(corpus)
    qrels = beir_collection.read_qrels(corpus, "test", known, passages)
    model.max_seq_length = _LENGTH.value
    contents = [" ".join(filter(None, (one.title, one.text))) for one in passages]

    def vectors(encode: Callable[..., Any], texts: Sequence[str]) -> np.ndarray:
        found = encode(list(texts), batch_size=32, normalize_embeddings=True)
        return np.asarray(found, np.float32)

    asked = vectors(model.encode_query, [known[query] for query in qrels])
    found = exact_index.top_k(asked, vectors(model.encode_document, contents), DEPTH)
    run = ranking.make_run(list(qrels), passages.ids, *found)
    scores = ranking.score_run(run, qrels, [_METRIC.value])
    if list(scores.queries) != list(queries):
        raise SystemExit("the run's test queries are not those of its collection: run it again")
    return scores


def main(_: list[str]) -> None:
    """Trains the peer, searches, prints the comparison."""
    run = Path(_RUN.value)
    corpus = str(run / "collection/corpus")
    before = json.loads((run / "evaluation/per_query.json").read_text(encoding="utf-8"))
    steps = _STEPS.value or steps_of(run)
    started = time.perf_counter()
    model = tuned(steps)
    trained = time.perf_counter()
    peer = scored(model, corpus, before["queries"])
    scores = {
        name: ranking.Scores(
            tuple(before["queries"]), {_METRIC.value: np.array(values[_METRIC.value])}
        )
        for name, values in before["systems"].items()
    } | {PEER: peer}
    groups = None if before["groups"] is None else np.array(before["groups"])
    report = comparison.compare(scores, PEER, (), SAMPLES, 0, groups)
    print(
        f"{run.name}, {steps} steps of {_QUERIES.value} queries with {_GROUP.value} passages, "
        f"{len(os.sched_getaffinity(0))} cores; {PEER}: training {trained - started:,.0f} s, "
        f"encoding and search {time.perf_counter() - trained:,.0f} s"
    )
    for name in ("untouched", "finetuned", PEER):
        one = report["systems"][name][_METRIC.value]
        print(f"{name:<24}{_METRIC.value} {one['value']:.4f} ({one['low']:.3f}-{one['high']:.3f})")
    for name in ("untouched", "finetuned"):
        one = report["against"]["systems"][name][_METRIC.value]
        print(
            f"{name} minus {PEER}: {one['difference']:+.4f} ({one['low']:+.3f} to "
            f"{one['high']:+.3f}), p = {one['p']:.2g}"
        )


if __name__ == "__main__":
    code_hash.announce("finetune_quality")
    app.run(main)
