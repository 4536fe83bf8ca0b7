"""Stage: systems against judgements, as TREC runs, metrics with intervals, and a table."""

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from t5x_style import runtime
from t5x_style.evaluation import ranking, systems
from t5x_style.retrieval import publish


def evaluate(
    corpus: str,
    split: str,
    systems: Sequence[systems.System],
    baseline: str,
    depth: int,
    samples: int,
    seed: int,
    model_dir: str,
    metrics: Sequence[str] = ranking.METRICS,
    compared: Sequence[tuple[str, str]] = (),
) -> dict[str, str]:
    """Writes runs/<system>.trec, metrics.json and per_query.json, and prints a table.

    metrics.json: {"split", "n": number of queries, "systems": {system: {metric: {"value", "low",
    "high"}}}, "against": {"baseline", "systems": {system: {metric: {"difference", "p"}}}},
    "compared": [{"one", "other", metric: {"difference", "p"}}], "facts": {system: ...}}; low and
    high bound a 95 % bootstrap interval over queries, p is of a paired randomisation test.

    Args:
      corpus: folder in BEIR's layout.
      split: of the judgements.
      systems: to compare, on the same queries.
      baseline: name of the system that the others are tested against.
      depth: how many passages each lists for a query, 100 for Recall@100.
      samples: of the bootstrap and of the randomisation test.
      seed: of both.
      model_dir: where the files go.
      metrics: names like 'MRR@10', 'nDCG@10', 'Recall@50'; none may look further than `depth`.
      compared: pairs of systems that are tested against each other as well, one minus other.

    Raises:
      MetricError: a metric that does not exist or looks further.
    """
    ranking.require_depth(metrics, depth, "evaluate.depth")
    bench = _bench(corpus, systems, [baseline, *itertools.chain(*compared)], depth)
    folder = Path(model_dir)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    scores = {}
    main = jax.process_index() == 0  # all processes compute, for models spread over them
    for name in bench.systems:
        run = bench.run(name, split)
        if main:
            ranking.write_run(folder / "runs" / f"{name}.trec", run, name)
        scores[name] = ranking.score_run(run, bench.qrels(split), metrics)
        if main:
            print(f"evaluate: {name} {scores[name].means()}", file=sys.stderr)
    if main:
        report = _report(bench, scores, baseline, compared, samples, seed) | {"split": split}
        _write(folder, report, scores)
    return {"metrics": "metrics.json", "per_query": "per_query.json", "runs": "runs"}


def _write(folder: Path, report: dict[str, Any], scores: dict[str, ranking.Scores]) -> None:
    """Writes metrics.json and per_query.json, and prints the tables."""
    publish.write_atomically(folder / "metrics.json", json.dumps(report, indent=1) + "\n")
    queries = next(iter(scores.values())).queries
    per_query = {
        "queries": list(queries),
        "systems": {n: {m: v.tolist() for m, v in s.values.items()} for n, s in scores.items()},
    }
    publish.write_atomically(folder / "per_query.json", json.dumps(per_query) + "\n")
    # A file or a pipe has no width; rich would take 80 columns and break the cells.
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table(report))
    if report["compared"]:
        console.print(differences(report))


def _bench(
    corpus: str, chosen: Sequence[systems.System], compared: Sequence[str], depth: int
) -> systems.Bench:
    bench = systems.Bench(corpus, chosen, depth)
    for name in compared:
        if name not in bench.systems:
            raise ValueError(
                f"baseline, compared: expected some of {sorted(bench.systems)}, found {name!r}"
            )
    for name in bench.systems:
        if not name.replace("_", "").replace("-", "").isalnum():
            raise ValueError(f"{name!r} names a file: expected letters, digits, '_' and '-' only")
    return bench


def _report(
    bench: systems.Bench,
    scores: dict[str, ranking.Scores],
    baseline: str,
    compared: Sequence[tuple[str, str]],
    samples: int,
    seed: int,
) -> dict[str, Any]:
    others = [name for name in scores if name != baseline]
    return {
        "n": len(scores[baseline].queries),
        "passages": len(bench.passages),
        "systems": {name: s.intervals(samples, seed) for name, s in scores.items()},
        "against": {
            "baseline": baseline,
            "systems": {
                name: ranking.compare(scores[name], scores[baseline], samples, seed)
                for name in others
            },
        },
        "compared": [
            {"one": one, "other": other}
            | dict(ranking.compare(scores[one], scores[other], samples, seed))
            for one, other in compared
        ],
        "facts": {name: system.facts() for name, system in bench.systems.items()},
    }


def table(report: dict[str, Any]) -> Table:
    """The systems of a metrics.json beside each other, with intervals; * where p < 0.05."""
    baseline, tested = report["against"]["baseline"], report["against"]["systems"]
    result = Table(
        title=f"{report['split']}: {report['n']} queries, {report['passages']:,} passages",
        caption=f"95 % bootstrap intervals; * differs from {baseline} (paired, p < 0.05)",
    )
    metrics = list(next(iter(report["systems"].values())))
    result.add_column("system")
    for metric in metrics:
        result.add_column(metric, justify="right")
    for name, values in report["systems"].items():
        cells = []
        for metric in metrics:
            one = values[metric]
            star = "*" if name in tested and tested[name][metric]["p"] < 0.05 else " "
            cells.append(f"{one['value']:.4f}{star}\n{one['low']:.3f} to {one['high']:.3f} ")
        result.add_row(name, *cells)
    return result


def differences(report: dict[str, Any]) -> Table:
    """The pairs of systems that a metrics.json compares: difference and p-value of each metric."""
    result = Table(title="one minus other, p of a paired randomisation test")
    metrics = list(next(iter(report["systems"].values())))
    result.add_column("one")
    result.add_column("other")
    for metric in metrics:
        result.add_column(metric, justify="right")
    for pair in report["compared"]:
        cells = [f"{pair[m]['difference']:+.4f}\np {pair[m]['p']:.4f}" for m in metrics]
        result.add_row(pair["one"], pair["other"], *cells)
    return result


if __name__ == "__main__":
    from t5x_style import stage

    runtime.start()
    stage.main("t5x_style.evaluate.evaluate")
