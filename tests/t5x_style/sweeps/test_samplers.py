"""Samplers: a suggestion follows from the results alone, and each value is one of its axis."""

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5x_style.sweeps import quasi_random, samplers
from t5x_style.sweeps.axes import Axis, is_among

pytest.importorskip("optuna", reason="the extra `sweeps` is not installed")

AXES = [
    Axis("KIND", "KIND", "values", values=(None, {"a": 1}, [1, 2])),
    Axis("RATE", "RATE", "log_uniform", low=1e-5, high=1e-2, when={"KIND": (None,)}),
    Axis("LAYERS", "LAYERS", "integer", low=1, high=9),
    Axis("WIDTH", "WIDTH", "log_integer", low=8, high=512),
    Axis("DROPOUT", "DROPOUT", "uniform", low=0.0, high=0.5),
]
COUNT = 14


def results(score, axes=AXES, count=COUNT):
    points = [quasi_random.points(axes, number, 3) for number in range(count)]
    return [(values, score(values)) for values in points]


def layers(values):
    return values["LAYERS"] / 9


def suggest(before, number=COUNT, seed=1, larger=True, axes=AXES):
    return samplers.suggest("tpe", axes, before, number, seed, larger)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.none() | st.floats(0, 1), max_size=COUNT),
    st.integers(0, 500),
    st.integers(0, 2**20),
    st.booleans(),
)
def test_a_suggestion_is_pure_and_inside_of_the_axes(scores, number, seed, larger):
    points = [quasi_random.points(AXES, place, 3) for place in range(len(scores))]
    before = list(zip(points, scores, strict=True))
    found = suggest(before, number, seed, larger)
    random.seed(number + 1)
    assert suggest(before, number, seed, larger) == found
    assert ("RATE" in found) == (found["KIND"] is None)
    assert is_among(found["KIND"], AXES[0].values)
    assert type(found["LAYERS"]) is int and 1 <= found["LAYERS"] <= 9
    assert type(found["WIDTH"]) is int and 8 <= found["WIDTH"] <= 512
    assert type(found["DROPOUT"]) is float and 0 <= found["DROPOUT"] <= 0.5
    if "RATE" in found:
        assert type(found["RATE"]) is float and 1e-5 <= found["RATE"] <= 1e-2


CODE = """
from t5x_style.sweeps import quasi_random, samplers
from t5x_style.sweeps.axes import Axis
axes = [Axis("A", "A", "values", values=(1, 2))]
axes += [Axis(n, n, "uniform", low=0.0, high=1.0, when={"A": (1,)}) for n in ("B", "C", "D")]
points = [quasi_random.points(axes, number, 0) for number in range(12)]
before = [(values, number % 5 / 5) for number, values in enumerate(points)]
print([samplers.suggest("tpe", axes, before, number, 1, True) for number in range(12, 15)])
"""


def test_hashes_of_strings_decide_nothing():
    found = {
        subprocess.run(
            [sys.executable, "-c", CODE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1 and found.pop().strip()


def test_numbers_give_different_suggestions():
    before = results(layers)
    assert len({repr(suggest(before, number)) for number in range(COUNT, COUNT + 5)}) > 1


@pytest.mark.parametrize("larger", [True, False])
def test_it_prefers_what_did_well(larger):
    before = results(layers, count=40)
    found = [suggest(before, number, larger=larger)["LAYERS"] for number in range(40, 52)]
    mean = sum(found) / len(found)
    assert mean > 6 if larger else mean < 4


def test_failed_and_foreign_results_change_nothing():
    before = results(layers)
    good = before[0][0]
    foreign = [
        (good, None),
        ({**good, "LAYERS": 99}, 0.9),
        ({**good, "KIND": "gone"}, 0.9),
        ({"KIND": "gone"}, 0.9),
    ]
    assert suggest([*foreign, *before]) == suggest(before)


def test_few_results_give_quasi_random_points():
    before = results(layers, count=samplers.FIRST - 1)
    assert suggest(before, 7, 5) == quasi_random.points(AXES, 7, 5)
