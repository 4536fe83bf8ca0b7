"""Stage: the tuned and the original model on collections that the tuning has not seen."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5x_style.distributed import startup
from t5x_style.evaluation import comparison, evaluation_suite, query_groups, ranking
from t5x_style.retrieval import beir_collection

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "forgetting": {
        "name": "forgetting",
        "version": 1,
        "outputs": ["metrics"],
        "program": True,
        "check": "check",
    }
}
METRICS = "others.json"


def forgetting(
    collections: Sequence[str],
    systems: Sequence[evaluation_suite.System],
    baseline: str,
    split: str,
    depth: int,
    metrics: Sequence[str],
    samples: int,
    seed: int,
    model_dir: str,
) -> dict[str, str]:
    """Writes others.json, and prints a table for each collection.

    others.json: {collection: what `evaluate` writes to metrics.json of systems, intervals and
    tests}, by the names of the folders; {} without collections.

    Args:
      collections: folders in BEIR's layout, with distinct names; each fits in memory.
      systems: embed any collection, see `text_search.TextSearch`.
      baseline: name of the system that the others are compared with.
      split: of the judgements.
      depth: how many passages each system lists for a query.
      metrics: names like 'nDCG@10'.
      samples: of the bootstrap and of the randomisation test.
      seed: of both.
      model_dir: where the file goes.

    Raises:
      ValueError, FileNotFoundError: see `check`.
    """
    check(collections, systems, baseline, split, depth, metrics)
    main, found = jax.process_index() == 0, {}
    for folder in collections:
        suite = evaluation_suite.EvaluationSuite(folder, systems, depth)
        report, scores = _measure(suite, split, metrics)
        report |= comparison.compare(
            scores, baseline, (), samples, seed, _groups(suite, split, scores)
        )
        found[_name(folder)] = report
        if main:
            print(_lines(_name(folder), report), file=sys.stderr)
    if main:
        text = json.dumps(found, indent=1) + "\n"
        (Path(model_dir) / METRICS).write_text(text, encoding="utf-8")
    return {"metrics": METRICS}


def check(
    collections: Sequence[str],
    systems: Sequence[evaluation_suite.System],
    baseline: str,
    split: str,
    depth: int,
    metrics: Sequence[str],
) -> None:
    """What can be known to be wrong before `forgetting` runs; reads names of files only.

    Raises:
      ValueError: two folders of one name, systems or metrics as in `evaluate`.
      FileNotFoundError: a collection has no such split.
    """
    names = [_name(folder) for folder in collections]
    if len(set(names)) < len(names):
        raise ValueError(
            f"forgetting.collections: expected folders of distinct names, found {names}"
        )
    ranking.require_depth(metrics, depth, "forgetting.depth")
    comparison.require_names([one.name for one in systems], baseline, ())
    for folder in collections:
        beir_collection.find_qrels(folder, split)


def _name(folder: str) -> str:
    return os.path.basename(os.path.normpath(folder))


def _groups(
    suite: evaluation_suite.EvaluationSuite, split: str, scores: Mapping[str, ranking.Scores]
) -> np.ndarray | None:
    """Of queries that ask for one passage; None where all do, and nothing could be resampled."""
    queries = next(iter(scores.values())).queries
    rule = query_groups.ByPassage()
    found = query_groups.numbers(rule, queries, suite.qrels(split), suite.passages)
    return found if len(set(found.tolist())) > 1 else None


def _measure(
    suite: evaluation_suite.EvaluationSuite, split: str, metrics: Sequence[str]
) -> tuple[dict[str, Any], dict[str, ranking.Scores]]:
    """Of one collection: what a reader should know, and the scores of each system."""
    scores = {
        name: ranking.score_run(suite.run(name, split), suite.qrels(split), metrics)
        for name in suite.systems
    }
    return {"split": split, "passages": len(suite.passages)}, scores


def _lines(name: str, report: Mapping[str, Any]) -> str:
    values = {
        system: {metric: round(one["value"], 4) for metric, one in found.items()}
        for system, found in report["systems"].items()
    }
    return f"forgetting: {name}, {report['n']} queries: {values}"


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.forgetting.forgetting")
