"""Compare systems: differences, intervals and tests, as files and as tables."""

import itertools
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from t5x_style.evaluation import ranking
from t5x_style.retrieval import versioned_folder


def require_names(
    names: Collection[str], baseline: str, compared: Sequence[tuple[str, str]]
) -> None:
    """Raises ValueError unless `baseline` and `compared` name systems of `names`."""
    for name in [baseline, *itertools.chain(*compared)]:
        if name not in names:
            raise ValueError(
                f"baseline, compared: expected some of {sorted(names)}, found {name!r}"
            )


def require_published(
    published: Mapping[str, Mapping[str, float]] | None,
    names: Collection[str],
    metrics: Collection[str],
) -> None:
    """Check the `published` argument of an evaluation.

    Args:
      published: system -> metric -> a figure that was published, to be printed next to ours.
      names: of the systems that are measured.
      metrics: that are measured.

    Raises:
      ValueError: it names a measured system, another metric, or a value that is no share of 1.
    """
    for system, figures in (published or {}).items():
        if system in names:
            raise ValueError(
                f"published: expected a name that no measured system has, found {system!r}"
            )
        if not figures:
            raise ValueError(f"published: expected figures of {system!r}, found none")
        for metric, value in figures.items():
            if metric not in metrics:
                raise ValueError(
                    f"published, {system!r}: expected some of the metrics {list(metrics)}, found "
                    f"{metric!r}"
                )
            if not 0 <= value <= 1:
                raise ValueError(
                    f"published, {system!r}: expected {metric} from 0 to 1 (69.2 % is 0.692), "
                    f"found {value}"
                )


def compare(
    scores: Mapping[str, ranking.Scores],
    baseline: str,
    compared: Sequence[tuple[str, str]],
    samples: int,
    seed: int,
    groups: np.ndarray | None = None,
) -> dict[str, Any]:
    """The part of metrics.json that follows from scores, see `evaluate.evaluate`.

    Args:
      scores: system -> scores, all on the same queries.
      baseline: name of the system that the others are tested against.
      compared: pairs that are tested against each other as well.
      samples: of the bootstrap and of the randomisation test.
      seed: of both.
      groups: [n] int64, the group of each query; None: each query is one.

    Returns:
      The fields n, groups, systems, against and compared.
    """
    count = len(scores[baseline].queries)
    return {
        "n": count,
        "groups": count if groups is None else len(np.unique(groups)),
        "systems": {name: s.intervals(samples, seed, groups) for name, s in scores.items()},
        "against": {
            "baseline": baseline,
            "systems": {
                name: ranking.compare(one, scores[baseline], samples, seed, groups)
                for name, one in scores.items()
                if name != baseline
            },
        },
        "compared": [
            {"one": one, "other": other}
            | dict(ranking.compare(scores[one], scores[other], samples, seed, groups))
            for one, other in compared
        ],
    }


def compare_sets(
    scores: Mapping[str, ranking.Scores],
    sets: Mapping[str, str],
    baseline: str,
    compared: Sequence[tuple[str, str]],
    samples: int,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Set -> what `compare` returns of its queries, with the field split, its name.

    Args:
      scores, baseline, compared, samples, seed: as for `compare`.
      sets: query -> set, of those that are of one.
    """
    found = {}
    for name in sorted(set(sets.values())):
        queries = {query for query, its in sets.items() if its == name}
        part = {system: one.of(queries) for system, one in scores.items()}
        found[name] = compare(part, baseline, compared, samples, seed) | {"split": name}
    return found


def write(
    folder: Path,
    report: dict[str, Any],
    scores: Mapping[str, ranking.Scores],
    groups: np.ndarray | None = None,
) -> None:
    """Writes metrics.json and per_query.json, and prints the tables.

    Args:
      folder: where to.
      report: what `compare` returned, and the fields that are printed with it.
      scores: system -> scores, all on the same queries.
      groups: [n] int64, as for `compare`.
    """
    versioned_folder.write_atomically(folder / "metrics.json", json.dumps(report, indent=1) + "\n")
    queries = next(iter(scores.values())).queries
    per_query = {
        "queries": list(queries),
        "groups": None if groups is None else groups.tolist(),
        "systems": {n: {m: v.tolist() for m, v in s.values.items()} for n, s in scores.items()},
    }
    versioned_folder.write_atomically(folder / "per_query.json", json.dumps(per_query) + "\n")
    # A file or a pipe has no width; rich would take 80 columns and break the cells.
    console = Console(width=None if sys.stdout.isatty() else 120)
    for one in (report, *report.get("sets", {}).values()):
        console.print(table(one))
        if one["compared"]:
            console.print(differences(one))
    if "mean_of_sets" in report:  # of passages; sets of answers have tables and no mean
        console.print(table_of_means(report))


def table(report: dict[str, Any]) -> Table:
    """The systems of a metrics.json next to each other, with intervals; * where p < 0.05.

    What was published follows, but where the report has a mean of sets, of which it then is.
    """
    baseline, tested = report["against"]["baseline"], report["against"]["systems"]
    result = Table(
        title=f"{report['split']}: {report['n']} queries, {report['passages']:,} passages",
        caption=f"95 % bootstrap intervals over {units(report)}; * differs from {baseline} "
        "(paired, p < 0.05)",
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
    if "mean_of_sets" not in report:
        _add_published(result, report, metrics)
    return result


def table_of_means(report: dict[str, Any]) -> Table:
    """The means over sets of a metrics.json, `mean_of_sets`, with what was published of them."""
    means = report["mean_of_sets"]
    result = Table(title=f"mean of {len(report['sets'])} sets, each counting the same")
    metrics = list(next(iter(means.values())))
    result.add_column("system")
    for metric in metrics:
        result.add_column(metric, justify="right")
    for name, values in means.items():
        result.add_row(name, *(f"{values[metric]:.4f} " for metric in metrics))
    _add_published(result, report, metrics)
    return result


def _add_published(result: Table, report: Mapping[str, Any], metrics: Sequence[str]) -> None:
    """Rows of figures that were published; no test compares them with ours."""
    for name, figures in report.get("published", {}).items():
        cells = (f"{figures[metric]:.4f} " if metric in figures else "" for metric in metrics)
        result.add_row(f"{name}\n(published)", *cells)


def differences(report: dict[str, Any]) -> Table:
    """The pairs of systems that a metrics.json compares: difference, interval and p-value."""
    result = Table(title="one minus other: 95 % interval, p of a paired randomisation test")
    metrics = list(next(iter(report["systems"].values())))
    result.add_column("one")
    result.add_column("other")
    for metric in metrics:
        result.add_column(metric, justify="right")
    for pair in report["compared"]:
        cells = [
            f"{pair[m]['difference']:+.4f}\n{pair[m]['low']:+.3f} to {pair[m]['high']:+.3f}"
            f"\np {pair[m]['p']:.4f}"
            for m in metrics
        ]
        result.add_row(pair["one"], pair["other"], *cells)
    return result


def units(report: Mapping[str, Any]) -> str:
    """Unit of the intervals of a metrics.json: 'queries', or '41 groups of queries'."""
    count = report.get("groups", report["n"])  # absent in files of version 1
    return "queries" if count == report["n"] else f"{count} groups of queries"
