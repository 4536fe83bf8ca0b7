"""Stage: evaluate generated texts against references and a baseline: metrics, and tables."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from t5x_style.evaluation import generation
from t5x_style.retrieval import versioned_folder

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "evaluate_generation": {
        "name": "evaluate_generation",
        "version": 1,
        "outputs": ["metrics", "page"],
    }
}


def evaluate_generation(
    written: Mapping[str, str],
    references: str,
    documents: str,
    baseline: str,
    model_dir: str,
) -> dict[str, str]:
    """Writes metrics.json, which is what `generation.compare` returns, and generation.md.

    Args:
      written: system -> its written.jsonl, all of the same requests.
      references: JSON lines that the texts are compared with: documents of the same names in the
        languages that were written, or summaries; see `generation.read_texts`.
      documents: JSON lines of the documents that were read.
      baseline: 'copy' for translations: the document unchanged; 'lead' for summaries: its first
        words, as many as the references have on average.
      model_dir: where the files go.

    Raises:
      GenerationError: an empty or malformed file, a language that does not exist, a text without a
        reference, systems that wrote different texts.
    """
    report = generation.compare(
        {name: generation.read_written(path) for name, path in written.items()},
        generation.read_texts(references),
        generation.read_texts(documents),
        baseline,
    )
    folder = Path(model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    versioned_folder.write_atomically(folder / "metrics.json", json.dumps(report, indent=1) + "\n")
    versioned_folder.write_atomically(folder / "generation.md", generation.markdown(report))
    Console(width=None if sys.stdout.isatty() else 120).print(table(report))
    return {"metrics": "metrics.json", "page": "generation.md"}


def table(report: Mapping[str, Any]) -> Table:
    """Pairs of languages down, systems across."""
    first, *others = generation.METRICS
    result = Table(title="written texts", caption=f"{first}; below it {', '.join(others)}")
    for name in ("pair", "texts", *report["mean"]):
        result.add_column(name, justify="left" if name == "pair" else "right")
    for pair, one in report["pairs"].items():
        result.add_row(pair, str(one["texts"]), *map(_cell, one["systems"].values()))
    count = sum(one["texts"] for one in report["pairs"].values())
    result.add_section()
    result.add_row("mean", str(count), *map(_cell, report["mean"].values()))
    return result


def _cell(values: Mapping[str, float]) -> str:
    first, *others = (values[metric] for metric in generation.METRICS)
    return f"{first:.2f}\n" + " ".join(f"{value:.2f}" for value in others)
