"""Sweep files: what they say, and every mistake with the place where it was made."""

import pytest

from t5x_style.configuration.gin_reader import GinError
from t5x_style.sweeps.axes import UNSET
from tests.kits.toys.sweep_house import HEAD, SWEEP, make_sweep_house  # noqa: F401  a fixture


def test_what_a_file_says(sweep_house):
    sweep = sweep_house.load(
        HEAD
        + """  seeds = (3, 4)
  trials = 5
  minutes = 2.5
  pruner = 'median'
  pruner_options = {'warm_up': 2}
STEPS = 9
tuned/FAILS = False
toy_training.learn.nan_at = 2
RATES = (1e-4, 1e-1)
RATE/sweep.Axis.log_uniform = %RATES
kind/sweep.Axis:
  macro = 'tuned/KIND'
  values = ['plain', 'fancy']
  default = 'plain'
"""
    )
    assert (sweep.stage, sweep.metric) == ("tuned", "eval/dev/score")
    assert (sweep.seeds, sweep.trials, sweep.sampler) == ((3, 4), 5, "quasi_random")
    assert sweep.limits.minutes == 2.5 and sweep.pruner == ("median", {"warm_up": 2})
    assert dict(sweep.settings) == {
        "STEPS": "9",
        "tuned/FAILS": "False",
        "toy_training.learn.nan_at": "2",
    }
    rate, kind = sweep.axes
    assert (rate.macro, rate.low, rate.high, rate.default) == ("RATE", 1e-4, 1e-1, UNSET)
    assert (kind.macro, kind.values, kind.default) == ("tuned/KIND", ("plain", "fancy"), "plain")
    assert str(sweep.folder) == "runs/mine" and sweep.places["RATE"] == "mine.gin:13"


def test_the_command_line_wins_and_names_the_folder(sweep_house):
    sweep = sweep_house.load(SWEEP + "STEPS = 9\n", STEPS=4, SWEEP_DIR="elsewhere/mine")
    assert dict(sweep.settings) == {"STEPS": "4"} and str(sweep.folder) == "elsewhere/mine"


AXIS = "RATE/sweep.Axis.values = [0.1, 0.01, 0.001]\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (AXIS, "", "no axis: bind at least one"),
        ("values = [0.1, 0.01, 0.001]", "values = []", "values: expected at least one"),
        ("[0.1, 0.01, 0.001]", "[0.1, 0.1]", "mine.gin:5: axis RATE: values: 0.1 is there twice"),
        ("values = [0.1, 0.01, 0.001]", "log_uniform = (0, 1)", "numbers above 0, which have"),
        ("values = [0.1, 0.01, 0.001]", "log_uniform = (-1.0, 1)", "numbers above 0, which have"),
        ("values = [0.1, 0.01, 0.001]", "uniform = (1, 0)", "low below high, found .1, 0."),
        ("values = [0.1, 0.01, 0.001]", "uniform = (1, 2, 3)", "two numbers, found .1, 2, 3."),
        ("values = [0.1, 0.01, 0.001]", "uniform = ('a', 2)", "two numbers, found"),
        ("values = [0.1, 0.01, 0.001]", "uniform = (0, 1e999)", "expected two finite numbers"),
        ("values = [0.1, 0.01, 0.001]", "integer = (1.5, 2)", "expected two integers"),
        ("sweep.Axis.values", "sweep.Axis.valeus", "no parameter 'valeus'; did you mean values"),
        (AXIS, "RATE/sweep.Axis.macro = 'X'\n", "expected one of values, uniform.*found none"),
        (AXIS, AXIS + "RATE/sweep.Axis.uniform = (0, 1)\n", "found values and uniform"),
        (AXIS, AXIS + "b/sweep.Axis:\n  macro = 'RATE'\n  values = [1]\n", "RATE and b clash"),
        (AXIS, AXIS + "RATE = 0.1\n", "mine.gin:6: RATE is set, and varied by axis RATE"),
        (AXIS, "sweep.Axis.values = [1]\n", "an axis has a name"),
        (AXIS, AXIS + "RATE/sweep.Axis.when = {'X': [1]}\n", "when: no axis 'X'"),
        (AXIS, AXIS + "RATE/sweep.Axis.when = {'X': 1}\n", "when: expected"),
        (AXIS, AXIS + "RATE/sweep.Axis.default = 7\n", "default: 7 is none of its values"),
        (AXIS, AXIS + "RUN_DIR = 'x'\n", "RUN_DIR: each trial has its own, below"),
        (AXIS, AXIS + "STORE/sweep.Axis.values = ['a', 'b']\n", "STORE says where results are"),
        (AXIS, AXIS + "sweep.run.seed_macro = ['a']\n", "seed_macro: expected NAME"),
        (AXIS, AXIS + "RATE/sweep.Axis.when = {1: [2]}\n", "when: expected"),
        (
            "values = [0.1, 0.01, 0.001]",
            f"uniform = (0, {10**400})",
            "uniform: expected .low, high., two numbers",
        ),
        (AXIS, AXIS + "SEED = 4\nsweep.run.seeds = [1]\n", "SEED is set, and by sweep.run.seeds"),
        ("'recipe.gin'", "'quikstart'", "no recipe 'quikstart'; did you mean quickstart"),
        ("  recipe = 'recipe.gin'\n", "", "sweep.run.recipe is not set"),
        ("  metric = 'tuned/eval/dev/score'\n", "", "sweep.run.metric is not set"),
        ("'tuned/eval/dev/score'", "'score'", "metric: expected 'STAGE/METRIC'"),
        ("'tuned/eval/dev/score'", "'tuned/eval/dev/loss'", "is a small tuned/eval/dev/loss good"),
        (AXIS, AXIS + "sweep.run.seeds = [1, 1]\n", "seeds: expected a list of different integers"),
        (AXIS, AXIS + "sweep.run.seeds = [True]\n", "seeds: expected a list of different integers"),
        (AXIS, AXIS + "sweep.run.workers = 0\n", "mine.gin:6: workers: expected a number above 0"),
        (AXIS, AXIS + "sweep.run.wokers = 2\n", "no parameter 'wokers'; did you mean workers"),
        (AXIS, AXIS + "sweep.run.trials = 2\n", "grid runs all its points"),
        (AXIS, AXIS + "sweep.run.points = [{'RAET': 0.1}]\n", "points: no axis 'RAET'; did you"),
        (AXIS, AXIS + "sweep.run.points = [{'RATE': 1}]\n", "points: 1 is no value of axis RATE"),
        (AXIS, AXIS + "sweep.run.points = [0.1]\n", "points: expected a list of {AXIS: value}"),
        (AXIS, AXIS + "sweep.run.sampler = 'points'\n", "sweep.run.points is not set"),
        (AXIS, AXIS + "sweep.run.sampler = 'tpe'\n", "sweep.run.trials is not set"),
        ("values = [0.1, 0.01, 0.001]", "uniform = (0, 1)", "sweep.run.trials is not set"),
        (
            AXIS,
            "RATE/sweep.Axis.uniform = (0, 1)\nsweep.run.sampler = 'grid'\n",
            "a grid has lists of values",
        ),
        (
            AXIS,
            AXIS + "sweep.run.minutes = 3\nsweep.run.trial_minutes = 5\n",
            "sweep.run.minutes = 3 is less than one trial may use",
        ),
        (
            AXIS,
            AXIS + "sweep.run.steps = 3\nsweep.run.trial_steps = 5\n",
            "sweep.run.steps = 3 is less than one trial may use",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(sweep_house, old, new, message):
    assert old in SWEEP
    with pytest.raises(GinError, match=message):
        sweep_house.load(SWEEP.replace(old, new))


def test_conditions_may_not_lead_in_a_circle(sweep_house):
    text = HEAD + "".join(
        f"{one}/sweep.Axis:\n  values = [1, 2]\n  when = {{'{other}': [1]}}\n"
        for one, other in (("A", "B"), ("B", "C"), ("C", "A"))
    )
    with pytest.raises(GinError, match="`when` forms a cycle: "):
        sweep_house.load(text)


def test_all_mistakes_are_said_at_once(sweep_house):
    text = SWEEP.replace("[0.1", "[0.01") + "sweep.run.workers = 0\nsweep.run.at = 'first'\n"
    with pytest.raises(GinError) as caught:
        sweep_house.load(text)
    assert len(caught.value.args) == 3
