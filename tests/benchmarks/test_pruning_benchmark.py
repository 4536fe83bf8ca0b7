"""benchmarks.pruning: what pruners save on made curves, and how a file of curves is read."""

import json
import math
import random

import pytest

from benchmarks import pruning as benchmark
from t5x_style.sweeps import pruning


def made(seed, count):
    """Noisy curves with other rates and plateaus, which cross early; in steps of 30."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        top, rate = chance.uniform(0.1, 0.8), chance.uniform(1, 9)
        noise, evaluations = chance.uniform(0.01, 0.03), chance.randint(5, 10)
        found.append(
            tuple(
                (30 * n, top * (1 - math.exp(-rate * n / 10)) + chance.gauss(0, noise))
                for n in range(1, evaluations + 1)
            )
        )
    return found


def written(path, curves):
    named = [{"name": f"t{place}", "curve": curve} for place, curve in enumerate(curves)]
    path.write_text(json.dumps({"metric": "MRR@10", "curves": named}))
    return str(path)


def test_without_a_pruner_nothing_is_saved_and_the_best_is_kept():
    outcomes = benchmark.in_random_orders(pruning.pruner("none"), made(0, 9), 3, 0)
    assert outcomes == [benchmark.Outcome(0.0, True, 0.0)] * 3


@pytest.mark.parametrize("skipped", [0, 1])
def test_the_median_saves_steps_and_keeps_the_best_of_most_orders(skipped):
    pytest.importorskip("optuna", reason="the extra `sweeps` is not installed")
    curves = made(0, 40)
    pruner = benchmark.made("median", {}, skipped, curves)
    outcomes = benchmark.in_random_orders(pruner, curves, 5, 0)
    assert outcomes == benchmark.in_random_orders(pruner, curves, 5, 0)
    assert min(one.saved for one in outcomes) > 0.25
    assert sum(one.keeps_best for one in outcomes) >= 4
    assert all((one.regret == 0) == one.keeps_best for one in outcomes)


def test_halves_of_a_file_make_the_whole(tmp_path):
    curves = made(1, 5)
    path = written(tmp_path / "curves.json", curves)
    halves = [benchmark.read(path, half) for half in ("first", "second")]
    assert [len(half) for half in halves] == [2, 3]
    assert halves[0] + halves[1] == benchmark.read(path, "all") == curves


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ([[[2, 0.1], [1, 0.2]]], "t0: expected rising steps"),
        ([[]], "t0: expected rising steps"),
        ([[[1, math.nan]]], "t0: expected finite values"),
        ([[["x", 0.1]]], 'expected {"curves"'),
        ([], "no curve in --half=all"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, curves, message):
    with pytest.raises(ValueError, match=message):
        benchmark.read(written(tmp_path / "curves.json", curves), "all")
