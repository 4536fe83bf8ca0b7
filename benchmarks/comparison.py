"""The tables of recipes/comparison.gin over several seeds, in Markdown.

    python -m benchmarks.comparison runs/squad_1 runs/squad_2 runs/squad_3

Each folder is a finished run of one seed, or what docs/results/squad keeps of it. A cell is the
mean over the runs and, where they differ, the lowest and the highest.
"""

import json
import statistics
from pathlib import Path

from absl import app

from benchmarks import code_hash

OWN = "evaluation"  # of the collection that the models were fine-tuned on; it comes first
METRICS = ("MRR@10", "nDCG@10", "Recall@10", "Recall@100")


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


if __name__ == "__main__":
    code_hash.announce("comparison")
    app.run(main)
