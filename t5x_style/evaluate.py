"""Stage: systems against judgements, as TREC runs, metrics with intervals, and a table."""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from t5x_style import runtime
from t5x_style.evaluation import comparison, ranking, systems

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"evaluate": {"name": "evaluate", "version": 1}}


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
    bench = _bench(corpus, systems, depth)
    comparison.require_names(bench.systems, baseline, compared)
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
        facts = {name: system.facts() for name, system in bench.systems.items()}
        report = comparison.compare(scores, baseline, compared, samples, seed)
        report |= {"split": split, "passages": len(bench.passages), "facts": facts}
        comparison.write(folder, report, scores)
    return {"metrics": "metrics.json", "per_query": "per_query.json", "runs": "runs"}


def _bench(corpus: str, chosen: Sequence[systems.System], depth: int) -> systems.Bench:
    bench = systems.Bench(corpus, chosen, depth)
    for name in bench.systems:
        if not name.replace("_", "").replace("-", "").isalnum():
            raise ValueError(f"{name!r} names a file: expected letters, digits, '_' and '-' only")
    return bench


if __name__ == "__main__":
    from t5x_style import stage

    runtime.start()
    stage.main("t5x_style.evaluate.evaluate")
