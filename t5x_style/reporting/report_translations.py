"""Stage: one page about a recipe that ends in `evaluate_bitext`: groups, times, curves, more."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.multilingual.language_groups import ALL, TRAINED, ZERO_SHOT
from t5x_style.reporting import report_curves, report_tables

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "report_translations": {
        "name": "report_translations",
        "version": 2,
        "outputs": ["curves", "page"],
    }
}


def report_translations(
    evaluation: str,
    languages: str,
    trainings: Mapping[str, str],
    budget: float,
    model_dir: str,
    over_training: Sequence[str] = (),
) -> dict[str, str]:
    """Writes summary.md and curves.png.

    Args:
      evaluation: metrics.json of an evaluate_bitext stage.
      languages: its languages.md.
      trainings: name -> folder of a training stage; their curves are drawn together.
      budget: of the recipe, quoted.
      model_dir: where the files go.
      over_training: metrics of the trainings, of which the page has a table each, by step.

    Raises:
      ValueError: a metric that no training logged.
    """
    folder = Path(model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    sets = json.loads(Path(evaluation).read_text(encoding="utf-8"))["sets"]
    curves = report_curves.read(trainings)
    logged = {name: one.lines for name, one in curves.items()}
    metric = report_curves.development_metric(curves)
    report_curves.draw(curves, folder / "curves.png", metric)
    stages = report_tables.stages([evaluation, languages, *trainings.values()])
    parts = [
        "# Summary\n",
        *(line for name, one in sets.items() for line in of_task(name, one)),
        *report_tables.times(stages, budget),
        f"![curves of {', '.join(logged)}](curves.png)",
        *(report_tables.by_step(metric, logged) for metric in over_training),
        Path(languages).read_text(encoding="utf-8"),
    ]
    (folder / "summary.md").write_text("\n".join(parts), encoding="utf-8")
    return {"page": "summary.md", "curves": "curves.png"}


def of_task(name: str, task: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown: the first metric by group of languages, then all metrics.

    Args:
      name: of the task.
      task: what metrics.json says of it.
    """
    systems = {system: one["groups"] for system, one in task["systems"].items()}
    groups = next(iter(systems.values()))
    metrics = [metric for metric in groups[ALL] if metric != "languages"]
    facts = ", ".join(f"{what} {count:,}" for what, count in task["facts"].items())
    by_group = [
        [system, *(f"{one[group][metrics[0]]:.4f}" for group in groups)]
        for system, one in systems.items()
    ]
    by_metric = [
        [system, group, *(f"{one[group][metric]:.4f}" for metric in metrics)]
        for system, one in systems.items()
        for group in (ALL, TRAINED, ZERO_SHOT)
        if group in one
    ]
    named = [f"{group} ({groups[group]['languages']})" for group in groups]
    return [
        f"## {name}\n\n{facts}. `{metrics[0]}`, means over the languages of a group:\n",
        *_table(["system", *named], by_group),
        *(_table(["system", "languages", *metrics], by_metric) if len(metrics) > 1 else []),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:], ""]
