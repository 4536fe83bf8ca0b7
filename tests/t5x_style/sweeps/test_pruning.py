"""Pruning: decisions follow from curves alone, and never change as more of a curve is seen."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5x_style.sweeps import pruning, settling
from t5x_style.sweeps.trials import Configuration, Record, Trial

pytest.importorskip("optuna", reason="the extra `sweeps` is not installed")

PRUNERS = [pruning.pruner(one, {"first_step": 2}) for one in ("median", "halving")]
VALUES = st.floats(0, 1).map(lambda x: round(x, 3))
CURVES = st.lists(VALUES, min_size=1, max_size=8).map(
    lambda values: tuple((2 * place, value) for place, value in enumerate(values))
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PRUNERS), st.lists(CURVES, max_size=9), CURVES, st.booleans())
def test_a_decision_is_the_same_for_more_of_the_curve(pruner, before, own, larger):
    before = tuple(before)
    whole = pruning.pruned_at(pruner, before, own, larger)
    pruning.pruned_at.cache_clear()
    for length in range(len(own) + 1):
        found = pruning.pruned_at(pruner, before, own[:length], larger)
        reached = length and whole is not None and own[length - 1][0] >= whole
        assert found == (whole if reached else None)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PRUNERS), st.lists(CURVES, max_size=9), CURVES, st.booleans())
def test_what_others_have_after_the_step_changes_nothing(pruner, before, own, larger):
    last = own[-1][0]
    cut = tuple(tuple(point for point in curve if point[0] <= last) for curve in before)
    found = [pruning.pruned_at(pruner, tuple(one), own, larger) for one in (before, cut)]
    assert found[0] == found[1]


def test_what_lags_is_pruned_and_what_leads_is_not():
    good = tuple((step, 0.1 * step) for step in range(8))
    bad = tuple((step, 0.01 * step) for step in range(8))
    for pruner in PRUNERS:
        assert pruning.pruned_at(pruner, (good,) * 6, bad, True) in (2, 3)
        assert pruning.pruned_at(pruner, (bad,) * 6, good, True) is None
        assert pruning.pruned_at(pruner, (good,) * 6, bad, False) is None
    assert pruning.pruned_at(pruning.pruner("none"), (good,) * 6, bad, True) is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("medain", {}, "no pruner 'medain'; did you mean median"),
        ("median", {"trails": 3}, "trails: median has no such option; did you mean trials"),
        ("median", {1: 2}, "1: median has no such option"),
        ("median", {"name": 2}, "name: median has no such option"),
        ("none", {"keep": 0.5}, "keep: none has no such option"),
        ("median", {"keep": 1.0}, "expected a number between 0 and 1, found 1.0"),
        ("halving", {"factor": 1}, "expected an integer above 1, found 1"),
        ("halving", {"factor": 2.5}, "expected an integer above 1, found 2.5"),
        ("halving", {"first_step": 0}, "expected an integer above 0, found 0"),
        ("median", {"trials": "4"}, "expected a number, found '4'"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        pruning.pruner(name, options)


def made(chance, count, seeds):
    """Trials in the order of a sweep, and their whole curves."""
    trials, curves = [], {}
    for seed in seeds:
        for number in range(count):
            trial = Trial(Configuration(number, {"A": number}, {"A": number}, {"A": number}), seed)
            top, rate = chance.uniform(0.3, 0.8), chance.uniform(0.2, 1)
            curve = [(10 * n, round(top * (1 - 0.9 ** (n * rate)), 6)) for n in range(1, 9)]
            trials.append(trial)
            curves[trial.name] = tuple(curve)
    return trials, curves


def drive(trials, curves, pruner, workers, chance):
    """Runs trials as a driver does, with workers of random speed, and restarts; the last view."""
    seen = {trial.name: Record() for trial in trials}
    while True:
        view = settling.settled(trials, seen, pruner, True)
        running = [name for name, one in seen.items() if one.status == "running"]
        for name in running:
            if view[name].status == "pruned":
                seen[name] = view[name]
        running = [name for name, one in seen.items() if one.status == "running"]
        for trial in trials:
            if len(running) < workers and view[trial.name].status == "queued":
                seen[trial.name] = Record("running")
                running.append(trial.name)
        if not running:
            return view
        name = chance.choice(running)
        length = len(seen[name].curve) + chance.randint(0, 2)
        curve = curves[name][:length]
        done = len(curve) == len(curves[name])
        seen[name] = Record("done" if done else "running", curve=curve)


@pytest.mark.parametrize("pruner", PRUNERS, ids=lambda one: one.name)
def test_any_number_of_workers_and_any_speed_prune_the_same(pruner):
    trials, curves = made(random.Random(5), 8, (1, 2))
    alone = drive(trials, curves, pruner, 1, random.Random(0))
    pruned = {name: one.step for name, one in alone.items() if one.status == "pruned"}
    assert 3 <= len(pruned) < len(trials)
    for workers in (1, 2, 3, 8):
        found = drive(trials, curves, pruner, workers, random.Random(workers))
        assert essence(found) == essence(alone)


def essence(view):
    """What decisions are about, of each trial."""
    return {name: (one.status, one.reason, one.curve) for name, one in view.items()}
