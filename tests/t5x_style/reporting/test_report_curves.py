"""The picture of a summary page: what is drawn where."""

import pytest

from t5x_style.reporting import report_curves
from t5x_style.training import metric_writer
from tests.kits import store_kit

METRIC = "eval/dev/MRR@10"
RESULTS = {
    "facts": {"bm25": {"k1": 0.9}, "retriever": {}, "other": {}},
    "development": {
        "dev": {
            "n": 9,
            "systems": {
                "bm25": {"MRR@10": 0.45},
                "retriever": {"MRR@10": 0.4},
                "other": {"MRR@10": 0.3},
            },
        }
    },
}


def lines(values, start=0.0, **constant):
    return [
        {"step": i, "train/loss": 5.0 / i, METRIC: value, metric_writer.ELAPSED: start + i}
        | constant
        for i, value in enumerate(values, start=1)
    ]


def trained(folder, log, *inputs, objective="@a.A", seconds=10.0, job="train", **settings):
    text = "".join(f"{metric_writer.json.dumps(line)}\n" for line in log)
    planned = store_kit.plan(folder, job, *inputs, objective=objective, **settings)
    return store_kit.finished(planned, {metric_writer.JSONL: text}, {"model": "."}, seconds)


def test_a_training_begins_where_those_it_was_made_from_ended(tmp_path):
    first = trained(tmp_path / "run/first", lines([0.1, 0.2]), seconds=40)
    mined = trained(tmp_path / "run/mined", [], first.folder, job="mine", seconds=1000)
    second = trained(tmp_path / "run/second", lines([0.3]), mined.folder, seconds=7)
    found = report_curves.read({"first": str(first.folder), "second": str(second.folder)})
    assert found["first"].timed(METRIC) == [(1.0, 0.1), (2.0, 0.2)]
    assert found["second"].timed(METRIC) == [(41.0, 0.3)]
    assert found["second"].points(METRIC) == [(1, 0.3)]


def test_a_training_that_continues_another_holds_its_seconds(tmp_path):
    short = trained(tmp_path / "run/short", lines([0.1]), seconds=40, steps=1)
    long = trained(tmp_path / "run/long", lines([0.1, 0.2]), short.folder, seconds=40, steps=2)
    assert report_curves._seconds_before(long) == 40
    manifest = dict(long.record) | {"parent": short.id}
    continued = report_curves.dataclasses.replace(long, manifest=manifest)
    assert report_curves._seconds_before(continued) == 0


def test_losses_share_a_panel_where_the_objective_is_the_same(tmp_path):
    made = {
        "mlm": trained(tmp_path / "run/mlm", lines([0.1, 0.2]), objective="@mlm.Mlm"),
        "one": trained(tmp_path / "run/one", lines([0.1, 0.2]), objective="@bi.Bi", seed=1),
        "two": trained(tmp_path / "run/two", lines([0.1, 0.2]), objective="@bi.Bi", seed=2),
    }
    found = report_curves.read({name: str(one.folder) for name, one in made.items()})
    panels = report_curves._panels(found, METRIC)
    assert panels == [
        ("loss of mlm", ["mlm"], "train/loss"),
        ("loss of one, two", ["one", "two"], "train/loss"),
    ]
    outside = report_curves.Training(lines([0.1, 0.2]), "outside")
    assert report_curves._panels({"outside": outside}, None)[1][0] == METRIC


def test_constants_are_not_drawn():
    log = lines([0.1, 0.2], **{"eval/dev/size": 7.0})
    same = [line | {"train/loss": 1.0} for line in lines([0.1, 0.2])]
    trainings = {
        "a": report_curves.Training(log, "x"),
        "b": report_curves.Training(same, "x"),
    }
    assert report_curves._panels(trainings, METRIC) == [("loss of a", ["a"], "train/loss")]


def test_bm25_is_a_line_and_systems_with_a_curve_have_a_mark():
    trainings = {"retriever": report_curves.Training(lines([0.1]), "x")}
    found = report_curves.marks(RESULTS, trainings, METRIC)
    assert found == [
        report_curves.Mark("bm25", 0.45),
        report_curves.Mark("retriever", 0.4, "retriever"),
    ]
    assert report_curves.marks(RESULTS, trainings, "eval/validation/MRR@10") == found
    assert report_curves.marks(RESULTS, trainings, "eval/dev/loss") == []
    assert report_curves.marks({}, trainings, METRIC) == []
    assert report_curves.marks(RESULTS, trainings, None) == []
    assert "whole corpus" in report_curves.caption(trainings, METRIC, found)[0]


def test_the_metric_that_most_trainings_logged():
    one = report_curves.Training([{"step": 1, "eval/a/x": 1.0, "train/loss": 1.0}], "x")
    both = report_curves.Training([{"step": 1, "eval/b/y": 1.0, "eval/a/x": 1.0}], "x")
    assert report_curves.development_metric({"1": both, "2": one}) == "eval/a/x"
    assert report_curves.development_metric({"1": both}) == "eval/b/y"
    none = report_curves.Training([{"step": 1, "train/loss": 1.0}], "x")
    assert report_curves.development_metric({"1": none}) is None


def test_logs_without_seconds_are_drawn_by_step():
    log = [{k: v for k, v in line.items() if k != metric_writer.ELAPSED} for line in lines([1, 2])]
    trainings = {
        "old": report_curves.Training(log, "x"),
        "new": report_curves.Training(lines([1, 2]), "x"),
    }
    assert (METRIC, ["old"], METRIC) in report_curves._panels(trainings, METRIC)
    said = report_curves.caption(trainings, METRIC, [])
    assert said[0].startswith("No seconds were logged by old")


@pytest.mark.parametrize("metric", [METRIC, None])
def test_pictures_are_written(tmp_path, metric):
    """A full one, and one of a training that logged nothing yet."""
    trainings = {"retriever": report_curves.Training(lines([0.1, 0.2, 0.3]), "x")}
    marked = report_curves.marks(RESULTS, trainings, metric)
    for number, of in enumerate((trainings, {"empty": report_curves.Training([], "y")})):
        png = tmp_path / f"{number}.png"
        report_curves.draw(of, png, metric, marked if number == 0 else ())
        assert png.read_bytes().startswith(b"\x89PNG")
