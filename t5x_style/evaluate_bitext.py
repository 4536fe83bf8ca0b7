"""Stage: evaluate models on sentences of many languages: metrics, tables, and pictures."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from t5x_style.distributed import startup
from t5x_style.multilingual import language_groups
from t5x_style.multilingual.sentence_embedders import Embedder, SentenceSystem
from t5x_style.retrieval import versioned_folder

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "evaluate_bitext": {
        "name": "evaluate_bitext",
        "version": 1,
        "outputs": ["languages", "metrics"],
        "program": True,
        "check": "check",
    }
}


class Task(Protocol):
    """A task that systems are evaluated on."""

    @property
    def name(self) -> str:
        """In tables."""
        ...

    def facts(self) -> dict[str, Any]:
        """Counts of the task, by name."""
        ...

    def measure(self, system: SentenceSystem) -> dict[str, dict[str, float]]:
        """Language or pair of them -> metric -> value, the metric that counts first."""
        ...


class Pictured(Task, Protocol):
    """A task between all languages."""

    def between(self, system: SentenceSystem) -> tuple[list[str], np.ndarray]:
        """Languages, sorted, and accuracies [languages, languages], from rows to columns."""
        ...


def evaluate_bitext(
    tasks: Sequence[Task],
    systems: Sequence[SentenceSystem],
    groups: Mapping[str, Sequence[str]],
    model_dir: str,
    trained: Callable[[str], bool] | None = None,
    pictured: Sequence[tuple[str, str]] = (),
) -> dict[str, str]:
    """Writes metrics.json, languages.md and languages_SYSTEM_TASK.png; prints a table of each task.

    metrics.json: {"sets": {task: {"facts": {...}, "systems": {system: {"groups": {group: values},
    "languages": {language: values}}}}}, "facts": {system: {...}}}. A group's values are means over
    its languages that the task has; "all" is of all. languages.md has the first metric by language.

    Args:
      tasks: what is asked.
      systems: what answers.
      groups: name -> languages, codes as in the tasks.
      model_dir: where the files go.
      trained: whether a language was trained on; makes two more groups, 'trained' and 'zero_shot'.
      pictured: (system, task): accuracy from every language to every other.

    Raises:
      ValueError: names that are not distinct or not there.
    """
    check(systems, tasks)
    pictures = _pictures(pictured, systems, tasks)
    report: dict[str, Any] = {"sets": {}, "facts": {one.name: one.facts() for one in systems}}
    for task in tasks:
        found = {system.name: task.measure(system) for system in systems}
        report["sets"][task.name] = {
            "facts": task.facts(),
            "systems": {
                name: {
                    "groups": language_groups.grouped(values, groups, trained),
                    "languages": values,
                }
                for name, values in found.items()
            },
        }
    drawn = [(system, task, *task.between(system)) for system, task in pictures]
    if jax.process_index() == 0:
        folder = Path(model_dir)
        versioned_folder.write_atomically(
            folder / "metrics.json", json.dumps(report, indent=1) + "\n"
        )
        versioned_folder.write_atomically(
            folder / "languages.md", by_language(report["sets"], trained)
        )
        console = Console(width=None if sys.stdout.isatty() else 120)
        for name, one in report["sets"].items():
            console.print(table(name, one))
        for system, task, names, matrix in drawn:
            file = folder / f"languages_{system.name}_{task.name}.png"
            draw(names, matrix, f"{system.name} on {task.name}", file)
    return {"metrics": "metrics.json", "languages": "languages.md"}


def _pictures(
    pictured: Sequence[tuple[str, str]], systems: Sequence[SentenceSystem], tasks: Sequence[Task]
) -> list[tuple[Embedder, Pictured]]:
    """The systems and tasks of these names."""
    embedders = {one.name: one for one in systems if isinstance(one, Embedder)}
    named: dict[str, Any] = {one.name: one for one in tasks if hasattr(one, "between")}
    for system, task in pictured:
        if system not in embedders or task not in named:
            raise ValueError(
                f"pictured: expected models among {sorted(embedders)} and tasks among "
                f"{sorted(named)}, found {(system, task)}"
            )
    return [(embedders[system], named[task]) for system, task in pictured]


def check(systems: Sequence[SentenceSystem], tasks: Sequence[Task]) -> None:
    """Check arguments before `evaluate_bitext` runs; ValueError, see there."""
    _require_names([one.name for one in systems], "systems")
    _require_names([one.name for one in tasks], "tasks")


def _require_names(names: Sequence[str], what: str) -> None:
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{what}: expected one or more, of distinct names, found {list(names)}")


def table(name: str, report: Mapping[str, Any]) -> Table:
    """Table of all systems, with a column for each group of languages.

    Args:
      name: of the task.
      report: what metrics.json says of it.
    """
    systems = report["systems"]
    groups = next(iter(systems.values()))["groups"]
    metrics = [key for key in groups[language_groups.ALL] if key != "languages"]
    result = Table(
        title=f"{name}: " + ", ".join(f"{key} {value}" for key, value in report["facts"].items()),
        caption=f"{metrics[0]}; below it {', '.join(metrics[1:])}",
    )
    result.add_column("system")
    for group, one in groups.items():
        result.add_column(f"{group} ({one['languages']})", justify="right")
    for system, found in systems.items():
        cells = []
        for one in found["groups"].values():
            below = " ".join(f"{one[metric]:.3f}" for metric in metrics[1:])
            cells.append(f"{one[metrics[0]]:.4f}\n{below}")
        result.add_row(system, *cells)
    return result


def by_language(
    sets: Mapping[str, Mapping[str, Any]], trained: Callable[[str], bool] | None
) -> str:
    """A Markdown table for each task: its first metric, languages down, systems across.

    Args:
      sets: what metrics.json says of them.
      trained: see `evaluate_bitext`; a star follows a language that was not trained on.
    """
    parts = []
    for name, report in sets.items():
        systems = {system: one["languages"] for system, one in report["systems"].items()}
        languages = sorted({language for values in systems.values() for language in values})
        metric = next(iter(next(iter(systems.values()))[languages[0]]))
        lines = [
            f"## {name}: {metric}\n",
            f"| language | {' | '.join(systems)} |",
            "|---|" + "---|" * len(systems),
        ]
        for language in languages:
            star = "" if trained is None or trained(language) else "\\*"
            cells = [f"{values[language][metric]:.3f}" for values in systems.values()]
            lines.append(f"| {language}{star} | {' | '.join(cells)} |")
        parts.append("\n".join(lines) + "\n")
    note = "" if trained is None else "\\* no text of this language was trained on.\n"
    return "\n".join([*parts, note])


def draw(languages: Sequence[str], matrix: np.ndarray, title: str, png: Path) -> None:
    """Accuracies [languages, languages] as colours, from rows to columns."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import colors
    from matplotlib import pyplot as plt

    size = max(4.0, 0.16 * len(languages) + 2)
    figure, axis = plt.subplots(figsize=(size, size), constrained_layout=True)
    # By the square root, since most are small.
    image = axis.imshow(matrix, norm=colors.PowerNorm(0.5, 0, 1), cmap="viridis")
    axis.set_xticks(range(len(languages)), languages, rotation=90, fontsize=6)
    axis.set_yticks(range(len(languages)), languages, fontsize=6)
    axis.set_xlabel("to")
    axis.set_ylabel("from")
    axis.set_title(title)
    figure.colorbar(image, label="accuracy", shrink=0.7)
    figure.savefig(png, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.evaluate_bitext.evaluate_bitext")
