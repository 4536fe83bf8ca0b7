"""The measure of a trial: a metric of one stage, read from the stage's output.

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
UNMEASURED = "the metric was never measured"  # which is so for all trials of a sweep
QUOTE = "'"  # around texts in parameters


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
    """Error of a metric, as far as it can be known before its stage runs.

    Args:
      plan: of the stage.
      stage: its name.
      metric: of it.
    """
    if is_training(plan):
        evaluators = _evaluators(plan.values.semantic)
        evaluator = metric.removeprefix(EVALUATIONS).rpartition("/")[0]
        unlisted = evaluator in evaluators and not evaluators[evaluator]
        given = [f"{EVALUATIONS}{one}/{its}" for one, all_ in evaluators.items() for its in all_]
        if metric.startswith(EVALUATIONS) and metric not in given and not unlisted:
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


def _evaluators(parameters: Mapping[str, str]) -> dict[str, list[str]]:
    """Evaluator of a training -> names of its metrics, [] where it lists none."""
    found = {}
    for path, name in parameters.items():
        if match := re.fullmatch(r"(evaluators\[\d+\])\.name", path):
            listed = parameters.get(f"{match[1]}.metrics", "")
            found[name.strip(QUOTE)] = re.findall(f"{QUOTE}(.+?){QUOTE}", listed)
    return found


def curve(log: Path, metric: str) -> tuple[Curve, str]:
    """The metric at each step of a training's log, up to the first value that is no number.

    Args:
      log: of the training, which may be running.
      metric: of it.

    Returns:
      the curve, () where there is no log yet; and what is wrong with the log, or "".
    """
    try:
        lines = metric_writer.read_lines(log)
    except OSError:
        return (), ""
    except ValueError as error:
        return (), str(error)
    found: list[tuple[int, float]] = []
    for line in lines:
        if metric in line:
            if not _is_number(line[metric]):
                return tuple(found), f"{metric} is {line[metric]} at step {line['step']}"
            found.append((int(line["step"]), float(line[metric])))
    if not found and metric.startswith(EVALUATIONS):
        others = {name for line in lines for name in line if name.startswith(EVALUATIONS)}
        if others:
            return (), f"{UNMEASURED}: its log has {', '.join(sorted(others))}"
    return tuple(found), ""


def chosen(points: Curve, at: str, larger_is_better: bool) -> tuple[int, float]:
    """(step, value) of a curve that counts: its last, or its best, the first of equals.

    Raises:
      MeasureError: the curve is empty.
    """
    if not points:
        raise MeasureError(
            f"{UNMEASURED}: the training has no evaluation; has it development queries "
            "(QUERY_SPLITS=divided_queries), and are its steps enough for EVALUATE_EVERY?"
        )
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
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MeasureError(f"{path}: expected JSON: {error}") from error
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
