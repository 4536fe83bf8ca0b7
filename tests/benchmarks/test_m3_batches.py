"""The search for the largest batch, without a compiler."""

import sys

import pytest

from benchmarks import m3_batches
from benchmarks.m3_batches import Tried

CURVES = {  # number / limit -> share of the memory
    "linear": lambda part: part,
    "a constant": lambda part: 0.5 + 0.5 * part,
    "steps": lambda part: (int(8 * part) + 1) / 8,
    "flat, then linear": lambda part: max(0.3, part),
    "flat, then more than all": lambda part: 0.4 if part <= 1 else 2.5,
    "quadratic": lambda part: part**2,
}


@pytest.mark.parametrize("start", [1, 7, 100, 1000])
@pytest.mark.parametrize("limit", [0, 1, 13, 100, 511, 1024])
@pytest.mark.parametrize("curve", CURVES)
def test_the_search_ends_within_a_sixteenth(start, limit, curve):
    """Memory that is linear in the number needs few tries, and any ends."""
    tried = []

    def try_(number: int) -> Tried:
        tried.append(number)
        share = CURVES[curve](number / (limit + 0.5))
        share = min(share, 1.0) if number <= limit else max(share, 1.001)
        return Tried(number <= limit, 16 * share, 16)

    found = m3_batches.search(try_, start, most=1024)
    assert len(tried) == len(set(tried)) <= (9 if curve == "linear" else 26)
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
