"""What a trial is judged by: a metric of one stage, read from what the stage leaves.

retriever/eval/dev/MRR@10                    a line of a training's log
evaluation/systems/finetuned/MRR@10          a number in the `metrics` of any other stage
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5x_style.configuration.gin_reader import closest
from t5x_style.sweeps.trials import Curve
from t5x_style.training import metric_writer
from t5x_style.workflow.plans import Plan

TRAINING = "train"  # name of the job that has curves
OUTPUT = "metrics"  # of stages with numbers
STEPS = "cadence.steps"  # parameter of a training: its length
EVALUATIONS = "eval/"


class MeasureError(ValueError):
    """A trial without a usable value; the message says what was found."""


def is_training(plan: Plan) -> bool:
    """Whether the stage has a log with steps."""
    return plan.job.name == TRAINING


def steps(plan: Plan) -> int | None:
    """Steps of a training; None for another stage, and where a function computes them."""
    text = plan.values.semantic.get(STEPS, "")
    return int(text) if is_training(plan) and text.isdecimal() else None


def problem(plan: Plan, stage: str, metric: str) -> str | None:
    """What is wrong with a metric, as far as can be known before its stage runs.

    Args:
      plan: of the stage.
      stage: its name.
      metric: of it.
    """
    if is_training(plan):
        given = _evaluations(plan.values.semantic)
        if metric.startswith(EVALUATIONS) and metric not in given:
            listed = ", ".join(given) or "nothing: it has no evaluators"
            return (
                f"no evaluator of {stage} gives {metric!r}{closest(metric, given)}; "
                f"it gives {listed}"
            )
        return None
    if OUTPUT not in plan.job.outputs:
        return (
            f"stage {stage} has no numbers: expected a training, or a stage with an output "
            f"{OUTPUT!r}; it has {', '.join(plan.job.outputs)}"
        )
    return None


def _evaluations(parameters: Mapping[str, str]) -> list[str]:
    """`eval/EVALUATOR/METRIC` of a training's parameters; evaluators that list none give all."""
    found = []
    for path, name in parameters.items():
        if match := re.fullmatch(r"evaluators\[(\d+)\]\.name", path):
            listed = parameters.get(f"evaluators[{match[1]}].metrics", "")
            found += [
                f"{EVALUATIONS}{name.strip(chr(39))}/{one}"
                for one in re.findall(r"'(.+?)'", listed)
            ]
    return found


def curve(folder: Path, metric: str) -> Curve:
    """The metric at each step of a training's log; () where there is no log yet.

    Args:
      folder: of the stage; it may be running.
      metric: of it.

    Raises:
      MeasureError: a value is no number, or the log holds evaluations without the metric.
    """
    path = folder / metric_writer.JSONL
    if not path.is_file():
        return ()
    lines = metric_writer.read_lines(path)
    found = tuple((int(line["step"]), float(line[metric])) for line in lines if metric in line)
    for step, value in found:
        if not math.isfinite(value):
            raise MeasureError(f"{metric} is {value} at step {step}")
    if not found and metric.startswith(EVALUATIONS):
        others = {name for line in lines for name in line if name.startswith(EVALUATIONS)}
        if others:
            raise MeasureError(f"no {metric!r} in its log, which has {', '.join(sorted(others))}")
    return found


def chosen(points: Curve, at: str, larger_is_better: bool) -> tuple[int, float]:
    """(step, value) of a curve that counts: its last, or its best, the first of equals.

    Raises:
      MeasureError: the curve is empty.
    """
    if not points:
        raise MeasureError("the metric was never measured: the training has no evaluation")
    if at == "last":
        return points[-1]
    sign = 1.0 if larger_is_better else -1.0
    return max(points, key=lambda point: (sign * point[1], -point[0]))


def number(path: Path, metric: str) -> float:
    """A number in a JSON file, by the keys that lead to it.

    Args:
      path: of the file.
      metric: keys, joined by `/`; keys may hold `/` themselves. {"value": x} counts as x.

    Raises:
      MeasureError: there is none, or it is not finite.
    """
    value = json.loads(path.read_text(encoding="utf-8"))
    rest = metric
    while rest:
        keys = [str(key) for key in value] if isinstance(value, dict) else []
        key = next((one for one in keys if rest == one or rest.startswith(f"{one}/")), None)
        if key is None:
            there = ", ".join(keys) or "no keys"
            raise MeasureError(f"{path.name} has no {metric!r}: {rest!r} is not among {there}")
        value, rest = value[key], rest[len(key) + 1 :]
    value = value.get("value", value) if isinstance(value, dict) else value
    if not _is_number(value):
        raise MeasureError(f"{metric} in {path.name}: expected a finite number, found {value!r}")
    return float(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
