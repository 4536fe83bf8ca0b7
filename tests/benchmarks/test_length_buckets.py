"""Padding and products of rows, on lengths whose figures are known."""

import gzip
import json

import numpy as np
import pytest

from benchmarks import length_buckets

LENGTHS = np.asarray([100, 100, 400, 600])
WIDTH = 10


def products(*rows: tuple[int, int]) -> int:
    return sum(count * (24 * WIDTH * size + 4 * size**2) for count, size in rows)


ALONE = products((2, 100), (1, 400), (1, 600))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (length_buckets.to_the_longest(LENGTHS, 2), [(2, 100), (2, 600)]),
        (length_buckets.in_buckets(LENGTHS), [(3, 400), (1, 600)]),
        (length_buckets.packed(LENGTHS, [600], 4), [(2, 600)]),
        (length_buckets.packed(LENGTHS, [400, 1000], 4), [(2, 400), (1, 1000)]),
    ],
)
def test_rows_and_what_they_cost(rows, expected):
    found = list(rows)
    assert found == expected
    padding, cost = length_buckets.costs(iter(found), LENGTHS, WIDTH)
    assert padding == pytest.approx(1 - 1200 / sum(count * size for count, size in expected))
    assert cost == pytest.approx(products(*expected) / ALONE)


def test_row_lengths_double_up_to_the_longest():
    assert length_buckets.doubled(8192) == [512, 1024, 2048, 4096, 8192]
    assert length_buckets.doubled(512) == [512]


def test_lengths_are_words_marks_and_two_specials(tmp_path):
    file = tmp_path / "articles.jsonl.gz"
    with gzip.open(file, "wt", encoding="utf-8") as out:
        for text in ("A word, and more.", "x " * 50):
            out.write(json.dumps({"text": text}) + "\n")
    assert length_buckets.lengths_of(file, 20).tolist() == [8, 20]
