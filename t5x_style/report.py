"""Stage: one page about a whole recipe, with the table, the curves and the times of its stages.

summary.json: {"metrics": {system: {metric: value}}, "intervals": {system: {metric: [low, high]}},
"queries": n, "passages": n, "budget": ..., "seconds": ..., "stages": {stage: seconds},
"code": {stage: hash of its source code}}. The stages are those that led to the inputs, whichever
recipe made them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style import report_parts

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"report": {"name": "report", "version": 1}}


def report(
    evaluation: str,
    trainings: Mapping[str, str],
    budget: float,
    claim: str,
    model_dir: str,
    over_training: Sequence[str] = (),
    further: Sequence[str] = (),
) -> dict[str, str]:
    """Writes summary.json, summary.md and curves.png.

    Args:
      evaluation: metrics.json of an evaluate stage.
      trainings: name -> folder of a training stage; their curves are drawn together.
      budget: of the recipe, quoted.
      claim: a system; the page says how it does against the evaluation's baseline.
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
    stages = report_parts.stages([evaluation, *trainings.values(), *further])
    seconds = report_parts.stage_seconds(stages)
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
        "seconds": round(sum(seconds.values()), 1),
        "stages": seconds,
        "code": report_parts.stage_code(stages),
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    lines = report_parts.logged(trainings)
    report_parts.draw(lines, folder / "curves.png")
    text = page(
        results, compare(results, claim), list(trainings), report_parts.times(stages, budget)
    )
    text += "".join(report_parts.by_step(metric, lines) for metric in over_training)
    for path in further:
        text += "\n".join(["", *tables(json.loads(Path(path).read_text(encoding="utf-8")))])
    (folder / "summary.md").write_text(text, encoding="utf-8")
    return {"summary": "summary.json", "page": "summary.md", "curves": "curves.png"}


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
    results: Mapping[str, Any], comparison: str, trainings: Sequence[str], times: Sequence[str]
) -> str:
    """The page, in Markdown.

    Args:
      results: of the evaluation.
      comparison: what `compare` says.
      trainings: names of those whose curves are drawn.
      times: lines about the stages.
    """
    return "\n".join([
        "# Summary",
        "",
        *_systems(results),
        comparison,
        "",
        *_comparisons(results),
        "",
        f"![curves of {', '.join(trainings)}](curves.png)",
        "",
        *times,
    ])  # fmt: skip


if __name__ == "__main__":
    from t5x_style import stage

    stage.main("t5x_style.report.report")
