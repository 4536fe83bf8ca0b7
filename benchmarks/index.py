"""ScaNN, faiss and exact search over the same real embeddings: recall@10 against queries a second.

    python -m benchmarks.index --embeddings=FOLDER --queries=FOLDER [--picture=index.png]

Both folders are written by `t5x_style.encode_corpus`, for passages and for queries. Each index is
built with several settings and searched by batches, all on the same cores; the settings of a row
take their turns in several rounds, and the median counts. Recall is the share of the exact ten.
Needs the extra `interop` (faiss).
"""

import os
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from absl import app, flags

from benchmarks import code_hash, index_table
from benchmarks.index_table import K, Row, Setting
from t5x_style.retrieval import encoding, exact_index, published_index, scann_index

_EMBEDDINGS = flags.DEFINE_string("embeddings", None, "Vectors of passages.", required=True)
_QUERIES = flags.DEFINE_string("queries", None, "Vectors of queries.", required=True)
_COUNT = flags.DEFINE_integer("count", 2048, "Queries that are asked.")
_BATCH = flags.DEFINE_integer("batch", 256, "Queries asked at a time.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds; the median counts.")
_PICTURE = flags.DEFINE_string("picture", "", "Where to draw recall against speed, as PNG.")


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


def draw(rows: list[Row], png: str) -> None:
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

    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
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
        rows = index_table.measured(settings, queries, truth, _BATCH.value, _ROUNDS.value)
    count, dimension = embeddings.passages.shape
    index_table.show(rows, f"{count:,} passages x {dimension}", len(queries), _BATCH.value)
    if _PICTURE.value:
        draw(rows, _PICTURE.value)


if __name__ == "__main__":
    code_hash.announce("index")
    app.run(main)
