"""The curves of a run's trainings: which trainings, which metrics, and damaged logs."""

import json
import math

import pytest

from t5x_style.reporting import run_curves
from t5x_style.training import metric_writer
from tests.kits import store_kit

METRIC = "eval/dev/MRR@10"


def log(*values, **more):
    return [
        {"step": 5 * at, "train/loss": value, "timing/elapsed_seconds": float(at)} | more
        for at, value in enumerate(values, start=1)
    ]


def trained(link, lines, *inputs, job="train", **settings):
    if lines is None or isinstance(lines, str):
        text = lines
    else:
        text = "".join(json.dumps(one) + "\n" for one in lines)
    files = {} if text is None else {metric_writer.JSONL: text}
    planned = store_kit.plan(link, job, *inputs, **settings)
    return store_kit.finished(planned, files, {"model": "."}, seconds=70.0)


def searched(run, *inputs):
    planned = store_kit.plan(run / "search", "search", *inputs)
    made = store_kit.finished(planned, {"config.gin": ""}, {"configuration": "config.gin"})
    return made.folder / "config.gin"


def test_the_chain_of_trainings_in_order(tmp_path):
    run = tmp_path / "run"
    first = trained(run / "pretrained", log(3.0, 2.0))
    mined = trained(run / "mined", log(9.0), first.folder, job="mine")
    second = trained(run / "retriever", log(1.0, 0.5), mined.folder)
    trained(run / "baseline", log(4.0), seed=2)
    (run / "pretrained").unlink()  # of another recipe: reached through what it led to
    found = run_curves.of_run(run, searched(run, second.folder))
    served = {one.name: one.served for one in found.trainings}
    assert served == {"pretrained": True, "retriever": True, "baseline": False}
    names = [one.name for one in found.trainings]
    assert names.index("pretrained") < names.index("retriever")
    (loss,) = found.trainings[names.index("retriever")].curves
    assert (loss.name, loss.steps, loss.values) == ("train/loss", [5, 10], [1.0, 0.5])
    seconds = {one.name: one.seconds for one in found.trainings}
    assert seconds == {"pretrained": 2.0, "retriever": 2.0, "baseline": 1.0}  # of the logs


def test_a_training_that_is_continued_is_in_the_log_of_the_next(tmp_path, monkeypatch):
    run = tmp_path / "run"
    short = trained(run / "short", log(3.0), steps=1)
    long = trained(run / "long", log(3.0, 2.0), short.folder, steps=2)
    continued = {long.id: {short.id}}
    monkeypatch.setattr(
        run_curves.report_curves, "continued", lambda one: continued.get(one.id, set())
    )
    found = run_curves.of_run(run, searched(run, long.folder))
    assert [one.name for one in found.trainings] == ["long"]


def test_which_metrics_are_kept_and_in_which_order():
    lines = [
        {"step": 5, "train/gradient_norm": 1.0, "train/accuracy": 0.5, "eval/dev/accuracy": 0.4},
        {"step": 5, METRIC: 0.1, "train/learning_rate": 1e-3, "train/loss": 2.0},
        {"step": 9, "timing/tokens_per_second": 7.0, "timing/input_wait_share": 0.1},
    ]
    assert run_curves.metric_names(lines) == [
        "train/loss",
        "train/learning_rate",
        "timing/tokens_per_second",
        "eval/dev/accuracy",
        METRIC,
        "train/accuracy",
    ]


def test_values_that_are_not_finite_are_gaps(tmp_path):
    run = tmp_path / "run"
    made = trained(run / "train", log(1.0, math.nan, math.inf, 2.0))
    (training,) = run_curves.of_run(run, searched(run, made.folder)).trainings
    assert training.curves[0].values == [1.0, None, None, 2.0]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (None, "No such file"),
        ("", "expected a line for each logged step, found none"),
        ('{"step": 1, "tr\n{"step": 2}\n', "line 1: not JSON"),
        ('{"train/loss": 1.0}\n', "line 1: expected numbers, among them 'step'"),
        ('{"step": 1, "train/loss": "low"}\n', "line 1: expected numbers"),
        ('{"step": NaN, "train/loss": 1.0}\n', "line 1: expected a finite step"),
        ("[]\n", "line 1: expected numbers"),
    ],
)
def test_a_log_that_cannot_be_read_is_named(tmp_path, capsys, lines, message):
    run = tmp_path / "run"
    good = trained(run / "good", log(1.0))
    bad = trained(run / "bad", lines, good.folder, seed=3)
    found = run_curves.of_run(run, searched(run, bad.folder))
    assert [one.name for one in found.trainings] == ["good"] and found.unread == ["bad"]
    said = capsys.readouterr().err
    assert "export: no curves of the training 'bad'" in said and message in said


def test_a_run_without_a_training_has_none(tmp_path):
    run = tmp_path / "run"
    made = trained(run / "imported", log(1.0), job="initialise_model")
    assert run_curves.of_run(run, searched(run, made.folder)) is None
