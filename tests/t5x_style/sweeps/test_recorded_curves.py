"""Pruners on recorded curves of ours: what they save, and whether they keep the best.

tests/golden/sweep_curves.json has the trials of `kennel sweep quickstart BUDGET=0.2` that
docs/results/sweeps.md describes: development MRR@10 at eight evaluations each.
"""

import statistics

import pytest

from benchmarks import pruning as benchmark
from t5x_style.configuration.gin_reader import REPOSITORY
from t5x_style.sweeps import pruning

pytest.importorskip("optuna", reason="the extra `sweeps` is not installed")
CURVES = str(REPOSITORY / "tests/golden/sweep_curves.json")


@pytest.mark.parametrize("orders", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_the_median_saves_half_of_the_steps_and_keeps_the_best(orders):
    curves = benchmark.read(CURVES, "all")
    found = benchmark.in_random_orders(pruning.pruner("median"), curves, orders, seed=0)
    assert statistics.median(one.saved for one in found) >= 0.5
    assert sum(one.keeps_best for one in found) >= 0.95 * orders
