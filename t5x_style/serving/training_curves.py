"""How the model of a bundle was trained: the curves of each training, as `curves.json`.

    {"format": 1, "unread": [], "left_out": 0,
     "trainings": [{"name": "retriever", "served": true, "finished": "2026-11-28 05:12:45",
                    "seconds": 2875.579,
                    "curves": [{"name": "train/loss", "logged": 1200, "steps": [5, ...],
                                "values": [8.8007, ..., null]}, ...]}]}

A file is at most BYTES long: curves have fewer points where that is needed, and then the last
curves of the longest trainings are left out. The file says how many.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

FILE, FORMAT = "curves.json", 1
POINTS = (300, 150, 75, 30)  # of a curve at most; the next number where the file is too long
CURVES = 40  # of a training
BYTES = 1_000_000
_DIGITS = 6  # that count, of a value


class CurvesError(ValueError):
    """A curves.json that this code does not read."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """One metric over the steps of a training; n points.

    Attributes:
      name: as logged, 'train/loss' or 'eval/dev/MRR@10'.
      logged: points of the log, of which these are some.
      steps: n, in the order of the log.
      values: n, with six digits that count; None where the value was NaN or infinite.
    """

    name: str
    logged: int
    steps: Sequence[int]
    values: Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class Training:
    """One training stage.

    Attributes:
      name: of the stage.
      served: whether the model that is served was made from it; others of the run are baselines.
      finished: when it was, 'YYYY-MM-DD hh:mm:ss' in the time of the machine.
      seconds: of training, evaluation included.
      curves: in the order of importance.
    """

    name: str
    served: bool
    finished: str
    seconds: float
    curves: Sequence[Curve]


@dataclasses.dataclass(frozen=True)
class Curves:
    """The trainings of a run, each after those that it was made from.

    Attributes:
      trainings: with their curves.
      unread: names of trainings whose log is missing or damaged.
      left_out: curves that the limits of the file left out.
    """

    trainings: Sequence[Training]
    unread: Sequence[str] = ()
    left_out: int = 0


def kept_points(values: Sequence[float], most: int) -> list[int]:
    """Which points of a curve are kept: some at even distances, and those that must not be missed.

    The latter are the first, the last, the lowest, the highest, and the first that is NaN or
    infinite. Points are counted in the order of the log, whatever their steps are.

    Args:
      values: of the n points, in order.
      most: how many to keep, at least 5.

    Returns:
      indices of at most `most` points, ascending; all of them where n is no more than that.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    finite = [at for at in range(count) if math.isfinite(values[at])]
    marked = {*islice((at for at in range(count) if not math.isfinite(values[at])), 1)}
    if finite:
        marked |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
    even = most - len(marked)  # at least 2, the ends
    spaced = {place * (count - 1) // (even - 1) for place in range(even)}
    return sorted(spaced | marked)


def curve(name: str, points: Sequence[tuple[int, float]], most: int = POINTS[0]) -> Curve:
    """A curve of at most `most` of the (step, value) that were logged."""
    kept = [points[at] for at in kept_points([value for _, value in points], most)]
    values = [_rounded(value) for _, value in kept]
    return Curve(name, len(points), [step for step, _ in kept], values)


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def text_of(curves: Curves, most_bytes: int = BYTES) -> str:
    """What curves.json holds of curves, within the limits; see the module's docstring.

    Args:
      curves: with up to POINTS[0] points each.
      most_bytes: of the text, all of which is ASCII.
    """
    trainings = [dataclasses.replace(one, curves=one.curves[:CURVES]) for one in curves.trainings]
    left_out = curves.left_out + sum(len(one.curves[CURVES:]) for one in curves.trainings)
    for most in POINTS:
        trainings = [_thinned(one, most) for one in trainings]
        text = _json(dataclasses.replace(curves, trainings=trainings, left_out=left_out))
        if len(text) <= most_bytes:
            return text
    while (excess := len(text) - most_bytes) > 0 and any(one.curves for one in trainings):
        fewer = _fewer_curves(trainings, excess)
        left_out += sum(map(_curves_of, trainings)) - sum(map(_curves_of, fewer))
        trainings = fewer
        text = _json(dataclasses.replace(curves, trainings=trainings, left_out=left_out))
    return text


def _fewer_curves(trainings: Sequence[Training], excess: int) -> list[Training]:
    """Without the last curves of the trainings that have most, about `excess` bytes of JSON."""
    kept = list(map(_curves_of, trainings))
    while excess > 0 and any(kept):
        longest = max(range(len(kept)), key=kept.__getitem__)
        kept[longest] -= 1
        excess -= len(_dumped(dataclasses.asdict(trainings[longest].curves[kept[longest]])))
    return [
        dataclasses.replace(one, curves=one.curves[:most])
        for one, most in zip(trainings, kept, strict=True)
    ]


def _curves_of(training: Training) -> int:
    return len(training.curves)


def _thinned(training: Training, most: int) -> Training:
    found = []
    for one in training.curves:
        values = [math.nan if value is None else value for value in one.values]
        kept = kept_points(values, most)
        steps, thinned = [one.steps[at] for at in kept], [one.values[at] for at in kept]
        found.append(dataclasses.replace(one, steps=steps, values=thinned))
    return dataclasses.replace(training, curves=found)


def _json(curves: Curves) -> str:
    return _dumped({"format": FORMAT, **dataclasses.asdict(curves)}) + "\n"


def _dumped(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def write(version: Path, curves: Curves | None) -> None:
    """Writes curves.json into the folder of a version; nothing where there are no curves."""
    if curves is not None:
        (version / FILE).write_text(text_of(curves), encoding="utf-8")


def read(version: Path) -> Curves | None:
    """The curves of a version; None where it has none.

    Raises:
      CurvesError: curves.json is not of this format.
    """
    path = version / FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise CurvesError(f"{path}: expected format {FORMAT}, found {content['format']!r}")
        trainings = [_training(one) for one in content["trainings"]]
        unread = [str(name) for name in content["unread"]]
        return Curves(trainings, unread, int(content["left_out"]))
    except CurvesError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CurvesError(
            f"{path}: expected the curves of trainings, found something else ({error!r}). Make the "
            "bundle again: kennel export --bundle=RUN"
        ) from error


def _training(content: Mapping[str, Any]) -> Training:
    curves = [_curve(one) for one in content["curves"]]
    seconds = float(content["seconds"])
    name, finished = str(content["name"]), str(content["finished"])
    return Training(name, bool(content["served"]), finished, seconds, curves)


def _curve(content: Mapping[str, Any]) -> Curve:
    steps = [int(step) for step in content["steps"]]
    values = [None if value is None else float(value) for value in content["values"]]
    if len(steps) != len(values):
        raise CurvesError(
            f"{content['name']}: expected a value for each of {len(steps)} steps, found "
            f"{len(values)}"
        )
    return Curve(str(content["name"]), int(content["logged"]), steps, values)
