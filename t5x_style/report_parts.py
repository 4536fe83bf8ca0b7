"""What pages about a recipe have in common: times of its stages, curves of its trainings."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style import metric_log

COLUMNS = 4  # of panels in curves.png


def stage_seconds(run_dir: Path) -> dict[str, float]:
    """Seconds of every finished stage in the recipe's folder, in the order they finished."""
    records = [json.loads(path.read_text("utf-8")) for path in run_dir.glob("*/stage.json")]
    records.sort(key=lambda record: record["finished"])
    return {record["name"]: record["seconds"] for record in records}


def times(stages: Mapping[str, float], budget: float) -> list[str]:
    """Lines of Markdown: how long each stage took.

    Args:
      stages: name -> seconds.
      budget: of the recipe.
    """
    return [
        f"Budget {budget}, {sum(stages.values()):.0f} seconds in all:",
        "",
        "| stage | seconds |",
        "|---|---|",
        *(f"| {name} | {seconds:.0f} |" for name, seconds in stages.items()),
        "",
    ]


def logged(trainings: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Training -> the lines of its log; of their folders."""
    return {
        Path(folder).name: metric_log.read_lines(Path(folder) / metric_log.JSONL)
        for folder in trainings
    }


def by_step(metric: str, logged: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A table of one metric in Markdown: steps down, the trainings that logged it across."""
    found = {
        name: {line["step"]: line[metric] for line in lines if metric in line}
        for name, lines in logged.items()
    }
    found = {name: points for name, points in found.items() if points}
    if not found:
        raise ValueError(f"over_training: none of the trainings {sorted(logged)} logged {metric!r}")
    rows = []
    for step in sorted({step for points in found.values() for step in points}):
        cells = [f"{points[step]:.4f}" if step in points else "" for points in found.values()]
        rows.append(f"| {step} | " + " | ".join(cells) + " |")
    head = [f"| step | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    return "\n".join(["", f"`{metric}` over training:", "", *head, *rows, ""])


def draw(lines: Mapping[str, Sequence[Mapping[str, Any]]], png: Path) -> None:
    """Losses and development metrics of several trainings, a panel a metric, as one PNG.

    Args:
      lines: training -> those of its log.
      png: the file.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    keys = dict.fromkeys(key for run in lines.values() for line in run for key in line)
    shown = ["train/loss", *(key for key in keys if key.startswith("eval/"))]
    columns = min(len(shown), COLUMNS)
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4.2 * columns, 3.4 * rows), squeeze=False, constrained_layout=True
    )
    for axis in axes.flat[len(shown) :]:
        axis.remove()
    for axis, key in zip(axes.flat[: len(shown)], shown, strict=True):
        for number, (name, run) in enumerate(lines.items()):
            points = [(line["step"], line[key]) for line in run if key in line]
            if points:
                style = {
                    "color": f"C{number}",
                    "marker": ".",
                    "linewidth": 1.3,
                }  # alike in all panels
                axis.plot(*zip(*points, strict=True), label=name, **style)
        axis.set_title(key)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(png, dpi=120)
    plt.close(figure)
