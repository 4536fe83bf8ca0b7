"""Evaluations of one recipe for several seeds, as tables in Markdown.

    python -m benchmarks.comparison [--differences=mlm-bm25] runs/squad_1 runs/squad_2 ...

Each folder is a finished run of one seed, or what docs/results/squad keeps of it. A cell is the
mean over the runs and, where they differ, the lowest and the highest. A pair, one system minus
another, is tested on the pooled runs: a query's difference is its mean over the runs, and intervals
and tests are over queries, or over groups of them where the evaluation had groups.
"""

import json
import statistics
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks import code_hash
from t5x_style.evaluation import significance

_DIFFERENCES = flags.DEFINE_list("differences", [], "Names of two systems each, with '-' between.")

OWN = "evaluation"  # of the collection that the models were fine-tuned on; it comes first
METRICS = ("MRR@10", "nDCG@10", "Recall@10", "Recall@100")
SAMPLES = 10_000  # of the bootstrap and of the randomisation test


def evaluations(run: Path) -> dict[str, dict]:
    """Name of an evaluation stage -> its metrics.json."""
    found = {path.parent.name: path for path in run.glob("*evaluation/metrics.json")}
    names = sorted(found, key=lambda name: (name != OWN, name))
    return {name: json.loads(found[name].read_text("utf-8")) for name in names}


def cell(values: list[float]) -> str:
    """Mean, and range if there is one."""
    mean = f"{statistics.mean(values):.4f}"
    if max(values) - min(values) < 5e-5:
        return mean
    return f"{mean} ({min(values):.3f}–{max(values):.3f})"


def table(results: list[dict]) -> list[str]:
    """One evaluation of several runs."""
    first = results[0]
    lines = [
        f"{first['n']:,} queries, {first['passages']:,} passages, {len(results)} "
        + ("seeds" if len(results) > 1 else "seed"),
        "",
        "| system | " + " | ".join(METRICS) + " |",
        "|---" * (len(METRICS) + 1) + "|",
    ]
    for system in first["systems"]:
        cells = [
            cell([result["systems"][system][metric]["value"] for result in results])
            for metric in METRICS
        ]
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    return lines


def pooled(runs: list[dict], one: str, other: str, metric: str) -> tuple[float, ...]:
    """One system minus another over all runs.

    Args:
      runs: per_query.json of each run, as `t5x_style.evaluate` writes it.
      one: name of a system.
      other: name of the system that is subtracted.
      metric: one of METRICS, between 0 and 1.

    Returns:
      The mean difference, the low and high end of its 95 % bootstrap interval, and the p-value of a
      paired randomisation test (see `significance`).

    Raises:
      ValueError: the runs have different queries, or lack a system.
    """
    first = runs[0]
    for number, run in enumerate(runs, start=1):
        if run["queries"] != first["queries"]:
            raise ValueError(
                f"run {number}: expected the queries of run 1 in the same order, found others: "
                "compare seeds of one recipe on one collection and split"
            )
        for name in (one, other):
            if name not in run["systems"]:
                raise ValueError(
                    f"run {number}: --differences names {name!r}; its systems are "
                    f"{sorted(run['systems'])}"
                )
    values = [
        np.array(run["systems"][one][metric]) - np.array(run["systems"][other][metric])
        for run in runs
    ]
    difference = np.mean(values, axis=0)
    groups = None if first.get("groups") is None else np.array(first["groups"])
    low, high = significance.bootstrap_interval(difference, SAMPLES, 0, groups=groups)
    p_value = significance.randomisation_p_value(difference, SAMPLES, 0, groups)
    return float(difference.mean()), low, high, p_value


def differences(runs: list[dict], pairs: list[str]) -> list[str]:
    """Each pair 'ONE-OTHER', tested on the pooled runs, as lines of a Markdown table.

    Raises:
      ValueError: a pair in another form, or an error of `pooled`.
    """
    lines = ["| pooled | " + " | ".join(METRICS) + " |", "|---" * (len(METRICS) + 1) + "|"]
    for pair in pairs:
        one, _, other = pair.partition("-")
        if not (one and other):
            raise ValueError(f"--differences: expected ONE-OTHER, two systems, found {pair!r}")
        cells = []
        for metric in METRICS:
            difference, low, high, p_value = pooled(runs, one, other, metric)
            cells.append(f"{difference:+.3f} ({low:+.3f} to {high:+.3f}), p {p_value:.4f}")
        lines.append(f"| {one} - {other} | " + " | ".join(cells) + " |")
    return lines


def per_query(folders: list[str], name: str) -> list[dict]:
    """per_query.json of evaluation stage `name` of each run.

    Raises:
      SystemExit: a run has none.
    """
    paths = [Path(folder) / name / "per_query.json" for folder in folders]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise SystemExit(f"--differences needs values of each query, found no {', '.join(missing)}")
    return [json.loads(path.read_text("utf-8")) for path in paths]


def main(argv: list[str]) -> None:
    """Prints a table for each evaluation that all runs have."""
    runs = [evaluations(Path(folder)) for folder in argv[1:]]
    if not runs or not all(runs):
        empty = [folder for folder, run in zip(argv[1:], runs, strict=True) if not run]
        raise SystemExit(f"expected folders of finished runs, found no evaluation in {empty}")
    for name in runs[0]:
        if all(name in run for run in runs):
            heading = "own test questions" if name == OWN else name.removesuffix("_evaluation")
            print(f"\n### {heading}\n\n" + "\n".join(table([run[name] for run in runs])))
            if _DIFFERENCES.value:
                try:
                    lines = differences(per_query(argv[1:], name), _DIFFERENCES.value)
                except ValueError as error:
                    raise SystemExit(str(error)) from error
                print("\n" + "\n".join(lines))


if __name__ == "__main__":
    code_hash.announce("comparison")
    app.run(main)
