"""The record of a run: cut back to where a run resumes, and shown by TensorBoard like that."""

import json

import pytest
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.tensorflow_stub import errors
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

from t5x_style.training import metric_writer


def written(folder, start, *steps):
    log = metric_writer.MetricLog(folder, start)
    for step in steps:
        log.write(step, {"train/loss": 1 / step, "timing/steps_per_second": 3.0})
    log.close()


def steps(folder):
    return [line["step"] for line in metric_writer.read_lines(folder / "metrics.jsonl")]


def untimed(folder):
    """The lines without what differs between two runs of the same configuration."""
    return [
        {name: value for name, value in line.items() if not name.startswith(metric_writer.TIMING)}
        for line in metric_writer.read_lines(folder / "metrics.jsonl")
    ]


def events(path):
    """TensorBoard's own reader, which compares checksums."""
    reader = PyRecordReader_New(str(path))
    while True:
        try:
            reader.GetNext()
        except errors.OutOfRangeError:
            return
        yield event_pb2.Event.FromString(reader.record())


def test_lines_past_the_restored_step_are_cut_away(tmp_path):
    written(tmp_path, 0, 1, 2, 3, 4)
    before = untimed(tmp_path)
    written(tmp_path, 2, 3)
    assert steps(tmp_path) == [1, 2, 3]
    assert untimed(tmp_path) == before[:3]


@pytest.mark.parametrize("left", [1, 12, 40])
def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path, left):
    written(tmp_path, 0, 1, 2, 3)
    file = tmp_path / "metrics.jsonl"
    *whole, last = file.read_text().splitlines(keepends=True)
    file.write_text("".join(whole) + last[:left])
    assert steps(tmp_path) == [1, 2]
    written(tmp_path, 2, 3, 4)
    assert steps(tmp_path) == [1, 2, 3, 4]
    assert file.read_text().count("\n") == 4


def test_a_line_cut_just_before_its_end_is_kept_whole(tmp_path):
    written(tmp_path, 0, 1, 2)
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text()[:-1])
    written(tmp_path, 2, 3)
    assert steps(tmp_path) == [1, 2, 3]


def test_another_broken_line_is_an_error_that_names_it(tmp_path):
    written(tmp_path, 0, 1, 2, 3)
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text().replace('{"step": 2', '{"step" 2'))
    with pytest.raises(ValueError, match="metrics.jsonl, line 2: not JSON"):
        metric_writer.MetricLog(tmp_path, 3)


def test_numbers_survive_being_cut_back(tmp_path):
    values = {"a": 0.1 + 0.2, "b": 1e-300, "c": float("inf"), "d": 16777217.0}
    log = metric_writer.MetricLog(tmp_path, 0)
    log.write(1, values)
    log.close()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    metric_writer.MetricLog(tmp_path, 1).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    line = json.loads(before)
    assert line.pop(metric_writer.ELAPSED) >= 0
    assert line == {"step": 1, **values}


def test_tensorboard_reads_points_and_hides_those_of_the_killed_run(tmp_path):
    written(tmp_path, 0, 1, 2)
    written(tmp_path, 1, 2)
    first, second = (list(events(path)) for path in sorted((tmp_path / "tensorboard").iterdir()))
    assert [event.file_version for event in first[:1]] == ["brain.Event:2"]
    points = {(e.step, v.tag): v.simple_value for e in first for v in e.summary.value}
    points = {at: value for at, value in points.items() if at[1] != metric_writer.ELAPSED}
    assert points == {
        (step, tag): pytest.approx(value)
        for step in (1, 2)
        for tag, value in (("train/loss", 1 / step), ("timing/steps_per_second", 3.0))
    }
    # From this event on TensorBoard forgets points of step 2 and later that it read before.
    assert second[1].session_log.status == event_pb2.SessionLog.START and second[1].step == 2


def test_other_processes_write_nothing(tmp_path):
    log = metric_writer.MetricLog(tmp_path / "log", 0, active=False)
    log.write(1, {"train/loss": 1.0})
    log.text("summary.md", "text")
    log.close()
    assert not (tmp_path / "log").exists()


def test_seconds_go_on_where_a_run_resumes(tmp_path, monkeypatch):
    """Pauses between runs do not count, nor does what is done again."""
    clock = iter([100.0, 103.0, 110.0, 1000.0, 1002.0])
    monkeypatch.setattr(metric_writer.time, "monotonic", lambda: next(clock))
    written(tmp_path, 0, 1, 2)
    written(tmp_path, 1, 2)
    lines = metric_writer.read_lines(tmp_path / "metrics.jsonl")
    assert [line[metric_writer.ELAPSED] for line in lines] == [3.0, 5.0]


def test_a_picture_has_no_panel_for_times_and_constants(tmp_path):
    log = metric_writer.MetricLog(tmp_path, 0)
    for step in (1, 2):
        log.write(step, {"train/loss": 1 / step, "train/beta": 1.0, "train/healthy": 1.0})
    log.write(2, {"eval/accuracy": 0.5, "timing/steps_per_second": 3.0})
    log.close()
    lines = metric_writer.read_lines(tmp_path / "metrics.jsonl")
    # One point alone is no constant: it may be all that a short training has measured.
    assert metric_writer.drawn_metrics(lines) == ["train/loss", "eval/accuracy"]
    metric_writer.draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png", "of two steps")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_a_picture_of_constants_alone_is_empty(tmp_path):
    log = metric_writer.MetricLog(tmp_path, 0)
    for step in (1, 2):
        log.write(step, {"train/beta": 1.0})
    log.close()
    assert metric_writer.drawn_metrics(metric_writer.read_lines(tmp_path / "metrics.jsonl")) == []
    metric_writer.draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png", "of constants")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
