"""Common parts of pages about a recipe: times of its stages, curves of its trainings."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5x_style.training import metric_writer
from t5x_style.workflow.lineage import lineage
from t5x_style.workflow.store import Version


def stages(paths: Iterable[str]) -> dict[str, Version]:
    """The finished stages that led to a page's inputs, by name, in the order they finished.

    Args:
      paths: the inputs; those that no stage wrote add nothing.

    Returns:
      Name of the stage -> its version. Names that several versions have are followed by the
      version's id, as in `train (train-3f2a9c0d1e2b4a5c)`.
    """
    versions = lineage(paths)
    count = Counter(version.record["name"] for version in versions)
    return {
        f"{name} ({version.id})" if count[name := version.record["name"]] > 1 else name: version
        for version in versions
    }


def stage_seconds(stages: Mapping[str, Version]) -> dict[str, float]:
    """Name -> seconds that the stage took."""
    return {name: float(version.record["seconds"]) for name, version in stages.items()}


def stage_code(stages: Mapping[str, Version]) -> dict[str, str]:
    """Name -> twelve digits that identify the source code of the stage."""
    return {name: str(version.record["code_hash"]) for name, version in stages.items()}


def times(stages: Mapping[str, Version], budget: float) -> list[str]:
    """Lines of Markdown: how long each stage took, and with which code.

    Args:
      stages: of `stages`.
      budget: of the recipe.
    """
    seconds, code = stage_seconds(stages), stage_code(stages)
    mixed = [name for name, version in stages.items() if version.record.get("mixed_code")]
    note = f"Stopped, and continued with changed code: {', '.join(mixed)}."
    return [
        f"The stages that led to this page, with the time that each took and a hash of its source "
        f"code. Budget {budget}, {sum(seconds.values()):.0f} seconds in all:",
        "",
        "| stage | seconds | code |",
        "|---|---|---|",
        *(f"| {name} | {seconds[name]:.0f} | `{code[name]}` |" for name in stages),
        "",
        *([note, ""] if mixed else []),
    ]


def metrics_of(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Metrics that trainings logged of evaluations, in words, for messages."""
    names = {name for lines in logs.values() for line in lines for name in line}
    found = sorted(name for name in names if name.startswith(metric_writer.EVALUATIONS))
    return f"they logged {', '.join(found)}" if found else "they logged no evaluation"


def by_step(metric: str, logged: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A table of one metric in Markdown: steps down, the trainings that logged it across."""
    found = {
        name: {line["step"]: line[metric] for line in lines if metric in line}
        for name, lines in logged.items()
    }
    found = {name: points for name, points in found.items() if points}
    if not found:
        raise ValueError(
            f"over_training: none of the trainings {sorted(logged)} logged {metric!r}; "
            f"{metrics_of(logged)}"
        )
    rows = []
    for step in sorted({step for points in found.values() for step in points}):
        cells = [f"{points[step]:.4f}" if step in points else "" for points in found.values()]
        rows.append(f"| {step} | " + " | ".join(cells) + " |")
    head = [f"| step | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    return "\n".join(["", f"`{metric}` over training:", "", *head, *rows, ""])
