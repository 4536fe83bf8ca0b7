"""The picture of a summary page: development metric against seconds, losses, other metrics."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.training import metric_writer
from t5x_style.workflow.lineage import lineage
from t5x_style.workflow.store import Version, version_at

COLUMNS = 4  # of panels
LOSS = "train/loss"

Lines = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Training:
    """The curves of one training.

    Attributes:
      lines: of its log.
      kind: losses of trainings of one kind have one unit and share a panel.
      begins: seconds of the trainings that it was made from, all of them.
    """

    lines: Lines
    kind: str
    begins: float = 0.0

    def points(self, metric: str) -> list[tuple[float, float]]:
        """(step, value) of a metric."""
        return [(line["step"], line[metric]) for line in self.lines if metric in line]

    def timed(self, metric: str) -> list[tuple[float, float]]:
        """(seconds, value) of a metric; empty where no seconds were logged."""
        wanted = (metric, metric_writer.ELAPSED)
        return [
            (self.begins + line[metric_writer.ELAPSED], line[metric])
            for line in self.lines
            if all(name in line for name in wanted)
        ]


def read(trainings: Mapping[str, str]) -> dict[str, Training]:
    """The curves of trainings.

    Args:
      trainings: name -> folder of a training stage.
    """
    found = {}
    for name, folder in trainings.items():
        lines = metric_writer.read_lines(Path(folder) / metric_writer.JSONL)
        version = version_at(Path(folder))
        if version is None or version.manifest is None:
            found[name] = Training(lines, name)
        else:
            kind = str(version.record.get("parameters", {}).get("objective", name))
            found[name] = Training(lines, kind, _seconds_before(version))
    return found


def _seconds_before(version: Version) -> float:
    """Seconds of all trainings that led to a version, but for one that it continues.

    The log of a training that continues another holds the seconds of that one already.
    """
    total, held = 0.0, continued(version)
    for one in lineage([version.folder]):
        if one.folder.resolve() == version.folder.resolve():
            continue
        if one.record["job"]["name"] == "train" and one.id not in held:
            total += float(one.record["seconds"])
    return total


def continued(version: Version) -> set[str]:
    """Ids of the trainings whose steps are in the log of this one, which continues them."""
    found: set[str] = set()
    by_id = {one.id: one for one in lineage([version.folder])}
    parent = version.record.get("parent")
    while parent and parent not in found:
        found.add(parent)
        parent = by_id[parent].record.get("parent") if parent in by_id else None
    return found


def logged_name(metric: str) -> str:
    """The name that a training logs a metric by, given that or the evaluator's.

    >>> logged_name("dev/MRR@10"), logged_name("train/loss")
    ('eval/dev/MRR@10', 'train/loss')
    """
    return metric if metric.startswith(("train/", "eval/")) else f"eval/{metric}"


def development_metric(trainings: Mapping[str, Training]) -> str | None:
    """The development metric that most trainings logged; of equal ones the first logged."""
    count: dict[str, int] = {}
    for training in trainings.values():
        for name in _names(training.lines):
            if name.startswith(metric_writer.EVALUATIONS):
                count[name] = count.get(name, 0) + 1
    return max(count, key=lambda name: count[name]) if count else None


def _names(lines: Lines) -> dict[str, None]:
    return dict.fromkeys(name for line in lines for name in line)


def without_seconds(trainings: Mapping[str, Training], metric: str | None) -> list[str]:
    """Trainings whose development metric cannot be drawn against seconds: none were logged."""
    return [
        name
        for name, training in trainings.items()
        if metric is not None and training.points(metric) and not training.timed(metric)
    ]


@dataclasses.dataclass(frozen=True)
class Mark:
    """A value of a system over the whole corpus, to compare the curves with.

    Attributes:
      system: its name.
      value: of the development metric.
      training: whose end it is drawn at; None: a horizontal line.
    """

    system: str
    value: float
    training: str | None = None


def marks(
    results: Mapping[str, Any], trainings: Mapping[str, Training], metric: str | None
) -> list[Mark]:
    """Values of an evaluation on development queries by the metric of the curves.

    Args:
      results: metrics.json.
      trainings: whose names may be names of systems.
      metric: as 'eval/dev/MRR@10'; the evaluator has the name of a split, or there is one split.
    """
    development = results.get("development", {})
    if metric is None or not development:
        return []
    evaluator, _, name = metric.removeprefix(metric_writer.EVALUATIONS).partition("/")
    split = evaluator if evaluator in development else next(iter(development))
    found = []
    for system, values in development[split]["systems"].items():
        lexical = "k1" in results.get("facts", {}).get(system, {})
        if name in values and (lexical or system in trainings):
            found.append(Mark(system, values[name], None if lexical else system))
    return found


def caption(
    trainings: Mapping[str, Training], metric: str | None, marked: Sequence[Mark]
) -> list[str]:
    """Caption of the picture, lines of Markdown.

    Args:
      trainings, metric, marked: as drawn.
    """
    said = []
    if marked:
        said.append(
            "The dashed line and the stars are measured over the whole corpus; the curves on what "
            "the trainings' evaluators search, which may be a sample of it."
        )
    untimed = without_seconds(trainings, metric)
    if untimed:
        said.append(
            f"No seconds were logged by {', '.join(untimed)}, made before they were: no curve "
            "against seconds. --rerun makes them again."
        )
    return [*said, ""] if said else []


def draw(
    trainings: Mapping[str, Training],
    png: Path,
    metric: str | None,
    marked: Sequence[Mark] = (),
) -> None:
    """Draws the curves of several trainings as one PNG.

    First `metric` against seconds; then the losses, a panel for each kind of training; then the
    other development metrics, a panel each. What has one value at all steps is left out.

    Args:
      trainings: by name.
      png: the file.
      metric: a development metric, as 'eval/dev/MRR@10'; None: there is none.
      marked: values of systems over the whole corpus.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colours = {name: f"C{number}" for number, name in enumerate(trainings)}
    panels = _panels(trainings, metric)
    wide = 2 if metric is not None else 0
    count = max(1, wide + len(panels))
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = plt.figure(figsize=(4.2 * columns, 3.4 * rows), constrained_layout=True)
    grid = figure.add_gridspec(rows, columns)
    if metric is not None:
        axis = figure.add_subplot(grid[0, : min(wide, columns)])
        _draw_development(axis, trainings, metric, marked, colours)
    for place, (title, names, key) in enumerate(panels, start=wide):
        axis = figure.add_subplot(grid[divmod(place, columns)])
        for name in names:
            _line(axis, trainings[name].points(key), name, colours[name])
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(png, dpi=120)
    plt.close(figure)


def _panels(
    trainings: Mapping[str, Training], metric: str | None
) -> list[tuple[str, list[str], str]]:
    """(title, trainings, metric) of each panel but the first."""
    found = []
    kinds = dict.fromkeys(training.kind for training in trainings.values())
    for kind in kinds:
        names = [name for name, one in trainings.items() if one.kind == kind and _varies(one, LOSS)]
        if names:
            found.append((f"loss of {', '.join(names)}", names, LOSS))
    keys = dict.fromkeys(key for one in trainings.values() for key in _names(one.lines))
    for key in keys:
        if not key.startswith(metric_writer.EVALUATIONS):
            continue
        shown = without_seconds(trainings, metric) if key == metric else list(trainings)
        names = [name for name in shown if _varies(trainings[name], key)]
        if names:
            found.append((key, names, key))
    return found


def _varies(training: Training, key: str) -> bool:
    values = [value for _, value in training.points(key)]
    return len(values) == 1 or len(set(values)) > 1


def _draw_development(
    axis: Any,
    trainings: Mapping[str, Training],
    metric: str,
    marked: Sequence[Mark],
    colours: Mapping[str, str],
) -> None:
    for name, training in trainings.items():
        _line(axis, training.timed(metric), name, colours[name])
    for mark in marked:
        label = f"{mark.system}, whole corpus: {mark.value:.3f}"
        if mark.training is None:
            axis.axhline(mark.value, color="black", linestyle="--", linewidth=1.2, label=label)
            continue
        points = trainings[mark.training].timed(metric)
        if points:
            style = {"color": colours[mark.training], "marker": "*", "s": 110, "zorder": 3}
            axis.scatter([points[-1][0]], [mark.value], label=label, **style)
    axis.set(title=f"{metric} against time", xlabel="seconds of training, evaluation included")
    axis.set_xlim(left=0)
    drawn = [value for one in trainings.values() for _, value in one.timed(metric)]
    _limit(axis, [*drawn, *(mark.value for mark in marked)])
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, loc="lower right")


def _limit(axis: Any, values: Sequence[float]) -> None:
    """From 0 where values differ much, else from below the lowest, so that differences show."""
    if values and (high := max(values)) > 0:
        low = min(values)
        axis.set_ylim(0 if low < high / 2 else low - 0.5 * (high - low) - 0.02 * high, 1.05 * high)


def _line(axis: Any, points: Sequence[tuple[float, float]], label: str, colour: str) -> None:
    if points:
        marker = "." if len(points) < 60 else ""
        axis.plot(
            *zip(*points, strict=True), label=label, color=colour, marker=marker, linewidth=1.3
        )
