"""The picture of a health check: curves of a run over the bands of its reference."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.reporting import health_reference
from t5x_style.reporting.health_runs import Training

WIDE, HIGH = 4.2, 2.9  # inches of a panel
Pair = tuple[Training, Mapping[str, Any] | None, str]


def draw(pairs: Sequence[Pair], png: Path) -> None:
    """Draws a row of panels for each training: what a reference compares, with its band.

    Args:
      pairs: training, its reference or None, and the name of its training there.
      png: the file.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = [(one, _curves(reference, name)) for one, reference, name in pairs]
    metrics = [list(dict.fromkeys([*health_reference.metrics_of(one), *of])) for one, of in rows]
    columns = max([1, *map(len, metrics)])
    figure, axes = plt.subplots(
        len(rows), columns, figsize=(WIDE * columns, HIGH * len(rows)), squeeze=False,
        constrained_layout=True,
    )  # fmt: skip
    for line, (training, curves), names in zip(axes, rows, metrics, strict=True):
        for axis, metric in zip(line, names, strict=False):
            _panel(axis, training, metric, curves.get(metric))
        for axis in line[len(names) :]:
            axis.axis("off")
    figure.savefig(png, dpi=90)
    plt.close(figure)


def _curves(reference: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    return {} if reference is None else dict(reference["trainings"][name]["curves"])


def _panel(axis: Any, training: Training, metric: str, band: Mapping[str, Any] | None) -> None:
    if band is not None:
        steps = band["steps"]
        axis.fill_between(steps, band["low"], band["high"], color="C0", alpha=0.2, label="band")
        axis.plot(steps, band["mean"], color="C0", linewidth=1.0, label="mean of the reference")
    span = health_reference.SMOOTHED * health_reference.interval(training)
    points = health_reference.smoothed(training, metric, span)
    if points:
        few = len(points) < 30
        axis.plot(
            *zip(*points, strict=True), color="C3", linewidth=1.3, marker="." if few else "",
            label="this run",
        )  # fmt: skip
    axis.set_title(f"{training.name}: {metric}", fontsize=9)
    axis.set_xlabel("step", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
