"""Writers of metrics: jsonl, TensorBoard, and a picture of the curves."""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

JSONL = "metrics.jsonl"
TIMING = (
    "timing/"  # the one prefix under which values differ between runs of the same configuration
)
ELAPSED = TIMING + "elapsed_seconds"  # of the training so far, over all its runs
EVALUATIONS = "eval/"
EMBEDDINGS = "embeddings/"  # figures of `evaluation.embedding_diagnostics`


class MetricLog:
    """Writes scalars of one training run; only process 0 should own one that is `active`."""

    def __init__(self, folder: str | Path, start_step: int, active: bool = True):
        """Args:
        folder: of the training stage; `metrics.jsonl` and `tensorboard/` are put there.
        start_step: what was logged for later steps, by a run that was killed, is cut away; all
            of it if nothing is left of that run.
        active: False makes every call do nothing.
        """
        self.folder, self.active = Path(folder), active
        if not active:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._before = self._cut_back(start_step)
        self._started = time.monotonic()
        self._events = EventFile(self.folder / "tensorboard", start_step)

    def _cut_back(self, start_step: int) -> float:
        """Keeps the lines up to a step; returns the seconds that had passed there."""
        path = self.folder / JSONL
        if not path.exists():
            return 0.0
        kept = [line for line in read_lines(path) if start_step and line["step"] <= start_step]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        temporary.replace(path)
        return max((float(line.get(ELAPSED, 0.0)) for line in kept), default=0.0)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends one line to the jsonl and one point a scalar to TensorBoard.

        The line has the seconds since the training began, evaluation included, pauses between two
        runs left out.
        """
        if not self.active:
            return
        elapsed = self._before + time.monotonic() - self._started
        scalars = {**scalars, ELAPSED: round(elapsed, 3)}
        with open(self.folder / JSONL, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **scalars}) + "\n")
        self._events.write(step, scalars)

    def text(self, name: str, text: str) -> None:
        """Keeps a text with the curves: the operative configuration, a summary."""
        if self.active:
            (self.folder / name).write_text(text, encoding="utf-8")

    def close(self) -> None:
        if self.active:
            self._events.close()


class EventFile:
    """One file of TensorBoard events, written with TensorBoard's own records and messages.

    Its `summary.Writer` would import TensorFlow for the sake of a file name: 8 s.
    """

    def __init__(self, folder: Path, start_step: int):
        """Args:
        folder: TensorBoard reads all the event files in it as one run.
        start_step: points of later steps in older files are not shown any more.
        """
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names.
        name = f"events.out.tfevents.{time.time_ns() / 1e9:020.9f}.{os.getpid()}"
        self._file = open(folder / name, "wb")  # noqa: SIM115  closed by `close`
        self._records = RecordWriter(self._file)
        self._append(file_version="brain.Event:2")
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._append(step=start_step + 1, session_log=start)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends one point a scalar."""
        values = [self._summary.Value(tag=k, simple_value=v) for k, v in scalars.items()]
        self._append(step=step, summary=self._summary(value=values))

    def _append(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; a last line that a kill has cut short is dropped."""
    lines = []
    raw = Path(path).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(raw):
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number != len(raw) - 1:
                raise ValueError(f"{path}, line {number + 1}: not JSON: {line[:80]!r}") from error
    return lines


def drawn_metrics(lines: Sequence[Mapping[str, float]]) -> list[str]:
    """Names that a picture shows: no timings, and nothing that has one value at all its steps.

    Args:
      lines: of a metrics.jsonl.
    """
    names = dict.fromkeys(name for line in lines for name in line if name != "step")
    found = []
    for name in names:
        values = [line[name] for line in lines if name in line]
        constant = len(values) > 1 and len(set(values)) == 1
        if not name.startswith(TIMING) and name != "train/healthy" and not constant:
            found.append(name)
    return found


def draw_curves(jsonl: str | Path, png: str | Path, title: str) -> None:
    """Draws every metric of a metrics.jsonl but timings and constants, a panel each, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    lines = read_lines(jsonl)
    names = drawn_metrics(lines)
    columns = min(4, max(1, len(names)))
    rows = max(1, math.ceil(len(names) / columns))
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.6 * columns, 2.5 * rows), squeeze=False, constrained_layout=True
    )
    for axis, name in zip(axes.flat, names, strict=False):
        points = [(line["step"], line[name]) for line in lines if name in line]
        axis.plot(*zip(*points, strict=True), linewidth=1.2, marker="." if len(points) < 30 else "")
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(names) :]:
        axis.axis("off")
    figure.suptitle(title, fontsize=11)
    figure.savefig(png, dpi=110)
    plt.close(figure)
