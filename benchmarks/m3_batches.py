"""The largest batch on a device with which M3's training of pairs at the paper's size fits a slice.

    TPU_SKIP_MDS_QUERY=1 JAX_PLATFORMS=cpu python -m benchmarks.m3_batches

Stage `pairs` of recipes/m3_paper.gin, one text a row, encoded at once and with a row of queries and
one of passages at a time (GradCache, ENCODE_CHUNKS). Each try is a run of `kennel preflight`,
minutes of processor time; tries are printed as they end. A batch is found to within a sixteenth,
and --most ends the search.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from absl import app, flags

from benchmarks import code_hash, corpora
from t5x_style.preflight import topology

_TOPOLOGY = flags.DEFINE_string("slice", "v5e:8x8", "A slice, see docs/tpu.md.")
_LENGTHS = flags.DEFINE_list("lengths", ["1024", "4096", "8192"], "Tokens of a passage.")
_STARTS = flags.DEFINE_list("starts", ["128", "32", "14"], "Pairs to try first, for each length.")
_SPLIT_STARTS = flags.DEFINE_list("split_starts", ["855", "258", "130"], "Likewise, row by row.")
_MOST = flags.DEFINE_integer("most", 1024, "Pairs on a device to try, at most.", lower_bound=1)

RECIPE = "gin_configs/recipes/m3_paper.gin"
# Length -> pairs on an A100 with 80 GB, without and with sub-batches (arXiv:2402.03216, appendix).
PUBLISHED = {1024: (262, 855), 4096: (25, 258), 8192: (6, 130)}


class Tried(NamedTuple):
    """What preflight says: whether it fits, GiB that a device needs, and has."""

    fits: bool
    needed: float
    limit: float


class Found(NamedTuple):
    """The ends of a search: the largest number that fits, the smallest that does not, if any."""

    fits: int
    fails: int | None


def search(try_: Callable[[int], Tried], start: int, most: int) -> Found:
    """The largest number up to `most` that fits, to within a sixteenth of it; 0 if none does.

    Memory is nearly linear in the number: a line between two sizes says where to look. Where it is
    not, and two tries in turn do not halve what is left, the middle is next; double the number, as
    long as all fit.
    """
    sizes = {0: 0.0}  # number -> share of the memory that it needs
    low, high, number, slow = 0, None, min(start, most), 0
    while True:
        one = try_(number)
        sizes[number] = one.needed / one.limit
        left = None if high is None else high - low
        low, high = (number, high) if one.fits else (low, number)
        step = max(1, low // 16)
        if low == most or (high is not None and high - low <= step):
            return Found(low, high)
        if high is None:
            least = 2 * low if slow > 1 else low + step
            number = min(max(_crossing(sizes, 0, low, 4 * low), least), 4 * low, most)
            slow = slow + 1 if number < 2 * low else 0
            continue
        slow = 0 if left is None or 2 * (high - low) <= left else slow + 1
        middle = (low + high) // 2
        number = middle if slow > 1 else _crossing(sizes, low, high, middle)
        number = min(max(number, low + step), high - step) if high - low > 2 * step else middle


def _crossing(sizes: Mapping[int, float], one: int, other: int, otherwise: int) -> int:
    """Where a line through two sizes reaches 1; `otherwise` if it does not rise."""
    rise = sizes[other] - sizes[one]
    return int(one + (1 - sizes[one]) * (other - one) / rise) if rise > 0 else otherwise


def command(slice_: str, devices: int, length: int, pairs: int, split: bool) -> list[str]:
    """Preflight with `pairs` on each device."""
    rows = pairs * devices
    macros = {
        "PAIRS": rows,
        "PAIRS_QUERY_ROWS": rows,
        "PAIRS_PASSAGE_ROWS": rows,
        "PAIRS_CHUNKS": pairs if split else 1,
        "PASSAGE_LENGTH": length,
        "QUERY_ROW_LENGTH": 512,
        "QUERY_SEGMENTS": 1,
        "PASSAGE_SEGMENTS": 1,
    }
    return [
        *(sys.executable, "-m", "t5x_style.preflight", f"--gin_file={RECIPE}"),
        *("--stage=pairs", f"--topology={slice_}", "--json"),
        *(f"--gin.{name}={value}" for name, value in macros.items()),
    ]


def tried(words: list[str]) -> Tried:
    """Runs preflight.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run(words, cwd=corpora.ROOT, capture_output=True, text=True)
    line = done.stdout.strip().rpartition("\n")[2]
    if not line.startswith("{"):
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-4000:]}")
    stage = json.loads(line)["stages"]["pairs"]
    memory = stage["hbm_bytes"]
    return Tried(stage["fits"], memory["total"] / 2**30, memory["limit"] / 2**30)


def main(_: list[str]) -> None:
    """Prints the tries, and a line for each length and way to encode."""
    slice_, lengths = _TOPOLOGY.value, [int(one) for one in _LENGTHS.value]
    devices = topology.parse(slice_).all_devices
    found: dict[tuple[int, bool], Found] = {}
    for split, starts in ((False, _STARTS.value), (True, _SPLIT_STARTS.value)):
        for length, start in zip(lengths, map(int, starts), strict=True):

            def try_(pairs: int, length: int = length, split: bool = split) -> Tried:
                one = tried(command(slice_, devices, length, pairs, split))
                said = "fits" if one.fits else "does not fit"
                print(
                    f"{slice_} {length} {split=} {pairs}: {one.needed:.2f} GiB, {said}", flush=True
                )
                return one

            found[length, split] = search(try_, start, _MOST.value)
    print(f"\n{'length':>7}  {'encoded':<14}{'fits':>6}{'does not':>10}{'A100-80G':>10}")
    for (length, split), one in found.items():
        how = "a row at a time" if split else "at once"
        published = PUBLISHED.get(length, ("",) * 2)[split]
        print(f"{length:>7}  {how:<15}{one.fits:>5}{one.fails or '':>10}{published:>10}")


if __name__ == "__main__":
    code_hash.announce("m3_batches")
    app.run(main)
