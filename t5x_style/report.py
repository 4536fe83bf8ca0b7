"""Stage: one page about a whole recipe: the table, what it means, what to try next, the curves.

summary.json: {"metrics": {system: {metric: value}}, "intervals": {system: {metric: [low, high]}},
"claims": [{"one", "other", metric: {"difference", "low", "high", "p"}}], "queries": n, "groups":
number of groups of queries that intervals are over, "passages": n, "development": {split: {"n",
"systems": {system: {metric: value}}}}, "budget": ..., "seconds": of all stages together, "stages":
{stage: seconds}, "code": {stage: hash of its source code}, "advice": [text]}. The stages are those
that led to the inputs, whichever recipe made them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.evaluation import comparison
from t5x_style.reporting import report_advice, report_commands, report_curves, report_tables
from t5x_style.workflow.store import Version

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "report": {
        "name": "report",
        "version": 4,
        "outputs": ["curves", "page", "summary"],
        "program": True,
    }
}


def report(
    evaluation: str,
    trainings: Mapping[str, str],
    budget: float,
    claim: str,
    model_dir: str,
    over_training: Sequence[str | None] = (),
    further: Sequence[str] = (),
    bag: str = "bag_of_embeddings",
    development_metric: str | None = None,
    recipe: str | None = None,
    run_dir: str | None = None,
    settings: Mapping[str, Any] | None = None,
    searchable: bool = False,
    opening: str | None = None,
) -> dict[str, str]:
    """Writes summary.json, summary.md and curves.png, and prints the advice.

    Args:
      evaluation: metrics.json of an evaluate stage.
      trainings: name -> folder of a training stage; their curves are drawn together. One that has
        the name of a system is taken for its training.
      budget: of the recipe, quoted.
      claim: a system; the page says how it does against the evaluation's baseline.
      model_dir: where the files go.
      over_training: metrics of the trainings, of which the page has a table each, by step: as
        logged, 'eval/dev/Recall@5', or as `train.train.development_metric`, 'dev/Recall@5'; None:
        of none, where the last checkpoint was kept.
      further: more of such metrics.json, of which the page has the tables, too.
      bag: name of the system without layers, if there is one.
      development_metric: of the trainings, that is drawn against seconds, named in the same way;
        None: the one that most of them logged.
      recipe: gin file of the recipe, for the commands that the page prints; None: those that need
        it are left out.
      run_dir: folder of the run; None: as for `recipe`.
      settings: macros that the recipe cannot run without, with their values.
      searchable: whether the run has a stage that `t5x_style.search` finds.
      opening: a file in Markdown that the page begins with.

    Raises:
      ValueError: a metric that no training logged, or a claim that was not tested.
    """
    folder = Path(model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    results = json.loads(Path(evaluation).read_text(encoding="utf-8"))
    tested = results if opening is None else of_first_metric(results)  # one verdict on a page
    stages = report_tables.stages([evaluation, *trainings.values(), *further])
    curves = report_curves.read(trainings)
    lines = {name: one.lines for name, one in curves.items()}
    if development_metric is not None:
        metric: str | None = report_curves.logged_name(development_metric)
    else:
        metric = report_curves.development_metric(curves)
    if metric is not None and not any(one.points(metric) for one in curves.values()):
        raise ValueError(
            f"report.development_metric: none of the trainings {sorted(trainings)} logged "
            f"{metric!r}; {report_tables.metrics_of(lines)}"
        )
    marks = report_curves.marks(results, curves, metric)
    report_curves.draw(curves, folder / "curves.png", metric, marks)
    situation = report_advice.Situation(results, lines, claim, bag, metric or "", budget)
    run = report_commands.Run(recipe, run_dir, settings or {}, searchable, budget)
    commands = report_commands.commands(run, report_advice.still_learning(situation))
    advice = advise(situation, list(commands))
    said = summary(results, stages, budget, report_advice.next_steps(situation))
    (folder / "summary.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    text = page(
        results, compare(tested, claim), list(trainings), report_tables.times(stages, budget),
        advice, report_curves.caption(curves, metric, marks),
    )  # fmt: skip
    for one in filter(None, over_training):
        text += report_tables.by_step(report_curves.logged_name(one), lines)
    for path in further:
        text += "\n".join(["", *tables(json.loads(Path(path).read_text(encoding="utf-8")))])
    if opening is not None:
        text = Path(opening).read_text(encoding="utf-8") + "\n" + text
    (folder / "summary.md").write_text(text, encoding="utf-8")
    print("\n".join(advice), flush=True)
    return {"summary": "summary.json", "page": "summary.md", "curves": "curves.png"}


def summary(
    results: Mapping[str, Any],
    stages: Mapping[str, Version],
    budget: float,
    steps: Sequence[str],
) -> dict[str, Any]:
    """The content of summary.json.

    Args:
      results: of the evaluation.
      stages: of `report_tables.stages`.
      budget: of the recipe.
      steps: what to try next.
    """
    seconds, systems = report_tables.stage_seconds(stages), results["systems"]
    return {
        "metrics": {
            s: {m: v["value"] for m, v in metrics.items()} for s, metrics in systems.items()
        },
        "intervals": {
            s: {m: [v["low"], v["high"]] for m, v in metrics.items()}
            for s, metrics in systems.items()
        },
        "claims": report_advice.claims(results),
        "queries": results["n"],
        "groups": results.get("groups", results["n"]),
        "passages": results["passages"],
        "development": results.get("development", {}),
        "budget": budget,
        "seconds": round(sum(seconds.values()), 1),
        "stages": seconds,
        "code": report_tables.stage_code(stages),
        "advice": list(steps),
    }


def advise(situation: report_advice.Situation, commands: Sequence[str]) -> list[str]:
    """The meaning of the table, what to try next and the next commands, in Markdown.

    Args:
      situation: what was found.
      commands: to quote.
    """
    steps = report_advice.next_steps(situation)
    return [
        "## What this means",
        "",
        *(f"- {one}" for one in report_advice.meaning(situation)),
        "",
        "## What to try next",
        "",
        *(f"- {one}" for one in steps),
        *([] if steps else ["- No rule applies: nothing in these figures asks for a change."]),
        "",
        *(["```", *commands, "```", ""] if commands else []),
    ]


def of_first_metric(results: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation whose tests against the baseline are those of the first metric alone."""
    metric = next(iter(next(iter(results["systems"].values()))))
    against = results["against"]
    systems = {name: {metric: tests[metric]} for name, tests in against["systems"].items()}
    return {**results, "against": {**against, "systems": systems}}


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
    """Verdict on one system against another.

    Args:
      one, other: the systems.
      tests: metric -> difference and p of a paired test, perhaps low and high of its interval.
    """
    parts = [f"{metric} {_difference(test)}" for metric, test in tests.items()]
    signs = [(test["p"] < 0.05) * (1 if test["difference"] > 0 else -1) for test in tests.values()]
    words = [word for sign, word in ((1, "above"), (-1, "below")) if sign in signs]
    relation = " and on others ".join(words) or "not distinguishable from"
    if words and len(set(signs)) > 1:
        relation = "on some metrics " + relation
    return f"`{one}` is {relation} `{other}`: " + ", ".join(parts) + "."


def _difference(test: Mapping[str, float]) -> str:
    interval = f"{test['low']:+.3f} to {test['high']:+.3f}, " if "low" in test else ""
    return f"{test['difference']:+.4f} ({interval}p = {test['p']:.3g})"


def tables(results: Mapping[str, Any]) -> list[str]:
    """All that an evaluation says, and all that it says of its sets of queries, line by line."""
    against = results["against"]
    verdicts = [verdict(s, against["baseline"], test) for s, test in against["systems"].items()]
    bullets = [f"- {one}" for one in verdicts]
    head = [f"## {results['split']}", "", *_systems(results), *bullets, *_comparisons(results), ""]
    return head + [line for one in results.get("sets", {}).values() for line in tables(one)]


def _systems(results: Mapping[str, Any]) -> list[str]:
    """The systems of an evaluation next to each other, line by line."""
    metrics = list(next(iter(results["systems"].values())))
    rows = []
    for system, values in results["systems"].items():
        cells = [
            f"{values[m]['value']:.4f} ({values[m]['low']:.3f}–{values[m]['high']:.3f})"
            for m in metrics
        ]
        rows.append(f"| {system} | " + " | ".join(cells) + " |")
    published = {} if results.get("sets") else results.get("published", {})  # else of their mean
    for system, figures in published.items():
        cells = [f"{figures[m]:.4f}" if m in figures else "" for m in metrics]
        rows.append(f"| {system} (published) | " + " | ".join(cells) + " |")
    return [
        f"{results['n']} held-out queries over {results['passages']:,} passages "
        f"(split `{results['split']}`), 95 % bootstrap intervals over {comparison.units(results)}.",
        "",
        "| system | " + " | ".join(metrics) + " |",
        "|---" * (len(metrics) + 1) + "|",
        *rows,
        "",
    ]


def _comparisons(results: Mapping[str, Any]) -> list[str]:
    """Comparisons of pairs of systems in the evaluation, an item of a list each."""
    metrics = list(next(iter(results["systems"].values())))
    return [
        "- " + verdict(pair["one"], pair["other"], {metric: pair[metric] for metric in metrics})
        for pair in results.get("compared", ())
    ]


def page(
    results: Mapping[str, Any],
    comparison: str,
    trainings: Sequence[str],
    times: Sequence[str],
    advice: Sequence[str] = (),
    caption: Sequence[str] = (),
) -> str:
    """The page, in Markdown.

    Args:
      results: of the evaluation.
      comparison: what `compare` says.
      trainings: names of those whose curves are drawn.
      times: lines about the stages.
      advice: lines of `advise`.
      caption: lines about the picture.
    """
    return "\n".join([
        "# Summary",
        "",
        *_systems(results),
        *advice,
        "## All paired comparisons",
        "",
        comparison,
        "",
        *_comparisons(results),
        "",
        f"![curves of {', '.join(trainings)}](curves.png)",
        "",
        *caption,
        *times,
    ])  # fmt: skip


if __name__ == "__main__":
    from t5x_style import stage

    stage.main("t5x_style.report.report")
