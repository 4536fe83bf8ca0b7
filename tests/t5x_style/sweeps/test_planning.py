"""Trials as recipes: which values are the recipe's, what trials share, what cannot run."""

import random
from types import SimpleNamespace

import pytest

from t5x_style.configuration.gin_reader import GinError
from t5x_style.sweeps import points, trial_checks
from t5x_style.sweeps.axes import Axis
from t5x_style.sweeps.trials import DEFAULT, Trial
from tests.kits.toys.sweep_house import HEAD, SWEEP, make_sweep_house  # noqa: F401  a fixture


def configurations(planner):
    sweep = planner.sweep
    no_change, recipes = planner.no_change()
    return points.configurations(sweep, no_change, recipes)


def names(planner):
    return {one.name for one in configurations(planner)}


def test_the_recipes_value_is_found_and_binds_nothing(sweep_house):
    found = configurations(sweep_house.planner(SWEEP))
    assert [one.named for one in found] == [{}, {"RATE": 0.1}, {"RATE": 0.001}]
    assert found[0].name == DEFAULT and found[0].values == {"RATE": 0.01}


def test_a_default_that_is_not_the_recipes_is_refused(sweep_house):
    planner = sweep_house.planner(SWEEP + "RATE/sweep.Axis.default = 0.1\n")
    with pytest.raises(GinError, match="mine.gin:5: axis RATE: default = 0.1 is not what the"):
        planner.no_change()


def test_a_macro_that_no_stage_uses_is_refused_with_its_place(sweep_house):
    with pytest.raises(GinError, match="mine.gin:5: macro RAET is set, but nothing refers"):
        sweep_house.planner(SWEEP.replace("RATE/", "RAET/")).no_change()
    with pytest.raises(GinError, match="mine.gin:6: macro STPES is set.*did you mean STEPS"):
        trial_checks.check_recipes(sweep_house.planner(SWEEP + "STPES = 3\n"))


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("tuned/eval/dev/scrore", "no evaluator of tuned gives.*did you mean eval/dev/score"),
        ("tund/eval/dev/score", "the recipe has no stage 'tund'; did you mean tuned"),
        ("corpus/score", "stage corpus has no numbers"),
    ],
)
def test_a_metric_that_nothing_gives_is_refused(sweep_house, metric, message):
    planner = sweep_house.planner(SWEEP.replace("tuned/eval/dev/score", metric))
    with pytest.raises(GinError, match=message):
        trial_checks.check_recipes(planner)


def test_trials_share_what_an_axis_does_not_touch(sweep_house):
    planner = sweep_house.planner(
        SWEEP + "sweep.run.seeds = [1, 2]\nSTEPS/sweep.Axis.values = [6, 12]\n"
    )
    trials = [Trial(one, seed) for one in configurations(planner) for seed in (1, 2)]
    chains = [planner.of(trial).chain for trial in trials]
    assert len(chains) == 12 and all("after" not in chain for chain in chains)
    assert len({chain["corpus"].fingerprint for chain in chains}) == 1
    assert len({chain["tuned"].fingerprint for chain in chains}) == 12


def test_impossible_trials_are_found_before_anything_runs(sweep_house):
    planner = sweep_house.planner(
        SWEEP.replace("[0.1,", "[-1.0, 'high',") + "sweep.run.trial_steps = 10\n"
        "STEPS/sweep.Axis.values = [6, 12]\n"
    )
    trials = trial_checks.first_trials(configurations(planner), ())
    problems = trial_checks.impossible(planner, trials)
    said = {trial_checks.described(one): problems.get(one.name) for one in trials}
    assert said["the recipe's own"] is None and said["RATE=0.001"] is None
    assert "expected 0 or more, found -1.0" in said["RATE=-1.0"][0]
    assert "rate must be float, found 'high'" in said["RATE=high"][0]
    assert "trial_steps = 10 is less than one trial" in said["STEPS=12"][0]
    with pytest.raises(GinError, match="6 of 8 configurations are impossible; nothing was run"):
        trial_checks.refuse(problems, trials)
    assert not (sweep_house.folder / "runs").exists()


def test_trials_that_do_not_fit_into_memory_are_impossible(sweep_house, monkeypatch):
    """Each different training is asked about once, whatever became of the sweep since."""
    asked = []

    def fits(planned, topology):
        asked.append(topology)
        return planned.last.values.semantic["cadence.steps"] == "6"

    monkeypatch.setattr(trial_checks, "_preflight", fits)
    text = HEAD + "  topology = 'v5e:2x2'\nSTEPS/sweep.Axis.values = [6, 12]\n"
    for _ in range(2):
        planner = sweep_house.planner(text)
        trials = trial_checks.first_trials(configurations(planner), ())
        problems = trial_checks.impossible(planner, trials)
        assert problems == {trials[1].name: ["preflight: its trainings do not fit into v5e:2x2"]}
    assert asked == ["v5e:2x2"] * 2


def test_a_preflight_that_fails_is_no_answer(sweep_house):
    """The toy is no training of ours, so that preflight has nothing to say."""
    planner = sweep_house.planner(SWEEP + "sweep.run.topology = 'v5e:2x2'\n")
    trials = trial_checks.first_trials(configurations(planner), ())
    with pytest.raises(GinError, match="sweep.run.topology = 'v5e:2x2': preflight failed: "):
        trial_checks.impossible(planner, trials[:1])


def test_conditional_axes_are_planned_where_they_apply(sweep_house):
    planner = sweep_house.planner(
        HEAD
        + "KIND/sweep.Axis.values = ['plain', 'fancy']\n"
        + "RATE/sweep.Axis:\n  values = [0.1, 0.01]\n  when = {'KIND': ['fancy']}\n"
    )
    found = configurations(planner)
    assert [one.named for one in found] == [{}, {"KIND": "fancy", "RATE": 0.1}, {"KIND": "fancy"}]
    assert found[2].bindings == {"KIND": "fancy", "RATE": 0.01}


def test_a_value_counts_where_another_axis_changes_the_recipes(sweep_house):
    """EVALUATE_EVERY follows STEPS in the recipe: 6 is its value only where STEPS is."""
    recipe = sweep_house.folder / "recipe.gin"
    recipe.write_text(recipe.read_text() + "EVALUATE_EVERY = %STEPS\n")
    planner = sweep_house.planner(
        HEAD + "STEPS/sweep.Axis.values = [6, 12]\nEVALUATE_EVERY/sweep.Axis.values = [6, 12]\n"
    )
    found = {one.name: one for one in configurations(planner)}
    assert len(found) == 4
    for one in found.values():
        plan = planner.of(Trial(one)).last.values.semantic
        assert plan["cadence.evaluate_every"] == str(one.values["EVALUATE_EVERY"])


def test_points_that_are_named_run_alone_or_before_others(sweep_house):
    named = (
        SWEEP
        + "sweep.run.points = [{'RATE': 0.1}, {}]\nKIND/sweep.Axis.values = ['plain', 'fancy']\n"
    )
    found = configurations(sweep_house.planner(named))
    assert [one.named for one in found] == [{}, {"RATE": 0.1}]
    found = configurations(sweep_house.planner(named + "sweep.run.sampler = 'grid'\n"))
    assert len(found) == 6 and found[1].named == {"RATE": 0.1}


@pytest.mark.parametrize("name", ["after/WIDTH", "WIDTH"])
def test_an_axis_that_changes_nothing_is_refused(sweep_house, name):
    """`after` runs after the measured stage; a stage that sets SEED itself hears of no seed."""
    recipe = sweep_house.folder / "recipe.gin"
    recipe.write_text(
        recipe.read_text().replace(
            "['make.gin']\ntuned", "['make.gin']\n  bindings = {'WIDTH': 3}\ntuned"
        )
    )
    planner = sweep_house.planner(HEAD + f"w/sweep.Axis:\n  macro = '{name}'\n  values = [3, 4]\n")
    with pytest.raises(GinError, match="changes nothing of stage tuned|nothing refers to"):
        planner.no_change()


def test_seeds_that_change_nothing_are_refused(sweep_house):
    planner = sweep_house.planner(SWEEP + "sweep.run.seeds = [1, 2]\ntuned/SEED = 5\n")
    with pytest.raises(GinError, match="SEED changes nothing of stage tuned.*'tuned/SEED'"):
        trial_checks.check_recipes(planner)


def edited(axes, chance):
    """One edit of a sweep file that adds something: a value, an axis with a default, an order."""
    kind = chance.choice(("value", "axis", "order", "values"))
    if kind == "value":
        name = chance.choice(list(axes))
        axes[name] = [*axes[name], round(chance.uniform(1, 2), 6)]
    elif kind == "axis":
        axes[f"AXIS{len(axes)}"] = [0.5, round(chance.uniform(1, 2), 6)][:: chance.choice((1, -1))]
    elif kind == "order":
        names = list(axes)
        chance.shuffle(names)
        axes = {name: axes[name] for name in names}
    else:
        name = chance.choice(list(axes))
        values = list(axes[name])
        chance.shuffle(values)
        axes[name] = values
    return axes


def test_two_hundred_edits_keep_every_trials_name():
    """0.5 is the recipe's value of each axis; an edit is repeated until it adds no longer."""
    chance = random.Random(3)
    edits = 0
    while edits < 200:
        axes, known = {"RATE": [0.5, 0.25]}, set()
        for _ in range(10):
            made = [Axis(name, name, "values", tuple(values)) for name, values in axes.items()]
            same = {name: {"0.5"} for name in axes}
            recipes = dict.fromkeys(axes, 0.5)
            sweep = SimpleNamespace(axes=made, sampler="grid", points=())
            found = points.configurations(sweep, same, recipes)
            assert len({one.name for one in found}) == len(found)
            assert known <= {one.name for one in found}
            known = {one.name for one in found}
            if len(found) > 400:
                break
            axes, edits = edited(axes, chance), edits + 1
