"""What compact vectors of tokens and MUVERA cost: nDCG@10 of MaxSim by setting.

    python -m benchmarks.token_vectors --model=path/to/encoder --corpus=../shared/data/ir_cranfield

`--model` is a folder of sentence-transformers, whose token states at unit length are the vectors,
all tokens included; `--corpus` is in BEIR's layout. Every test query is compared with every
passage, and with the passages that MUVERA's long vectors propose, all vectors in float32. Prints
vectors and bytes of a passage, the metric, its difference to every passage and all vectors in
float32 with a 95 % interval (bootstrap over queries), and seconds that pooling, or the building of
MUVERA's index, took. Needs the extra `interop`.
"""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import code_hash
from t5x_style.evaluation import comparison, ranking
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.index import IndexRecord
from t5x_style.interfaces.representation import MULTI_VECTOR, Entries
from t5x_style.retrieval import (
    beir_collection,
    exact_index,
    muvera_index,
    representation_files,
)
from t5x_style.retrieval.token_vectors import compact

_MODEL = flags.DEFINE_string("model", None, "Folder of sentence-transformers.", required=True)
_CORPUS = flags.DEFINE_string("corpus", None, "Folder in BEIR's layout.", required=True)
_FACTORS = flags.DEFINE_list("factors", ["1", "2", "3", "4"], "Pool factors in float32.")
_INT8 = flags.DEFINE_list("int8", ["1", "2"], "Pool factors in int8.")
_MUVERA = flags.DEFINE_list("muvera", ["20", "50", "100"], "Candidates of MUVERA's index.")
_METRIC = flags.DEFINE_string("metric", "nDCG@10", "What is compared.")
DEPTH, SAMPLES = 100, 10_000
Hits = tuple[np.ndarray, np.ndarray]  # scores, rows [queries, k]


def vectors(model: Any, texts: Sequence[str]) -> Entries:
    """The token states of each text at unit length."""
    found = model.encode(list(texts), batch_size=32, output_value="token_embeddings")
    parts = [np.asarray(one.cpu(), np.float32) for one in found]
    states = np.concatenate(parts)
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    return Entries(np.cumsum([0, *map(len, parts)]), {"vectors": states})


def bytes_of(kept: Entries) -> int:
    """Of the files, offsets left out."""
    arrays = representation_files.arrays(MULTI_VECTOR, kept)
    return sum(array.nbytes for name, array in arrays.items() if "offsets" not in name)


def searches(
    asked: Entries, whole: Entries, ids: Sequence[str]
) -> Iterator[tuple[str, Entries, float, Hits]]:
    """(name, what is kept of the passages, seconds to make it, hits) of each setting."""
    settings = [(int(f), None) for f in _FACTORS.value] + [(int(f), "int8") for f in _INT8.value]
    for factor, dtype in settings:
        started = time.perf_counter()
        kept = compact.compact(whole, compact.facts(factor, dtype))
        seconds = time.perf_counter() - started
        hits = exact_index.top_k(asked, kept, DEPTH, MULTI_VECTOR)
        yield f"{dtype or 'float32'}, factor {factor}", kept, seconds, hits
    if not _MUVERA.value:
        return
    size = whole.arrays["vectors"].shape[1]
    contract = Contract("mean", True, "cosine", 1.0, size, 1, 1, "", "", "text", 1, "")
    started = time.perf_counter()
    index = muvera_index.Muvera(candidates=1).build(whole, IndexRecord(ids, contract))
    seconds = time.perf_counter() - started
    for count in map(int, _MUVERA.value):
        # `search` compares max(k, candidates) passages, here k.
        yield f"MUVERA, {count} candidates", whole, seconds, index.search(asked, count)


def main(_: list[str]) -> None:
    """Encodes once, then searches with each setting."""
    from sentence_transformers import SentenceTransformer

    passages = beir_collection.Passages(_CORPUS.value)
    queries = beir_collection.read_queries(_CORPUS.value)
    qrels = beir_collection.read_qrels(_CORPUS.value, "test", queries, passages)
    model = SentenceTransformer(_MODEL.value, device="cpu")
    asked = vectors(model, [queries[query] for query in qrels])
    whole = vectors(model, [" ".join(filter(None, (p.title, p.text))) for p in passages])
    print(
        f"{len(passages):,} passages, {len(qrels):,} queries, {len(os.sched_getaffinity(0))} cores"
    )
    scores, facts = {}, {}
    for name, kept, seconds, hits in searches(asked, whole, passages.ids):
        run = ranking.make_run(list(qrels), passages.ids, *hits)
        scores[name] = ranking.score_run(run, qrels, [_METRIC.value])
        facts[name] = (kept.offsets[-1] / len(kept), bytes_of(kept) / len(kept), seconds)
        print(f"{name}: {_METRIC.value} {scores[name].means()[_METRIC.value]:.4f}", flush=True)
    first = next(iter(scores))
    report = comparison.compare(scores, first, (), SAMPLES, 0)
    print(f"{'':<22} vectors    bytes  {_METRIC.value}  difference (95 %)             made in s")
    for name, (count, size, seconds) in facts.items():
        value = report["systems"][name][_METRIC.value]["value"]
        gap = report["against"]["systems"].get(name, {}).get(_METRIC.value)
        shown = f"{gap['difference']:+.4f} ({gap['low']:+.4f} to {gap['high']:+.4f})" if gap else ""
        print(f"{name:<22} {count:7.1f} {size:8,.0f}   {value:.4f}  {shown:<28} {seconds:8.1f}")


if __name__ == "__main__":
    code_hash.announce("token_vectors")
    app.run(main)
