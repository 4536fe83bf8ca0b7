"""Stage: how well models find translations, as metrics by language, tables, and a picture."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from t5x_style import runtime
from t5x_style.evaluation.translation_sets import Accuracies, TranslationSet
from t5x_style.evaluation.translation_systems import Embedder, TranslationSystem, between_languages
from t5x_style.retrieval import publish

ALL = "all"


def evaluate_bitext(
    sets: Sequence[TranslationSet],
    systems: Sequence[TranslationSystem],
    groups: Mapping[str, Sequence[str]],
    pivot: str,
    model_dir: str,
    pictured: Sequence[tuple[str, str]] = (),
) -> dict[str, str]:
    """Writes metrics.json, and pictures as languages_SYSTEM_SET.png; prints a table of each set.

    metrics.json: {"sets": {set: {"translations": n, "systems": {system: {"groups": {group: values},
    "languages": {language: values}}}}}}; values are accuracy, accuracy_to_pivot and
    accuracy_from_pivot. A group's are means over its languages that the set has; "all" is of all.

    Args:
      sets: what is asked.
      systems: what answers.
      groups: name -> languages, codes as in the sets.
      pivot: the language that every pair has.
      model_dir: where the files go.
      pictured: (system, set): accuracy from every language to every other, of a set that says the
        same in many.

    Raises:
      ValueError: names that are not distinct or not there, or a pair of languages without the
        pivot.
    """
    _require_names([one.name for one in sets], "sets")
    _require_names([one.name for one in systems], "systems")
    pictures = _pictures(pictured, systems, sets)
    report: dict[str, Any] = {"sets": {}, "facts": {one.name: one.facts() for one in systems}}
    for of in sets:
        found = {one.name: _by_language(one.found(of), pivot, of.name) for one in systems}
        report["sets"][of.name] = {
            "translations": len(of.sources.ids),
            "systems": {name: _grouped(values, groups) for name, values in found.items()},
        }
    if jax.process_index() == 0:
        folder = Path(model_dir)
        publish.write_atomically(folder / "metrics.json", json.dumps(report, indent=1) + "\n")
        console = Console(width=None if sys.stdout.isatty() else 120)
        for name, one in report["sets"].items():
            console.print(table(name, one))
        for system, of in pictures:
            names, matrix = between_languages(of, *system.vectors(of))
            file = folder / f"languages_{system.name}_{of.name}.png"
            draw(names, matrix, f"{system.name} on {of.name}", file)
    return {"metrics": "metrics.json"}


def _pictures(
    pictured: Sequence[tuple[str, str]],
    systems: Sequence[TranslationSystem],
    sets: Sequence[TranslationSet],
) -> list[tuple[Embedder, TranslationSet]]:
    """The systems and sets of these names."""
    embedders = {one.name: one for one in systems if isinstance(one, Embedder)}
    named = {one.name: one for one in sets}
    for system, of in pictured:
        if system not in embedders or of not in named:
            raise ValueError(
                f"pictured: expected models among {sorted(embedders)} and sets among "
                f"{sorted(named)}, found {(system, of)}"
            )
    return [(embedders[system], named[of]) for system, of in pictured]


def _require_names(names: Sequence[str], what: str) -> None:
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{what}: expected one or more, of distinct names, found {list(names)}")


def _by_language(found: Accuracies, pivot: str, where: str) -> dict[str, dict[str, float]]:
    """Language beside the pivot -> values."""
    values = {}
    for pair, one in found.items():
        first, _, second = pair.partition("_")
        if pivot not in (first, second):
            raise ValueError(f"{where}: expected pairs of languages with {pivot!r}, found {pair!r}")
        target, source = float(one["to_target"].mean()), float(one["to_source"].mean())
        from_pivot, to_pivot = (target, source) if first == pivot else (source, target)
        values[second if first == pivot else first] = {
            "accuracy": (target + source) / 2,
            "accuracy_to_pivot": to_pivot,
            "accuracy_from_pivot": from_pivot,
        }
    return dict(sorted(values.items()))


def _grouped(
    values: Mapping[str, Mapping[str, float]], groups: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Values by language, and means over the languages of each group."""
    means = {}
    for name, members in ({ALL: list(values)} | dict(groups)).items():
        there = [values[language] for language in members if language in values]
        if there:
            means[name] = {key: float(np.mean([one[key] for one in there])) for key in there[0]}
            means[name]["languages"] = len(there)
    return {"groups": means, "languages": dict(values)}


def table(name: str, report: Mapping[str, Any]) -> Table:
    """The systems beside each other: accuracy of groups, both ways and each way.

    Args:
      name: of the set.
      report: what metrics.json says of it.
    """
    result = Table(
        title=f"{name}: {report['translations']:,} translations",
        caption="share of sentences whose translation is the nearest; below, to and from the pivot",
    )
    systems = report["systems"]
    groups = next(iter(systems.values()))["groups"]
    result.add_column("system")
    for group, one in groups.items():
        result.add_column(f"{group} ({one['languages']})", justify="right")
    for system, found in systems.items():
        cells = []
        for one in found["groups"].values():
            ways = [f"{one[f'accuracy_{way}_pivot']:.3f}" for way in ("to", "from")]
            cells.append(f"{one['accuracy']:.4f}\n{' '.join(ways)}")
        result.add_row(system, *cells)
    return result


def draw(languages: Sequence[str], matrix: np.ndarray, title: str, png: Path) -> None:
    """Accuracies [languages, languages] as colours, from rows to columns."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    size = max(4.0, 0.16 * len(languages) + 2)
    figure, axis = plt.subplots(figsize=(size, size), constrained_layout=True)
    image = axis.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
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

    runtime.start()
    stage.main("t5x_style.evaluate_bitext.evaluate_bitext")
