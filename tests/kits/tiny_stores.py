"""Token stores of random passages, for tests: small, real files, written by the real writer."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from input_pipelines.store import store_writer

FINGERPRINT = "f" * 64
CLS, SEP = 2, 3


def make_record(name: str, length: int, seed: int) -> store_writer.StoreRecord:
    """A passage of `length` random tokens: [CLS] ... [SEP]; words of one to three pieces."""
    rng = np.random.default_rng([seed, length])
    tokens = rng.integers(5, 300, length)
    tokens[0], tokens[-1] = CLS, SEP
    word_starts = rng.random(length) < 0.6
    word_starts[[0, 1, -1]] = True
    # A zero byte and a letter outside ASCII: what a careless reader would lose.
    return store_writer.StoreRecord(
        name, f"title {name}", f"text é of {name}\0", "test", tokens, word_starts
    )


def write_store(
    folder: Path,
    lengths: Sequence[int],
    *,
    name: str = "tiny",
    shards: int = 2,
    prefix: str = "p",
    fingerprint: str = FINGERPRINT,
    layout: str = "text",
) -> Path:
    """A finished store; row r has id f'{prefix}{r}' and `lengths[r]` tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [make_record(f"{prefix}{row}", int(n), row) for row, n in enumerate(lengths)]
    infos = [
        store_writer.write_shard(
            str(folder / store_writer.shard_name(name, "train", number, shards)),
            [records[row] for row in part],
        )
        for number, part in enumerate(np.array_split(np.arange(len(records)), shards))
    ]
    summary = store_writer.StoreSummary(
        name=name,
        split="train",
        kind="passage",
        tokenizer_fingerprint=fingerprint,
        vocabulary_size=300,
        max_length=int(max(lengths, default=0)),
        prefix="",
        layout=layout,
        total_words=sum(int(record.word_starts.sum()) for record in records),
        truncated=0,
        dropped={},
    )
    ids = [record.id for record in records]
    store_writer.finish(str(folder), infos, np.array(lengths), ids, summary)
    return folder


def realistic_lengths(count: int, seed: int = 0, longest: int = 128) -> np.ndarray:
    """Lengths as in documentation: a third full, the rest from a few tokens upward."""
    rng = np.random.default_rng(seed)
    short = np.clip(rng.lognormal(3.6, 0.9, count), 6, longest)
    return np.where(rng.random(count) < 0.35, longest, short).astype(np.int32)
