"""Padding and products of long texts: one a row, sorted into buckets by length, packed into rows.

    python -m benchmarks.length_buckets

Lengths are those of the articles of English Wikipedia in ../shared/data, in words and marks, cut at
--cut_at. Products are those of an encoder's layers for each token that is not padding, next to rows
without any padding: 24 D of each position for matrices, 4 n for attention in a row of n positions.
A fused kernel with segment ids computes the whole row, so packed rows pay for their length.
"""

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks import code_hash, corpora
from input_pipelines.batches import packing_plan

_LENGTH = flags.DEFINE_integer("cut_at", 8192, "Tokens at which texts are cut.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 1024, "D of the encoder.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 64, "Texts of a batch in any order.", lower_bound=1)
_SEGMENTS = flags.DEFINE_integer("packed_segments", 64, "Texts in a packed row.", lower_bound=1)

ARTICLES = corpora.ROOT.parent / "shared/data/wiki_en/wiki_en.jsonl.gz"
# FlagEmbedding's buckets of M3's fine-tuning, and queries of a batch on a device.
BOUNDS = (0, 500, 1000, 2000, 3000, 4000, 5000, 6000, 7000)
OF_BUCKET = (48, 32, 20, 18, 14, 14, 12, 10, 8)

Rows = tuple[int, int]  # (number, positions of each)


def lengths_of(articles: Path, most: int) -> np.ndarray:
    """Words and marks of each article and [CLS], [SEP], `most` at most: int64 [N]."""
    with gzip.open(articles, "rt", encoding="utf-8") as lines:
        found = [len(re.findall(r"\w+|[^\w\s]", json.loads(line)["text"])) for line in lines]
    return np.minimum(np.asarray(found) + 2, most)


def to_the_longest(lengths: np.ndarray, batch: int) -> Iterator[Rows]:
    """Batches in the given order, each as long as its longest text."""
    for first in range(0, len(lengths), batch):
        part = lengths[first : first + batch]
        yield len(part), int(part.max())


def in_buckets(lengths: np.ndarray) -> Iterator[Rows]:
    """Batches of one of the official buckets, each as long as its longest text."""
    numbers = np.searchsorted(BOUNDS, lengths, side="right") - 1
    for number, batch in enumerate(OF_BUCKET):
        yield from to_the_longest(lengths[numbers == number], batch)


def packed(lengths: np.ndarray, rows: Sequence[int], segments: int) -> Iterator[Rows]:
    """Each text in the shortest of these rows that it fits, packed; the lengths ascend."""
    numbers = np.searchsorted(rows, lengths)
    for number, positions in enumerate(rows):
        part = lengths[numbers == number]
        if len(part):
            plan = packing_plan.Plan(
                [part], ["of this benchmark"], None, seed=0, rows=1, length=positions,
                segments=segments, block=4096,
            )  # fmt: skip
            yield plan.epoch_rows(0), positions


def doubled(most: int) -> list[int]:
    """512 and its doubles below `most`, and `most`."""
    return [size for size in (512 << n for n in range(16)) if size < most] + [most]


def costs(rows: Iterator[Rows], lengths: np.ndarray, width: int) -> tuple[float, float]:
    """(share of padding, products over those of the texts alone)."""
    counts, positions = np.asarray(list(rows), np.int64).T
    places = int(counts @ positions)
    products = 24 * width * places + 4 * int(counts @ positions**2)
    alone = 24 * width * int(lengths.sum()) + 4 * int(lengths @ lengths)
    return 1 - int(lengths.sum()) / places, products / alone


def main(_: list[str]) -> None:
    """Prints a line for each way to make rows."""
    most, segments = _LENGTH.value, _SEGMENTS.value
    lengths = lengths_of(ARTICLES, most)
    shuffled = np.random.default_rng(0).permutation(lengths)
    tenths = np.percentile(lengths, [10, 50, 90, 99]).astype(int).tolist()
    print(f"{len(lengths):,} articles, {lengths.mean():.0f} tokens (10/50/90/99 %: {tenths})")
    ways = {
        f"one text a row of {most:,}": to_the_longest(np.full_like(lengths, most), 1),
        f"{_BATCH.value} in any order, to the longest": to_the_longest(shuffled, _BATCH.value),
        "buckets by length, to the longest": in_buckets(shuffled),
        f"packed, rows of {most:,}": packed(shuffled, [most], segments),
        f"packed, rows of 1,024 and {most:,}": packed(shuffled, [1024, most], segments),
        f"packed, rows of 512, 1,024 .. {most:,}": packed(shuffled, doubled(most), segments),
    }
    print(f"{'rows':<36}{'padding':>9}{'products':>10}")
    for name, rows in ways.items():
        padding, products = costs(rows, lengths, _WIDTH.value)
        print(f"{name:<36}{100 * padding:>7.1f} %{products:>10.2f}", flush=True)


if __name__ == "__main__":
    code_hash.announce("length_buckets")
    app.run(main)
