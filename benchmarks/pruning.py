"""How many steps a pruner saves, and how often it keeps the best: recorded curves in random orders.

    python -m benchmarks.pruning --curves=curves.json [--orders=100] [--half=second]

Of a file {"metric": ..., "curves": [{"name": ..., "curve": [[step, value], ...]}, ...]}, of trials
that ran to their end, larger values being better. Choose options on one half of the curves and
report the other. Regret: the best last value of all trials, less that of the kept ones.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import code_hash
from t5x_style.sweeps import pruning
from t5x_style.sweeps.trials import Curve

_CURVES = flags.DEFINE_string("curves", None, "JSON file of recorded curves.", required=True)
_ORDERS = flags.DEFINE_integer("orders", 100, "Random orders of the trials.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the orders.")
_HALF = flags.DEFINE_enum("half", "all", ["first", "second", "all"], "Which of the curves.")

# (pruner, options, evaluations before the first judgement)
SETTINGS: Sequence[tuple[str, Mapping[str, Any], int]] = (
    ("none", {}, 0),
    ("median", {}, 0),
    ("median", {}, 1),
    ("median", {"keep": 0.25}, 0),
    ("median", {"keep": 0.25}, 1),
    ("halving", {}, 0),
    ("halving", {}, 1),
    ("halving", {"factor": 4}, 0),
    ("halving", {"factor": 4}, 1),
)


@dataclass(frozen=True)
class Outcome:
    """What a pruner does to the trials of one order.

    Attributes:
      saved: share of the steps of all trials.
      keeps_best: whether a trial with the best last value runs to its end.
      regret: infinite where no trial runs to its end.
    """

    saved: float
    keeps_best: bool
    regret: float


def read(path: str, half: str) -> list[Curve]:
    """The curves of a file, or of the first or second half of its list.

    Raises:
      ValueError: the file has another form, or no curve.
    """
    where = f"--curves={path}"
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))["curves"]
        curves = [tuple((int(step), float(value)) for step, value in one["curve"]) for one in found]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'{where}: expected {{"curves": [{{"curve": [[step, value], ...]}}]}}: {error!r}'
        ) from error
    for one, curve in zip(found, curves, strict=True):
        steps = [step for step, _ in curve]
        if not curve or steps != sorted(set(steps)) or steps[0] < 0:
            raise ValueError(f"{where}: {one.get('name')}: expected rising steps, found {steps}")
        if not all(math.isfinite(value) for _, value in curve):
            raise ValueError(f"{where}: {one.get('name')}: expected finite values, found {curve}")
    middle = len(curves) // 2
    chosen = {"first": curves[:middle], "second": curves[middle:], "all": curves}[half]
    if not chosen:
        raise ValueError(f"{where}: no curve in --half={half}; the file has {len(curves)}")
    return chosen


def made(name: str, options: Mapping[str, Any], skipped: int, curves: Sequence[Curve]) -> Any:
    """The pruner of a setting, its first step a multiple of the usual distance of evaluations."""
    if not skipped:
        return pruning.pruner(name, options)
    apart = statistics.median_low(curve[0][0] for curve in curves)
    return pruning.pruner(name, {**options, "first_step": max(apart, 1) * (skipped + 1)})


def replay(pruner: pruning.Pruner, curves: Sequence[Curve]) -> Outcome:
    """Runs trials one after the other, as a sweep with one worker and one seed does."""
    before: list[Curve] = []
    ends: list[float] = []  # last values of trials that are kept
    for curve in curves:
        step = pruning.pruned_at(pruner, tuple(before), curve, larger_is_better=True)
        if step is None:
            ends.append(curve[-1][1])
        before.append(tuple(one for one in curve if step is None or one[0] <= step))
    best = max(curve[-1][1] for curve in curves)
    total, used = (sum(one[-1][0] for one in some) for some in (curves, before))
    regret = best - max(ends, default=-math.inf)
    return Outcome(1 - used / total if total else 0.0, best in ends, regret)


def in_random_orders(
    pruner: pruning.Pruner, curves: Sequence[Curve], orders: int, seed: int
) -> list[Outcome]:
    """An outcome of each order; the orders are the same for each pruner."""
    chance = np.random.default_rng(seed)
    return [
        replay(pruner, [curves[place] for place in chance.permutation(len(curves))])
        for _ in range(orders)
    ]


def line(outcomes: Sequence[Outcome]) -> str:
    """A line of the table, without the pruner."""
    saved = [one.saved for one in outcomes]
    kept = sum(one.keeps_best for one in outcomes)
    regrets = [one.regret for one in outcomes]
    return (
        f"{statistics.median(saved):>10.1%}{min(saved):>10.1%}{kept:>7} of {len(outcomes):<5}"
        f"{statistics.fmean(regrets):>10.4f}{max(regrets):>10.4f}"
    )


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    code_hash.announce("pruning")
    curves = read(_CURVES.value, _HALF.value)
    print(f"{len(curves)} curves ({_HALF.value}), {_ORDERS.value} orders, seed {_SEED.value}")
    print(f"{'':44}{'steps saved':>16}{'best is':>15}{'regret':>17}")
    print(f"{'pruner':40}{'median':>10}{'worst':>10}{'kept':>12}{'mean':>14}{'worst':>10}")
    for name, options, skipped in SETTINGS:
        pruner = made(name, options, skipped, curves)
        shown = " ".join([name, *(f"{key}={value:g}" for key, value in pruner.options)])
        print(f"{shown:40}{line(in_random_orders(pruner, curves, _ORDERS.value, _SEED.value))}")


if __name__ == "__main__":
    app.run(main)
