"""Stage: evaluate a model on collections that were not part of its tuning.

One model a stage: the untouched encoder is measured once, however often it is tuned. The verdict
compares what two of these stages found.
"""

import os
import sys
from collections.abc import Sequence

import jax

from t5x_style.distributed import startup
from t5x_style.evaluation import evaluation_suite, ranking, score_files
from t5x_style.retrieval import beir_collection

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "forgetting": {
        "name": "forgetting",
        "version": 2,
        "outputs": ["scores"],
        "program": True,
        "check": "check",
    }
}


def forgetting(
    collections: Sequence[str],
    system: evaluation_suite.System,
    split: str,
    depth: int,
    metrics: Sequence[str],
    model_dir: str,
) -> dict[str, str]:
    """Writes scores.json (`score_files`) by the names of the folders, and prints the means.

    Args:
      collections: folders in BEIR's layout, with distinct names; each fits in memory.
      system: embeds any collection, see `text_search.TextSearch`.
      split: of the judgements.
      depth: how many passages the system lists for a query.
      metrics: names like 'nDCG@10'.
      model_dir: where the file goes.

    Raises:
      ValueError, FileNotFoundError: see `check`.
    """
    check(collections, split, depth, metrics)
    first, found = jax.process_index() == 0, {}
    for folder in collections:
        suite = evaluation_suite.EvaluationSuite(folder, [system], depth)
        scores = ranking.score_run(suite.run(system.name, split), suite.qrels(split), metrics)
        found[_name(folder)] = score_files.record(suite.passages, suite.qrels(split), scores)
        if first:
            means = {metric: round(value, 4) for metric, value in scores.means().items()}
            print(
                f"forgetting: {_name(folder)}, {len(scores.queries)} queries: {means}",
                file=sys.stderr,
            )
    if first:
        score_files.write(model_dir, found)
    return {"scores": score_files.FILE_NAME}


def check(collections: Sequence[str], split: str, depth: int, metrics: Sequence[str]) -> None:
    """Check arguments before `forgetting` runs; reads names of files only.

    Raises:
      ValueError: two folders of one name, or metrics as in `evaluate`.
      FileNotFoundError: a collection has no such split.
    """
    names = [_name(folder) for folder in collections]
    if len(set(names)) < len(names):
        raise ValueError(
            f"forgetting.collections: expected folders of distinct names, found {names}"
        )
    ranking.require_depth(metrics, depth, "forgetting.depth")
    for folder in collections:
        beir_collection.find_qrels(folder, split)


def _name(folder: str) -> str:
    return os.path.basename(os.path.normpath(folder))


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.forgetting.forgetting")
