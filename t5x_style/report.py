"""Stage: one page about a whole recipe, with the table, the curves and the times of its stages.

summary.json: {"metrics": {system: {metric: value}}, "intervals": {system: {metric: [low, high]}},
"queries": n, "passages": n, "budget": ..., "seconds": ..., "stages": {stage: seconds}}.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style import metric_log

COLUMNS = 4  # of panels in curves.png


def report(
    evaluation: str,
    trainings: Sequence[str],
    budget: float,
    claim: str,
    run_dir: str,
    model_dir: str,
    over_training: Sequence[str] = (),
    further: Sequence[str] = (),
) -> dict[str, str]:
    """Writes summary.json, summary.md and curves.png.

    Args:
      evaluation: metrics.json of an evaluate stage.
      trainings: folders of training stages, whose curves are drawn together.
      budget: of the recipe, quoted.
      claim: a system; the page says how it does against the evaluation's baseline.
      run_dir: the recipe's folder, whose stages' times are added up.
      model_dir: where the files go.
      over_training: metrics of the trainings, as 'eval/dev/Recall@5', of which the page has a table
        each, by step.
      further: more of such metrics.json, of which the page has the tables, too.

    Raises:
      ValueError: a metric that no training logged, or a claim that was not tested.
    """
    folder = Path(model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    results = json.loads(Path(evaluation).read_text(encoding="utf-8"))
    stages = stage_seconds(Path(run_dir))
    systems = results["systems"]
    summary = {
        "metrics": {
            s: {m: v["value"] for m, v in metrics.items()} for s, metrics in systems.items()
        },
        "intervals": {
            s: {m: [v["low"], v["high"]] for m, v in metrics.items()}
            for s, metrics in systems.items()
        },
        "queries": results["n"],
        "passages": results["passages"],
        "budget": budget,
        "seconds": round(sum(stages.values()), 1),
        "stages": stages,
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    lines = logged(trainings)
    draw(lines, folder / "curves.png")
    text = page(results, summary, compare(results, claim), trainings)
    text += "".join(by_step(metric, lines) for metric in over_training)
    for path in further:
        text += "\n".join(["", *tables(json.loads(Path(path).read_text(encoding="utf-8")))])
    (folder / "summary.md").write_text(text, encoding="utf-8")
    return {"summary": "summary.json", "page": "summary.md", "curves": "curves.png"}


def stage_seconds(run_dir: Path) -> dict[str, float]:
    """Seconds of every finished stage in the recipe's folder, in the order they finished."""
    records = [json.loads(path.read_text("utf-8")) for path in run_dir.glob("*/stage.json")]
    records.sort(key=lambda record: record["finished"])
    return {record["name"]: record["seconds"] for record in records}


def compare(results: Mapping[str, Any], system: str) -> str:
    """Says how `system` does against the evaluation's baseline, with paired p-values.

    Only differences with p < 0.05, those that `evaluate`'s table stars, count for the verdict.

    Raises:
      ValueError: a system that was not tested.
    """
    against = results["against"]
    if system not in against["systems"]:
        raise ValueError(
            f"report.claim: expected a system tested against {against['baseline']!r}, one of "
            f"{sorted(against['systems'])}, found {system!r}"
        )
    return verdict(system, against["baseline"], against["systems"][system])


def verdict(one: str, other: str, tests: Mapping[str, Mapping[str, float]]) -> str:
    """How one system does against another: metric -> difference and p of a paired test."""
    parts = [f"{m} {test['difference']:+.4f} (p = {test['p']:.3g})" for m, test in tests.items()]
    signs = [(test["p"] < 0.05) * (1 if test["difference"] > 0 else -1) for test in tests.values()]
    words = [word for sign, word in ((1, "above"), (-1, "below")) if sign in signs]
    told = " and on others ".join(words) or "not distinguishable from"
    if words and len(set(signs)) > 1:
        told = "on some metrics " + told
    return f"`{one}` is {told} `{other}`: " + ", ".join(parts) + "."


def tables(results: Mapping[str, Any]) -> list[str]:
    """All that an evaluation says, and all that it says of its sets of queries, line by line."""
    against = results["against"]
    verdicts = [verdict(s, against["baseline"], test) for s, test in against["systems"].items()]
    told = [f"- {one}" for one in verdicts]
    head = [f"## {results['split']}", "", *_systems(results), *told, *_comparisons(results), ""]
    return head + [line for of in results.get("sets", {}).values() for line in tables(of)]


def _systems(results: Mapping[str, Any]) -> list[str]:
    """The systems of an evaluation beside each other, line by line."""
    metrics = list(next(iter(results["systems"].values())))
    rows = []
    for system, values in results["systems"].items():
        cells = [
            f"{values[m]['value']:.4f} ({values[m]['low']:.3f}–{values[m]['high']:.3f})"
            for m in metrics
        ]
        rows.append(f"| {system} | " + " | ".join(cells) + " |")
    return [
        f"{results['n']} held-out queries over {results['passages']:,} passages "
        f"(split `{results['split']}`), 95 % bootstrap intervals over queries.",
        "",
        "| system | " + " | ".join(metrics) + " |",
        "|---" * (len(metrics) + 1) + "|",
        *rows,
        "",
    ]


def _comparisons(results: Mapping[str, Any]) -> list[str]:
    """What the evaluation says of pairs of systems, an item of a list each."""
    metrics = list(next(iter(results["systems"].values())))
    return [
        "- " + verdict(pair["one"], pair["other"], {metric: pair[metric] for metric in metrics})
        for pair in results.get("compared", ())
    ]


def page(
    results: Mapping[str, Any],
    summary: Mapping[str, Any],
    comparison: str,
    trainings: Sequence[str],
) -> str:
    """The page, in Markdown."""
    return "\n".join([
        "# Summary",
        "",
        *_systems(results),
        comparison,
        "",
        *_comparisons(results),
        "",
        f"![curves of {', '.join(Path(folder).name for folder in trainings)}](curves.png)",
        "",
        *times(summary["stages"], summary["budget"]),
    ])  # fmt: skip


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
        raise ValueError(
            f"report.over_training: none of the trainings {sorted(logged)} logged {metric!r}"
        )
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


if __name__ == "__main__":
    from t5x_style import stage

    stage.main("t5x_style.report.report")
