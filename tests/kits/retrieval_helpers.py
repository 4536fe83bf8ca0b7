"""A small collection, a contract and sources, for the tests of retrieval and evaluation."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.objective import ModelFunction
from t5x_style.retrieval import embedding_shards

CONTRACT = Contract(
    pooling="cls",
    normalise=True,
    similarity="cosine",
    temperature=0.05,
    dimension=16,
    query_length=8,
    passage_length=8,
    query_prefix="",
    passage_prefix="",
    passage_layout="text",
    vocabulary_size=100,
    tokenizer_fingerprint="fingerprint",
)

PASSAGES = [
    ("p0", "csv", "Read and write tabular data in CSV files.", "python/csv"),
    ("p1", "json", "Encode and decode JSON documents.", "python/json"),
    ("p2", "socket", "Low-level networking interface with sockets.", "python/socket"),
    ("p3", "csv reader", "Reading CSV rows one after the other.", "python/csv"),
    ("p4", "heapq", "The heap queue algorithm, a priority queue.", ""),
]
QUERIES = {
    "q0": "how to read a csv file",
    "q1": "parse json",
    "q2": "priority queues",
    "q3": "nets",
}
QRELS = {"test": {"q0": {"p0": 1}, "q1": {"p1": 1}}, "dev": {"q2": {"p4": 2}, "q3": {"p2": 1}}}


def write_corpus(folder: Path) -> str:
    rows = [dict(zip(("_id", "title", "text", "source"), row, strict=True)) for row in PASSAGES]
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = [{"_id": name, "text": text} for name, text in QUERIES.items()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    for split, qrels in QRELS.items():
        lines = [f"{q}\t{p}\t{r}\n" for q, judged in qrels.items() for p, r in judged.items()]
        (folder / "qrels" / f"{split}.tsv").write_text(
            "query-id\tcorpus-id\tscore\n" + "".join(lines)
        )
    return str(folder)


def vectors(count: int, seed: int = 0, dimension: int = 16, centres: int = 20) -> np.ndarray:
    """Unit vectors in clusters, as trained embeddings are: [count, dimension] float32."""
    generator = np.random.default_rng(seed)
    centre = np.random.default_rng(1).normal(size=(centres, dimension))
    found = centre[generator.integers(0, centres, count)]
    found = found + 0.5 * generator.normal(size=(count, dimension))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def embedding_functions(**sides: Callable) -> dict[str, ModelFunction]:
    """Functions of a side each, 'query' or 'passage', that make dense vectors."""
    return {
        f"embed_{side}": ModelFunction(
            lambda group, kinds, embed=embed: {"dense": embed(group)},
            *({}, "[B, S, D] float32", "embed", side, ("dense",)),
        )
        for side, embed in sides.items()
    }


class Side(NamedTuple):
    """Sentences as tasks between languages ask for them."""

    ids: list
    given: list

    def texts(self):
        return self.given


class Source:
    """An encoding source of two segments a row; text i is [cls] and the token i."""

    segment_length, prefix, layout, tokenizer_fingerprint = 8, "", "text", "fingerprint"
    cls_every = None
    offset = 0

    def __init__(self, ids: Sequence[str], rows: int = 8, order: Sequence[int] | None = None):
        self.ids = list(ids)
        self._rows = rows
        self._order = list(range(len(self.ids))) if order is None else list(order)

    @property
    def fingerprint(self) -> str:
        return f"{self.ids} {self._rows}"

    def part(self, start: int, end: int) -> "Source":
        part = Source(self.ids[start:end], self._rows)
        part.offset = self.offset + start
        return part

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        per_batch = self._rows * 2
        for start in range(0, len(self._order), per_batch):
            chosen = self._order[start : start + per_batch]
            example = np.full((per_batch,), -1, np.int32)
            example[: len(chosen)] = chosen
            example = example.reshape(self._rows, 2)
            valid = example >= 0
            segment_ids = np.where(valid, [1, 2], 0).astype(np.int32)
            yield {
                "tokens": np.where(valid, example + self.offset, 0).astype(np.int32),
                "positions": np.zeros_like(example),
                "segment_ids": segment_ids,
                "word_starts": valid,
                "cls_at": np.where(valid, [0, 1], 0).astype(np.int32),
                "segment_valid": valid,
                "example_id": example,
            }


def write_embeddings(
    folder: Path,
    vectors: np.ndarray,
    ids: Sequence[str],
    shard_size: int = 1 << 20,
    dtype: str = "float32",
    version: str = "version",
    checkpoint: str = "checkpoint",
) -> None:
    """What encode_corpus leaves, of these vectors."""
    storage = embedding_shards.Storage(shard_size, dtype)
    with embedding_shards.ShardWriter(folder, version, storage, ids) as writer:
        for number in writer.missing():
            start, end = storage.bounds(len(ids))[number]
            writer.write(number, {"dense": vectors[start:end]})
        writer.finish(CONTRACT, checkpoint)


class EncodesOneKind:
    """A toy `TextEncoder` that defines `encode` alone."""

    def represent(self, side, source, kinds):
        return {kind: self.encode(side, source, kind) for kind in kinds}
