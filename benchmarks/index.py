"""ScaNN, faiss and exact search over the same real embeddings: recall@10 against queries a second.

    python -m benchmarks.index --embeddings=FOLDER --queries=FOLDER [--picture=index.png]

Both folders are written by `t5x_style.encode_corpus`, for passages and for queries. Each index is
built with several settings and searched by batches, all on the same cores; the settings of a row
take their turns in several rounds, and the median counts. Recall is the share of the exact ten.
Needs the extra `interop` (faiss).
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from absl import app, flags

from benchmarks import code_hash
from t5x_style.interfaces import index as index_lib
from t5x_style.retrieval import encoding, exact_index, published_index, scann_index

_EMBEDDINGS = flags.DEFINE_string("embeddings", None, "Vectors of passages.", required=True)
_QUERIES = flags.DEFINE_string("queries", None, "Vectors of queries.", required=True)
_COUNT = flags.DEFINE_integer("count", 2048, "Queries that are asked.")
_BATCH = flags.DEFINE_integer("batch", 256, "Queries asked at a time.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds; the median counts.")
_PICTURE = flags.DEFINE_string("picture", "", "Where to draw recall against speed, as PNG.")

K = 10
Search = Callable[[np.ndarray], np.ndarray]  # [Q, D] -> rows [Q, K]


class Setting(NamedTuple):
    """One way to search one index; settings of a family share a line in the picture."""

    family: str
    name: str
    build_seconds: float
    search: Search


def our_exact(embeddings: encoding.Embeddings) -> Iterator[Setting]:
    """Exact search as Kennel does it."""
    index = exact_index.ExactIndex(embeddings.passages, embeddings.ids, embeddings.contract)
    yield Setting("exact", "exact", 0.0, lambda q: index.search(q, K)[1])


def scann(embeddings: encoding.Embeddings, folder: str) -> Iterator[Setting]:
    """A tree, asymmetric hashing and exact re-scoring, as `build_index` makes it."""
    for share in (0.02, 0.05, 0.1, 0.3):
        settings = scann_index.Scann(1, 0, share, 100)
        started = time.perf_counter()
        index = published_index.publish(f"{folder}/{share}", embeddings, settings, keep=1)
        seconds = time.perf_counter() - started
        yield Setting(
            "ScaNN", f"ScaNN, {share:.0%} of leaves", seconds, lambda q, i=index: i.search(q, K)[1]
        )


def hnsw(embeddings: encoding.Embeddings) -> Iterator[Setting]:
    """faiss's graph, 32 links."""
    import faiss

    started = time.perf_counter()
    index = faiss.IndexHNSWFlat(embeddings.passages.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 200
    index.add(embeddings.passages)
    seconds = time.perf_counter() - started
    for ef in (16, 32, 64, 128, 256):

        def search(queries: np.ndarray, ef: int = ef) -> np.ndarray:
            index.hnsw.efSearch = ef
            return index.search(queries, K)[1]

        yield Setting("faiss HNSW", f"faiss HNSW, efSearch {ef}", seconds, search)


def ivf_pq(embeddings: encoding.Embeddings) -> Iterator[Setting]:
    """faiss's inverted lists over product quantization, re-scored exactly."""
    import faiss

    count, dimension = embeddings.passages.shape
    started = time.perf_counter()
    lists = max(1, round(count**0.5))
    inner = faiss.METRIC_INNER_PRODUCT
    coarse = faiss.IndexFlat(dimension, inner)
    # Bytes a vector: four bits for every two dimensions, as ScaNN's hashing takes.
    quantized = faiss.IndexIVFPQ(coarse, dimension, lists, dimension // 4, 8, inner)
    index = faiss.IndexRefineFlat(quantized)
    index.train(embeddings.passages)
    index.add(embeddings.passages)
    index.k_factor = 10
    seconds = time.perf_counter() - started
    for probes in (1, 4, 16, 64):

        def search(queries: np.ndarray, probes: int = probes) -> np.ndarray:
            quantized.nprobe = probes
            return index.search(queries, K)[1]

        yield Setting("faiss IVF-PQ", f"faiss IVF-PQ, nprobe {probes}", seconds, search)


def speed(search: Search, queries: np.ndarray) -> float:
    """Queries a second, by batches."""
    started = time.perf_counter()
    for first in range(0, len(queries), _BATCH.value):
        search(queries[first : first + _BATCH.value])
    return len(queries) / (time.perf_counter() - started)


def draw(rows: list[tuple[Setting, float, float]], png: str) -> None:
    """Recall against queries a second, a line a family."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 4.2), constrained_layout=True)
    for family in dict.fromkeys(row[0].family for row in rows):
        points = [(recall, rate) for setting, recall, rate in rows if setting.family == family]
        axis.plot(*zip(*sorted(points), strict=True), marker="o", label=family)
    axis.set(xlabel=f"recall@{K}", ylabel="queries a second", yscale="log")
    axis.grid(alpha=0.3, which="both")
    axis.legend()
    figure.savefig(png, dpi=120)


def main(_: list[str]) -> None:
    """Prints the table, draws the picture."""
    import faiss

    cores = len(os.sched_getaffinity(0))
    faiss.omp_set_num_threads(cores)
    embeddings = encoding.load_embeddings(_EMBEDDINGS.value)
    embeddings = encoding.Embeddings(embeddings.passages[:], embeddings.ids, embeddings.contract)
    queries = np.ascontiguousarray(
        encoding.load_embeddings(_QUERIES.value).passages[: _COUNT.value]
    )
    _, truth = exact_index.top_k(queries, embeddings.passages, K)
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            *our_exact(embeddings),
            *scann(embeddings, folder),
            *hnsw(embeddings),
            *ivf_pq(embeddings),
        ]
        rates: list[list[float]] = [[] for _ in settings]
        found = [setting.search(queries) for setting in settings]  # and warms up
        for _ in range(_ROUNDS.value):
            for setting, speeds in zip(settings, rates, strict=True):
                speeds.append(speed(setting.search, queries))
        rows = [
            (setting, index_lib.recall_against(rows_found, truth), statistics.median(speeds))
            for setting, rows_found, speeds in zip(settings, found, rates, strict=True)
        ]
    count, dimension = embeddings.passages.shape
    print(
        f"{count:,} passages x {dimension}, {len(queries):,} queries by {_BATCH.value}, "
        f"{cores} cores"
    )
    print(f"{'':<28}{'recall@10':>11}{'queries/s':>11}{'build s':>9}")
    for setting, recall, rate in rows:
        print(f"{setting.name:<28}{recall:>11.4f}{rate:>11,.0f}{setting.build_seconds:>9.1f}")
    if _PICTURE.value:
        draw(rows, _PICTURE.value)


if __name__ == "__main__":
    code_hash.announce("index")
    app.run(main)
