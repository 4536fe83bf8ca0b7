"""scores.json: a model's scores on each query of some collections, for later comparison.

By the name of what was measured: {"passages": n, "queries": [id, ...], "groups": [a number for each
query, the same where they ask for one passage] or null, "metrics": {metric: [a number for each
query]}}.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_style.evaluation import comparison, query_groups, ranking
from t5x_style.retrieval.beir_collection import Passages, Qrels

FILE_NAME = "scores.json"

Record = Mapping[str, Any]


def record(passages: Passages, qrels: Qrels, scores: ranking.Scores) -> Record:
    """Content of the file: scores of judged queries."""
    groups = query_groups.numbers(
        query_groups.ByPassage(), scores.queries, qrels, passages
    ).tolist()
    return {
        "passages": len(passages),
        "queries": list(scores.queries),
        "groups": groups if len(set(groups)) > 1 else None,  # nothing could be resampled
        "metrics": {metric: values.tolist() for metric, values in scores.values.items()},
    }


def write(folder: str | Path, records: Mapping[str, Record]) -> None:
    """Writes the file."""
    (Path(folder) / FILE_NAME).write_text(json.dumps(records) + "\n", encoding="utf-8")


def compared(
    files: Mapping[str, str],
    tuned: str,
    original: str,
    metric: str,
    samples: int,
    seed: int,
    where: str,
) -> dict[str, Any]:
    """Two models on everything that the file of the first holds.

    Args:
      files: system -> its file; {}: nothing was measured.
      tuned, original: names of the two systems.
      metric: that both measured.
      samples, seed: of the bootstrap.
      where: the setting that names the files.

    Returns:
      {name: {"queries": n, "passages": n, "systems": {system: {metric: {"value", "low", "high"}}},
      "difference", "low", "high"}}; {} without files.

    Raises:
      ValueError: files of other systems or of other collections, or a metric that was not measured.
    """
    if not files:
        return {}
    if set(files) != {tuned, original}:
        raise ValueError(f"{where}: expected files of {(tuned, original)}, found {sorted(files)}")
    reports = {
        system: json.loads(Path(file).read_text(encoding="utf-8")) for system, file in files.items()
    }
    names = {system: list(report) for system, report in reports.items()}
    if names[tuned] != names[original]:
        raise ValueError(
            f"{where}: expected both systems measured on the same, found {names}. Run the stages "
            "again that wrote these files"
        )
    return {
        name: _compared(
            {system: report[name] for system, report in reports.items()}, (tuned, original), metric,
            samples, seed, f"{name}, {files[tuned]}",
        )
        for name in reports[tuned]
    }  # fmt: skip


def _compared(
    records: Mapping[str, Record],
    systems: Sequence[str],
    metric: str,
    samples: int,
    seed: int,
    where: str,
) -> dict[str, Any]:
    tuned, original = systems
    one = records[tuned]
    if metric not in one["metrics"]:
        raise ValueError(f"{where}: expected {metric!r} measured, found {list(one['metrics'])}")
    groups = None if one["groups"] is None else np.array(one["groups"])
    scores = {system: _scores(records[system]) for system in systems}
    found = comparison.compare(scores, original, (), samples, seed, groups)
    difference = found["against"]["systems"][tuned][metric]
    return {
        "queries": found["n"],
        "passages": one["passages"],
        "systems": found["systems"],
        **{key: difference[key] for key in ("difference", "low", "high")},
    }


def _scores(found: Record) -> ranking.Scores:
    values = {metric: np.array(one) for metric, one in found["metrics"].items()}
    return ranking.Scores(tuple(found["queries"]), values)
