"""Quasi-random points: a function of their number, even, and undisturbed by further axes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import qmc

from t5x_style.sweeps import quasi_random
from t5x_style.sweeps.axes import Axis


def uniform(count):
    return [Axis(f"A{n}", f"A{n}", "uniform", low=0.0, high=1.0) for n in range(count)]


def table(axes, count, seed=0):
    found = [quasi_random.points(axes, number, seed) for number in range(count)]
    return np.array([[one[axis.name] for axis in axes] for one in found])


@pytest.mark.parametrize("dimensions", [1, 2, 5, 12])
def test_points_are_more_even_than_random_ones(dimensions):
    found = table(uniform(dimensions), 128)
    chance = np.random.default_rng(0)
    random = [qmc.discrepancy(chance.random(found.shape)) for _ in range(20)]
    assert qmc.discrepancy(found) < min(random)


def test_each_axis_alone_is_stratified():
    found = table(uniform(3), 30)
    for place, base in enumerate((2, 3, 5)):
        cells = np.floor(found[: base * (30 // base), place] * base)
        assert set(np.bincount(cells.astype(int))) == {30 // base}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 200), st.integers(0, 2**31))
def test_an_axis_that_is_added_last_changes_no_other(count, number, seed):
    before = quasi_random.points(uniform(count), number, seed)
    after = quasi_random.points(uniform(count + 1), number, seed)
    assert before.items() <= after.items()
    changed = uniform(count)
    changed[-1] = Axis(changed[-1].name, "X", "values", values=("a", "b", "c"))
    others = quasi_random.points(changed, number, seed)
    assert {k: v for k, v in before.items() if k != changed[-1].name} == {
        k: v for k, v in others.items() if k != changed[-1].name
    }


def test_a_seed_gives_other_points_and_a_condition_leaves_an_axis_out():
    axes = [
        Axis("KIND", "KIND", "values", values=("a", "b")),
        Axis("RATE", "RATE", "log_uniform", low=1e-4, high=1e-2, when={"KIND": ("b",)}),
    ]
    found = [quasi_random.points(axes, number, 7) for number in range(40)]
    assert found == [quasi_random.points(axes, number, 7) for number in range(40)]
    assert found != [quasi_random.points(axes, number, 8) for number in range(40)]
    for one in found:
        assert ("RATE" in one) == (one["KIND"] == "b")
        assert 1e-4 <= one.get("RATE", 1e-3) <= 1e-2
    assert sum("RATE" in one for one in found) == 20
