"""Reference curves: several runs of one configuration as a band for each metric.

A reference is a JSON file:

    {"format": 1, "name": ..., "runs": number of runs, "seeds": [...], "trainings": {name: {
        "settings": {...}, "records": {stage: count}, "interval": steps between log lines,
        "curves": {metric: {"steps": [...], "mean": [...], "low": [...], "high": [...]}}}}}

Curves of training metrics are smoothed: the mean of the values that were logged in the last
`SMOOTHED` intervals of the reference. One step's loss has noise of a tenth of itself, since seeds
draw other batches; a band around single steps would hold almost anything.

The band is the range over the runs, widened on both sides by `WIDENED` standard deviations of a new
run's difference from the mean of R runs, sigma sqrt(1 + 1/R). Sigma is relative to the mean, and
pooled over all steps, since three values say little of it; where it is larger among the `POOLED`
steps on both sides, it is that. The width is at least `LEAST` of the mean. One run alone shows no
spread between runs: sigma is the noise of its log, and the width at least `LEAST_OF_ONE`.
"""

import dataclasses
import itertools
import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t5x_style.configuration.suggestions import closest
from t5x_style.reporting import health_runs
from t5x_style.reporting.health_checks import Finding, development_metric, noise
from t5x_style.reporting.health_runs import GRADIENT, LOSS, HealthError, Points, Training
from t5x_style.storage import places, records

FORMAT = 1
FOLDER = Path(__file__).parent / "references"  # of those that come with the package
SMOOTHED, POOLED = 5, 4
WIDENED, LEAST, LEAST_OF_ONE = 3.0, 0.03, 0.1
ENOUGH = 3  # runs
RECORDS = 0.05  # stages that kept numbers of records this close are the same
OUTSIDE = SMOOTHED + 1  # smoothed values outside: one step alone moves SMOOTHED of them
SHOWN = 4  # settings that differ
MANY = 10  # settings that differ; of more, their number is all that helps
NEAR = 3  # settings that differ from a reference, which is compared all the same

Curve = Mapping[str, Sequence[float]]


def smoothed(training: Training, metric: str, steps: float) -> Points:
    """The trailing means of a training metric; an evaluation is over many queries, and kept.

    Args:
      training, metric: whose curve.
      steps: that a mean goes back.

    Returns:
      (step, mean) for each logged step.
    """
    points = training.points(metric)
    if not metric.startswith("train/"):
        return points
    return [
        (last, statistics.fmean(value for step, value in points if last - steps < step <= last))
        for last, _ in points
    ]


def interval(training: Training) -> float:
    """Steps between two log lines, the median."""
    steps = [step for step, _ in training.points(LOSS)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps)]
    return statistics.median(gaps) if gaps else 1.0


def metrics_of(training: Training) -> list[str]:
    """Metrics to compare: loss, gradient norm, the development metric where there is one."""
    development = development_metric(training)
    names = [LOSS, GRADIENT, *([] if development is None else [development])]
    return [name for name in names if training.points(name)]


def curve(runs: Sequence[Points], sigma_of_one: float = 0.0) -> Curve:
    """The band of one metric over the steps that all runs have.

    Args:
      runs: smoothed points of each.
      sigma_of_one: relative, of the smoothed points of a run; used where there is one run.

    Raises:
      HealthError: there is no such step.
    """
    tables = [dict(points) for points in runs]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    if not steps:
        raise HealthError("the runs logged no common step; run them with one LOG_EVERY")
    columns = [[table[step] for table in tables] for step in steps]
    means = [statistics.fmean(column) for column in columns]
    least = LEAST_OF_ONE if len(runs) == 1 else LEAST
    low, high = [], []
    for column, mean, sigma in zip(
        columns, means, _sigmas(columns, means, sigma_of_one), strict=True
    ):
        width = max(WIDENED * sigma * math.sqrt(1 + 1 / len(runs)), least) * abs(mean)
        low.append(min(column) - width)
        high.append(max(column) + width)
    found = {"steps": steps, "mean": means, "low": low, "high": high}
    return {name: [float(f"{value:.5g}") for value in row] for name, row in found.items()}


def _sigmas(
    columns: Sequence[Sequence[float]], means: Sequence[float], sigma_of_one: float
) -> list[float]:
    """The relative standard deviation of runs at each step."""
    free = len(columns[0]) - 1
    if not free:
        return [sigma_of_one] * len(columns)
    squares = [
        sum((value / mean - 1) ** 2 for value in column) / free if mean else 0.0
        for column, mean in zip(columns, means, strict=True)
    ]
    pooled = statistics.fmean(squares)
    around = (squares[max(0, n - POOLED) : n + POOLED + 1] for n in range(len(squares)))
    return [math.sqrt(max(pooled, statistics.fmean(near))) for near in around]


def make(name: str, runs: Sequence[Sequence[Training]]) -> dict[str, Any]:
    """The reference of several runs of one configuration with different seeds.

    Args:
      name: of the reference.
      runs: the trainings of each.

    Raises:
      HealthError: runs differ in more than their seed, have the same seed, or have not finished.
    """
    trainings = {}
    for first in runs[0]:
        same = [one for run in runs for one in run if one.name == first.name]
        if len(same) != len(runs):
            raise HealthError(f"{len(same)} of {len(runs)} runs have a training {first.name!r}")
        unfinished = [str(one.folder) for one in same if not one.finished]
        if unfinished:
            raise HealthError(f"a reference is made of finished trainings; not so: {unfinished}")
        seeds = [one.parameters.get("seed") for one in same]
        if len(set(seeds)) < len(seeds):
            raise HealthError(f"{first.name}: expected runs with different seeds, found {seeds}")
        for other in same[1:]:
            if differing := differences(reference_of(first), other):
                raise HealthError(
                    f"{first.name}: the runs differ in more than their seed: {some(differing)}"
                )
        span = SMOOTHED * interval(first)
        curves = {
            metric: curve([smoothed(one, metric, span) for one in same], _sigma(first, metric))
            for metric in metrics_of(first)
        }
        trainings[first.name] = reference_of(first) | {"curves": curves}
    seeds = [one[0].parameters.get("seed", "unknown") for one in runs]
    return {
        "format": FORMAT, "name": name, "runs": len(runs), "seeds": seeds, "trainings": trainings
    }  # fmt: skip


def _sigma(training: Training, metric: str) -> float:
    """Relative standard deviation of a run's smoothed points, from the noise of its log."""
    values = training.values(metric)
    if not metric.startswith("train/") or not statistics.median(values):
        return 0.0  # an evaluation has no noise that one run shows
    return noise(values) / abs(statistics.median(values)) / math.sqrt(SMOOTHED)


def reference_of(training: Training) -> dict[str, Any]:
    """Reference of a training without its curves."""
    counts = {
        str(version.record["name"]): report["count"]
        for version in training.ancestors
        if (report := health_runs.report_of(version)) and "count" in report
    }
    return {
        "settings": health_runs.settings(training),
        "records": counts,
        "interval": interval(training),
    }


def differences(reference: Mapping[str, Any], training: Training) -> list[str]:
    """Settings of a training that differ from those of a reference, in words."""
    ours, theirs = reference_of(training), reference
    old, new = theirs["settings"], ours["settings"]
    found = [
        f"{name} {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    for stage, count in theirs["records"].items():
        here = ours["records"].get(stage, 0)
        if abs(here - count) > RECORDS * count:
            found.append(f"{stage}: records {count:,} -> {here:,}")
    return found


def load(name: str) -> dict[str, Any]:
    """A reference by the name of one that comes with the package, as a file, or of a run's folder.

    Raises:
      HealthError: there is no such file or run, or it is no reference.
    """
    path = FOLDER / f"{name}.json" if name in packaged() else Path(name)
    if places.is_remote(name) or path.is_dir():
        return make(name, [_logged(health_runs.read(name))])
    if not path.is_file():
        raise HealthError(
            f"--reference={name}: expected a file that --write made, a run's folder or one of "
            f"{', '.join(packaged())}{closest(name, packaged())}"
        )
    found = records.read_json(path)
    if found is None or found.get("format") != FORMAT or "trainings" not in found:
        raise HealthError(
            f"{path}: expected a reference of format {FORMAT}, made by kennel health --write=FILE"
        )
    return found


def packaged() -> list[str]:
    """Names of the references that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def _logged(trainings: list[Training]) -> list[Training]:
    """Its trainings that logged a step; one need not be finished to be compared with."""
    return [dataclasses.replace(one, finished=True) for one in trainings if one.points(LOSS)]


def find(training: Training) -> tuple[dict[str, Any] | None, str]:
    """The reference with a training's settings, or nearly so, among those of the package.

    Returns:
      (reference, name of its training, or why there is none). At most `NEAR` settings differ.
    """
    nearest: tuple[float, dict[str, Any] | None, str] = (math.inf, None, "the package has none")
    for name in packaged():
        reference = load(name)
        for other, one in reference["trainings"].items():
            differing = differences(one, training)
            if len(differing) < nearest[0] and (len(differing) <= NEAR or other == training.name):
                near = len(differing) <= NEAR
                many = f"{len(differing)} settings"
                which = some(differing) if len(differing) <= MANY else many
                said = other if near else f"{name} differs in {which}"
                nearest = (len(differing), reference if near else None, said)
    return nearest[1:]


def some(texts: Sequence[str]) -> str:
    """The first of some texts, and how many more there are."""
    rest = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + rest


def compare(training: Training, reference: Mapping[str, Any], name: str) -> Iterator[Finding]:
    """Findings about a training's curves and the bands of a reference.

    Args:
      training: to judge.
      reference: of `load`.
      name: of the reference's training.
    """
    theirs = reference["trainings"][name]
    for metric, band in theirs["curves"].items():
        values = _values(training, metric, theirs)
        yield from _within(metric, values, band["steps"], reference)


def outside(training: Training, reference: Mapping[str, Any], name: str) -> dict[str, list[float]]:
    """Metric -> steps at which its curve is outside the band; arguments as of `compare`."""
    theirs = reference["trainings"][name]
    return {
        metric: [one.step for one in _values(training, metric, theirs) if one.out]
        for metric in theirs["curves"]
    }


class Value(NamedTuple):
    """A point of a curve, and the band there."""

    step: float
    value: float
    low: float
    high: float

    @property
    def out(self) -> bool:
        """Whether it is outside."""
        return not self.low <= self.value <= self.high


def _values(training: Training, metric: str, theirs: Mapping[str, Any]) -> list[Value]:
    """A training's smoothed points where there is a band, which is wider if it logs less often."""
    band, steps = theirs["curves"][metric], theirs["curves"][metric]["steps"]
    widened = max(1.0, math.sqrt(interval(training) / max(theirs["interval"], 1.0)))
    found = []
    for step, value in smoothed(training, metric, SMOOTHED * theirs["interval"]):
        if steps[0] <= step <= steps[-1]:
            mean, low, high = (_at(band, key, step) for key in ("mean", "low", "high"))
            low, high = mean - (mean - low) * widened, mean + (high - mean) * widened
            found.append(Value(step, value, low, high))
    return found


def _within(
    metric: str, values: Sequence[Value], steps: Sequence[float], reference: Mapping[str, Any]
) -> Iterator[Finding]:
    shown = metric.removeprefix("train/").removeprefix("eval/")
    title = f"{shown}, band of {reference['name']} ({reference['runs']} runs)"
    if not values:
        said = f"no logged step from {steps[0]:,.0f} to {steps[-1]:,.0f} to compare"
        yield Finding("note", "reference", f"{title}: {said}")
        return
    out = [one for one in values if one.out]
    last = values[-1]
    count = f"{len(values) - len(out)} of {len(values)} values inside"
    if not out:
        yield Finding(
            "ok", "reference",
            f"{title}: {count}; {last.value:.4g} at step {last.step:,}, band {last.low:.4g} to "
            f"{last.high:.4g}",
        )  # fmt: skip
        return
    evaluation = metric.startswith("eval/")
    better = evaluation and all(one.value > one.high for one in out)
    few = len(out) < OUTSIDE and not (evaluation and last.out)
    one = last if last.out else out[0]
    side = "above" if one.value > one.high else "below"
    yield Finding(
        "note" if better or few else "wrong", "reference",
        f"{title}: {count}; {one.value:.4g} at step {one.step:,} is {side} the band, "
        f"{one.low:.4g} to {one.high:.4g}",
    )  # fmt: skip


def _at(band: Curve, key: str, step: float) -> float:
    """A row of a curve at a step between its first and last, interpolated."""
    steps, row = band["steps"], band[key]
    after = next(place for place, one in enumerate(steps) if one >= step)
    if steps[after] == step:
        return row[after]
    share = (step - steps[after - 1]) / (steps[after] - steps[after - 1])
    return row[after - 1] * (1 - share) + row[after] * share


def write(path: Path, reference: Mapping[str, Any]) -> None:
    """Writes a reference, a curve's row on a line.

    Raises:
      OSError: it cannot be written.
    """
    text = json.dumps(reference, indent=1)
    rows = re.sub(r"\[\s+([-\d.e,\s]+?)\s+\]", lambda row: f"[{' '.join(row[1].split())}]", text)
    path.write_text(rows + "\n", encoding="utf-8")
