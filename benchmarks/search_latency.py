"""Exact search, ScaNN and BM25 side by side: milliseconds a query, queries a second, recall.

    python -m benchmarks.search_latency --passages=100000 --dimension=128

Vectors are clustered, as trained ones are; texts are drawn from a Zipf vocabulary. All three run in
one process, one after the other, on the same passages; recall is the share of the exact top 10.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import code_hash
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import Contract
from t5x_style.retrieval import bm25, encoding, exact_index, published_index, scann_index

K = 10
Search = Callable[[Any, int], tuple[np.ndarray, np.ndarray]]


def vectors(generator: np.random.Generator, count: int, centres: np.ndarray) -> np.ndarray:
    chosen = centres[generator.integers(0, len(centres), count)]
    found = chosen + 0.7 * generator.normal(size=chosen.shape)
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def texts(generator: np.random.Generator, count: int, words: int) -> list[str]:
    drawn = generator.zipf(1.2, size=(count, words)) % 50_000
    return [" ".join(f"w{word}" for word in row) for row in drawn.tolist()]


def milliseconds(search: Search, queries: Any, batch: int, repeats: int) -> tuple[float, float]:
    """Median and 95th percentile of one call with `batch` queries, after one to warm up."""
    search(queries[:batch], K)
    times = []
    for i in range(repeats):
        first = (i * batch) % max(1, len(queries) - batch)
        begin = time.perf_counter()
        search(queries[first : first + batch], K)
        times.append(1000 * (time.perf_counter() - begin))
    return float(np.median(times)), float(np.quantile(times, 0.95))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(max(1, options.passages // 25), options.dimension))
    passages = vectors(generator, options.passages, centres)
    queries = vectors(generator, options.queries, centres)
    words, asked = texts(generator, options.passages, 60), texts(generator, options.queries, 8)
    ids = [str(row) for row in range(options.passages)]
    contract = Contract(
        "cls", True, "cosine", 0.05, options.dimension, 32, 128, "", "", "text", 30_000, "none"
    )
    _, true_rows = exact_index.top_k(queries, passages, K)
    rows = []

    def measure(name: str, search: Search, asked: Any, build: float, dense: bool) -> None:
        recall = f"{index_lib.recall_against(search(asked, K)[1], true_rows):.4f}" if dense else "-"
        one, tail = milliseconds(search, asked, 1, options.repeats)
        many, _ = milliseconds(search, asked, 256, 5)
        cells = (f"{one:.2f}", f"{tail:.2f}", f"{256_000 / many:,.0f}", recall, f"{build:.1f}")
        rows.append((name, *cells))

    for name, resident in (("exact", False), ("exact, vectors stay on the device", True)):
        begin = time.perf_counter()
        exact = exact_index.ExactIndex(passages, ids, contract, resident=resident)
        measure(name, exact.search, queries, time.perf_counter() - begin, True)
    embeddings = encoding.Embeddings(passages, ids, contract)
    for share in (0.05, 0.1, 0.3):
        settings = scann_index.Scann(2_000, 0, share, 200)
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            index = published_index.publish(folder, embeddings, settings, keep=1)
            build = time.perf_counter() - begin
            measure(f"scann, {share:.0%} of leaves", index.search, queries, build, True)
    begin = time.perf_counter()
    lexical = bm25.Bm25Index(words, ids)
    measure("bm25", lexical.search, asked, time.perf_counter() - begin, False)

    table = Table(title=f"{options.passages:,} passages x {options.dimension}, top {K}")
    for column in ("index", "ms, 1 query", "ms, p95", "queries/s by 256", "recall@10", "build s"):
        table.add_column(column, justify="left" if column == "index" else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    code_hash.announce("search_latency")
    main()
