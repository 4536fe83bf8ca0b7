"""References: what the band is, how often it is wrong, what it finds, what is refused."""

import json
import math
import random
import re

import pytest

from t5x_style.reporting import health_picture, health_reference, health_runs
from t5x_style.reporting.health_runs import LOSS, HealthError, Training
from tests import recipe_plans
from tests.kits import training_logs
from tests.kits.training_logs import METRIC, changed, healthy


def read(folder, lines, **settings):
    """The training of a run with this log."""
    training_logs.training(folder, lines, **settings)
    return health_runs.read(str(folder))[0]


@pytest.fixture(name="reference", scope="module")
def make_reference(tmp_path_factory):
    """Of three seeds, as a file."""
    folder = tmp_path_factory.mktemp("seeds")
    runs = [[read(folder / f"run{seed}", healthy(seed), seed=seed)] for seed in (1, 2, 3)]
    path = folder / "mine.json"
    health_reference.write(path, health_reference.make("mine", runs))
    return health_reference.load(str(path))


def levels(training, reference):
    found = health_reference.compare(training, reference, "retriever")
    return {one.text.split(",")[0]: one.level for one in found}


def test_a_reference_holds_what_it_is_compared_by(reference):
    one = reference["trainings"]["retriever"]
    assert reference["seeds"] == ["1", "2", "3"] and reference["runs"] == 3
    assert list(one["curves"]) == [LOSS, "train/gradient_norm", METRIC]
    assert one["interval"] == 20 and one["records"] == {"passages": training_logs.PASSAGES}
    assert one["settings"]["passages: length"] == '"192"' and "seed" not in one["settings"]
    for curve in one["curves"].values():
        assert len({len(row) for row in curve.values()}) == 1
        rows = zip(curve["low"], curve["mean"], curve["high"], strict=True)
        assert all(low < mean < high for low, mean, high in rows)


def test_new_seeds_are_inside(tmp_path, reference):
    """Of two hundred healthy trainings at most one in a hundred is called wrong."""
    found = [
        levels(Training("retriever", tmp_path, healthy(seed), {}, (), True, ""), reference)
        for seed in range(10, 210)
    ]
    assert sum("wrong" in one.values() for one in found) <= 2
    assert sum("note" in one.values() for one in found) <= 20


@pytest.mark.parametrize(
    ("metric", "factor", "name"),
    [(LOSS, 1.25, "loss"), (LOSS, 0.75, "loss"), ("train/gradient_norm", 2, "gradient_norm"),
     (METRIC, 0.8, "dev/MRR@10")],
)  # fmt: skip
def test_a_shifted_curve_is_outside(tmp_path, reference, metric, factor, name):
    lines = changed(healthy(9), metric, lambda step, old: old * factor)
    found = levels(read(tmp_path, lines, seed=9), reference)
    assert {name for name, level in found.items() if level == "wrong"} == {name}


def test_a_better_metric_is_a_note(tmp_path, reference):
    lines = changed(healthy(9), METRIC, lambda step, old: old * 1.3)
    assert levels(read(tmp_path, lines, seed=9), reference)["dev/MRR@10"] == "note"


def test_a_running_training_is_compared_as_far_as_it_is(tmp_path, reference):
    training_logs.unfinished(tmp_path, healthy(9, steps=300))
    (training,) = health_runs.read(str(tmp_path))
    assert not training.finished and set(levels(training, reference).values()) == {"ok"}
    training_logs.unfinished(tmp_path / "empty", [], seed=2)
    (training,) = health_runs.read(str(tmp_path / "empty"))
    assert set(levels(training, reference).values()) == {"note"}


def test_another_log_interval_is_interpolated_and_widens(tmp_path, reference):
    for every in (7, 60):
        training = read(tmp_path / str(every), healthy(9, every=every), seed=9)
        found = {name: level for name, level in levels(training, reference).items()}
        assert found["loss"] == "ok", found


def test_one_run_alone_is_a_reference(tmp_path):
    training_logs.training(tmp_path / "before", healthy(1))
    reference = health_reference.load(str(tmp_path / "before"))
    assert reference["runs"] == 1
    same = read(tmp_path / "same", healthy(2), seed=2)
    assert set(levels(same, reference).values()) == {"ok"}
    worse = changed(healthy(2), LOSS, lambda step, old: old * 1.5)
    found = levels(read(tmp_path / "worse", worse, seed=2), reference)
    assert found["loss"] == "wrong"


def test_the_band_is_the_range_and_three_standard_deviations():
    draw = random.Random(0)
    runs = [[(step, draw.gauss(5, 0.2)) for step in range(400)] for _ in range(3)]
    curve = health_reference.curve(runs)
    width = [high - max(run[step][1] for run in runs) for step, high in enumerate(curve["high"])]
    assert sum(width) / len(width) == pytest.approx(3 * 0.2 * math.sqrt(4 / 3), rel=0.05)
    fresh = [(step, draw.gauss(5, 0.2)) for step in range(400)]
    rows = zip(fresh, curve["low"], curve["high"], strict=True)
    assert sum(not low <= value <= high for (_, value), low, high in rows) <= 2


def test_runs_that_make_no_reference_are_refused(tmp_path):
    one = read(tmp_path / "one", healthy(1), seed=1)
    with pytest.raises(HealthError, match="different seeds, found"):
        health_reference.make("mine", [[one], [one]])
    warmer = {"objective.embedding_config.temperature": 0.1}
    other = read(tmp_path / "other", healthy(2), seed=2, **warmer)
    with pytest.raises(HealthError, match=re.escape('temperature "0.07" -> "0.1"')):
        health_reference.make("mine", [[one], [other]])
    training_logs.unfinished(tmp_path / "new", healthy(3, steps=300), seed=3)
    with pytest.raises(HealthError, match="finished trainings"):
        health_reference.make("mine", [[one], health_runs.read(str(tmp_path / "new"))])
    with pytest.raises(HealthError, match="1 of 2 runs have a training 'retriever'"):
        health_reference.make("mine", [[one], []])
    smaller = read(tmp_path / "smaller", healthy(4), seed=4, count=9000)
    with pytest.raises(HealthError, match="passages: records 10,000 -> 9,000"):
        health_reference.make("mine", [[one], [smaller]])
    late = read(tmp_path / "late", healthy(5, every=21)[:3], seed=5)
    with pytest.raises(HealthError, match="no common step"):
        health_reference.make("mine", [[one], [late]])


def test_a_file_that_is_no_reference_is_refused(tmp_path):
    with pytest.raises(HealthError, match="did you mean quickstart"):
        health_reference.load("quickstrt")
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"format": 0, "trainings": {}}))
    with pytest.raises(HealthError, match="expected a reference of format 1"):
        health_reference.load(str(path))


def test_other_settings_have_no_reference(tmp_path):
    found, why = health_reference.find(read(tmp_path, healthy(1)))
    assert found is None and why.startswith("quickstart differs in ")


def test_seeds_and_code_do_not_count_as_settings(tmp_path):
    one, other = (
        read(tmp_path / str(seed), healthy(seed), **{"seed": seed, "pipeline.pairs.seed": seed})
        for seed in (1, 2)
    )
    assert health_runs.settings(one) == health_runs.settings(other)
    text = "input train_tokenizer-e110fa7a4925a931.2 by code 684bc66eaef1/tokenizer"
    assert health_runs.settings(
        Training("a", one.folder, [], {"tokenizer": text}, (), True, "")
    ) == {"tokenizer": '"input train_tokenizer/tokenizer"'}


def test_the_reference_of_the_main_job():
    path = health_reference.FOLDER / "quickstart.json"
    assert path.stat().st_size < 60_000
    reference = health_reference.load("quickstart")
    assert len(set(reference["seeds"])) == reference["runs"] >= 3
    assert list(reference["trainings"]) == ["retriever"]
    for one in reference["trainings"].values():
        loss, metric = one["curves"][LOSS], one["curves"][METRIC]
        assert loss["steps"] == list(range(25, 1501, 25))
        assert metric["steps"] == list(range(250, 1501, 250))
        assert loss["mean"][-1] < 0.3 * loss["mean"][0] and metric["low"][-1] > 0.44


def test_the_reference_has_the_settings_of_the_recipe():
    """Otherwise no run would be compared with it. Make it again: docs/healthy.md, `--write`."""
    plans = recipe_plans.of_recipe("quickstart")
    settings = health_reference.load("quickstart")["trainings"]["retriever"]["settings"]
    planned = {}
    for stage, plan in plans.items():
        prefix = "" if stage == "retriever" else f"{stage}: "
        planned |= health_runs.short(plan["parameters"], prefix)
    wanted = {"optimizer.learning_rate", "pairs.weights", "passages: length"}
    assert wanted <= set(settings)
    for name, value in settings.items():
        # What a plan reads is named by macro, in a finished version by the stage that made it.
        assert planned[name] == value or (
            planned[name].startswith('"input ') and value.startswith('"input ')
        ), name


def test_the_picture_has_a_panel_for_each_curve(tmp_path, reference, monkeypatch):
    from matplotlib import figure

    titles = []
    kept = figure.Figure.savefig

    def savefig(self, *args, **kwargs):
        titles.extend(axis.get_title() for axis in self.axes if axis.axison)
        return kept(self, *args, **kwargs)

    monkeypatch.setattr(figure.Figure, "savefig", savefig)
    one = read(tmp_path / "run", healthy(9), seed=9)
    health_picture.draw([(one, reference, "retriever"), (one, None, "")], tmp_path / "a.png")
    names = [LOSS, "train/gradient_norm", METRIC]
    assert titles == [f"retriever: {name}" for name in names] * 2
    assert (tmp_path / "a.png").stat().st_size > 10_000
