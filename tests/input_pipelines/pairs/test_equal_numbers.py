"""Equal numbers of two lists are those of the table of all pairs, in less memory."""

import tracemalloc

import numpy as np
import pytest

from input_pipelines.pairs.equal_numbers import equal


@pytest.mark.parametrize("seed", range(20))
def test_they_are_those_of_the_table(seed):
    rng = np.random.default_rng(seed)
    left, right = (rng.integers(-1, 12, rng.integers(0, 30)) for _ in range(2))
    i, j = equal(left, right)
    table = left[:, None] == right
    assert list(zip(i, j, strict=True)) == list(zip(*np.nonzero(table), strict=True))


def test_a_batch_of_the_papers_size_makes_no_table():
    numbers = np.random.default_rng(0).permutation(65_536)
    tracemalloc.start()
    i, j = equal(numbers, numbers[::-1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(numbers[i], numbers[::-1][j])
    assert len(i) == len(numbers) and peak < 64 * 1024**2
