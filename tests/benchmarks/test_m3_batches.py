"""The search for the largest batch, without a compiler."""

import sys

import pytest

from benchmarks import m3_batches


@pytest.mark.parametrize("start", [1, 7, 100, 1000])
@pytest.mark.parametrize("limit", [0, 1, 13, 100, 511, 1024])
def test_the_search_ends_within_a_sixteenth(start, limit):
    tried = []

    def fits(number):
        tried.append(number)
        return number <= limit

    found = m3_batches.search(fits, start, most=1024)
    assert len(tried) == len(set(tried)) <= 16
    assert found.fits <= limit and found.fits in (0, *tried)
    if limit == 1024:
        assert found == (1024, None)
    else:
        assert found.fails > limit and found.fails in tried
        assert found.fails - found.fits <= max(1, found.fits // 16)


def test_the_command_has_the_pairs_of_all_devices():
    words = m3_batches.command("v5e:8x8", 64, 8192, pairs=3, split=True)
    assert {"--gin.PAIRS=192", "--gin.PAIRS_CHUNKS=3", "--gin.PASSAGE_LENGTH=8192"} <= set(words)
    assert "--gin.PAIRS_CHUNKS=1" in m3_batches.command("v5e:8x8", 64, 8192, pairs=3, split=False)


def test_a_preflight_that_fails_ends_the_benchmark():
    with pytest.raises(SystemExit, match="failed"):
        m3_batches.tried([sys.executable, "-c", "raise SystemExit('no')"])
