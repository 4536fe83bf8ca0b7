"""The curves of a finished run's trainings, for the bundle that is made of it."""

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t5x_style.reporting import report_curves, report_tables
from t5x_style.reporting.report_curves import LOSS
from t5x_style.serving import training_curves
from t5x_style.serving.training_curves import Curve, Curves, Training
from t5x_style.storage.latest import latest
from t5x_style.training import metric_writer
from t5x_style.training.metric_writer import ELAPSED, EVALUATIONS, TIMING
from t5x_style.workflow.lineage import lineage
from t5x_style.workflow.store import STAGE_FILE, Version

TRAIN = "train/"
_SPEEDS = (f"{TIMING}tokens_per_second", f"{TIMING}examples_per_second")
_FIRST = (LOSS, f"{TRAIN}learning_rate", *_SPEEDS)


def of_run(run: Path, served: Path) -> Curves | None:
    """The curves of all trainings that led to the stages of a run.

    A training that another one continues is left out: the log of the other has its steps. One whose
    log cannot be read is named on stderr, and among `unread`.

    Args:
      run: folder of links to finished stages, on this machine.
      served: a file or folder of the stage whose model is served.

    Returns:
      None where no training is known.
    """
    stages = report_tables.stages(str(one.parent) for one in _manifests(run))
    trainings = {name: one for name, one in stages.items() if one.record["job"]["name"] == "train"}
    continued = set().union(*map(report_curves.continued, trainings.values()))
    ancestors = {one.id for one in lineage([served])}
    found, unread = [], []
    for name, version in trainings.items():
        if version.id in continued:
            continue
        try:
            lines = _lines(version)
        except (OSError, ValueError) as error:
            print(f"export: no curves of the training '{name}': {error}", file=sys.stderr)
            unread.append(name)
            continue
        seconds = max((float(line[ELAPSED]) for line in lines if ELAPSED in line), default=None)
        seconds = float(version.record["seconds"]) if seconds is None else seconds
        finished = str(version.record["finished"])
        found.append(Training(name, version.id in ancestors, finished, seconds, curves(lines)))
    return Curves(found, unread) if found or unread else None


def _manifests(run: Path) -> Iterable[Path]:
    """Of the finished stages; hidden folders do not count."""
    return sorted(run.glob(f"[!.]*/{STAGE_FILE}"))


def _lines(version: Version) -> list[dict[str, Any]]:
    """Of the log of a training.

    Raises:
      OSError, ValueError: it is missing, empty or damaged.
    """
    path = latest(version.folder / metric_writer.JSONL)
    lines = metric_writer.read_lines(path)
    if not lines:
        raise ValueError(f"{path}: expected a line for each logged step, found none")
    for number, line in enumerate(lines, start=1):
        values = line.values() if isinstance(line, dict) and "step" in line else [None]
        if not all(isinstance(value, int | float) for value in values):
            raise ValueError(f"{path}, line {number}: expected numbers, among them 'step'")
        if not all(math.isfinite(line.get(name, 0)) for name in ("step", ELAPSED)):
            raise ValueError(f"{path}, line {number}: expected a finite step and time")
    return lines


def curves(lines: report_curves.Lines) -> list[Curve]:
    """The curves of a log: loss, learning rate, speed, evaluations.

    Also metrics of training batches that an evaluation measures under the same name.

    Args:
      lines: of a metrics.jsonl.
    """
    log = report_curves.Training(lines, "")
    points = {name: log.points(name) for name in metric_names(lines)}
    return [
        training_curves.curve(name, [(int(step), value) for step, value in one])
        for name, one in points.items()
    ]


def metric_names(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """The metrics of a log that a bundle keeps, the most important first."""
    logged = dict.fromkeys(name for line in lines for name in line)
    measured = [name for name in logged if name.startswith(EVALUATIONS)]
    shared = {name.removeprefix(EVALUATIONS).partition("/")[2] for name in measured}
    alike = [name for name in logged if name.startswith(TRAIN) and name[len(TRAIN) :] in shared]
    first = [name for name in _FIRST if name in logged]
    return list(dict.fromkeys([*first, *measured, *alike]))
