"""Stage: evaluate systems against judgements: TREC runs, metrics with intervals, and a table."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t5x_style.distributed import startup
from t5x_style.evaluation import (
    comparison,
    evaluation_suite,
    query_groups,
    ranking,
    retrieval_systems,
)
from t5x_style.retrieval import beir_collection

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "evaluate": {
        "name": "evaluate",
        "version": 3,
        "outputs": ["metrics", "per_query", "runs"],
        "program": True,
        "check": "check",
    }
}


def evaluate(
    corpus: str,
    split: str,
    systems: Sequence[retrieval_systems.System],
    baseline: str,
    depth: int,
    samples: int,
    seed: int,
    model_dir: str,
    metrics: Sequence[str] = ranking.METRICS,
    compared: Sequence[tuple[str, str]] = (),
    group_of: query_groups.GroupRule | None = None,
    development: str | None = None,
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, str]:
    """Writes runs/<system>.trec, metrics.json and per_query.json, and prints a table.

    metrics.json: {"split", "n": number of queries, "groups": number of groups of them,
    "grouped_by", "passages", "systems": {system: {metric: {"value", "low", "high"}}}, "against":
    {"baseline", "systems": {system: {metric: {"difference", "low", "high", "p"}}}}, "compared":
    [{"one", "other", metric: {"difference", "low", "high", "p"}}], "development": {split: {"n",
    "systems": {system: {metric: value}}}}, "judged": {split: number of queries}, "facts": {system:
    ...}, "published": as given, if it is}. low and high bound a 95 % bootstrap interval over
    queries or groups of queries, p is of a paired randomisation test over the same.

    per_query.json: {"queries": [n] ids, "groups": [n] numbers of their groups, or null, "systems":
    {system: {metric: [n]}}}.

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
      group_of: which queries belong together, see `groups`; None: queries are independent.
      development: a split on which the systems are measured as well, where the collection has it;
        but for those that are tuned on it.
      published: system -> metric -> a figure that others have published for this collection, a row
        of the table each; nothing is tested against them.

    Raises:
      MetricError: a metric that does not exist or looks further.
      GroupError: a relevant passage lacks what names its group.
      ValueError: names that are not distinct, pairs of systems that do not exist, one group only,
        `published` of something that is not measured, see `comparison.require_published`.
    """
    check(corpus, systems, split, baseline, depth, samples, metrics, compared, published)
    suite = retrieval_systems.EvaluationSuite(corpus, systems, depth)
    folder = Path(model_dir)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    scores = {}
    main = jax.process_index() == 0  # all processes compute, for models spread over them
    for name in suite.systems:
        run = _cut(suite.run(name, split), depth)
        if main:
            ranking.write_run(folder / "runs" / f"{name}.trec", run, name)
        scores[name] = ranking.score_run(run, suite.qrels(split), metrics)
        if main:
            print(f"evaluate: {name} {scores[name].means()}", file=sys.stderr)
    _run_development(suite, split, development)
    if main:
        facts = {name: system.facts() for name, system in suite.systems.items()}
        numbers = None
        if group_of is not None:
            queries = scores[baseline].queries
            numbers = query_groups.numbers(group_of, queries, suite.qrels(split), suite.passages)
        report = comparison.compare(scores, baseline, compared, samples, seed, numbers)
        report |= {"split": split, "passages": len(suite.passages), "facts": facts}
        report |= {"grouped_by": repr(group_of) if group_of is not None else None}
        report |= {"development": _development(suite, split, depth, metrics)}
        report |= {"judged": suite.judged()} | ({"published": published} if published else {})
        comparison.write(folder, report, scores, numbers)
    return {"metrics": "metrics.json", "per_query": "per_query.json", "runs": "runs"}


def check(
    corpus: str,
    systems: Sequence[retrieval_systems.System],
    split: str,
    baseline: str,
    depth: int,
    samples: int,
    metrics: Sequence[str],
    compared: Sequence[tuple[str, str]],
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Check arguments before `evaluate` runs; reads names of files only.

    Raises:
      MetricError, ValueError: see `evaluate`.
      FileNotFoundError: the collection has no such split.
    """
    if samples < 1:
        raise ValueError(f"evaluate.samples: expected at least 1, found {samples}")
    ranking.require_depth(metrics, depth, "evaluate.depth")
    names = [system.name for system in systems]
    evaluation_suite.require_systems(names, depth)
    for name in names:
        if not name.replace("_", "").replace("-", "").isalnum():
            raise ValueError(f"{name!r} names a file: expected letters, digits, '_' and '-' only")
    comparison.require_names(names, baseline, compared)
    comparison.require_published(published, names, metrics)
    beir_collection.find_qrels(corpus, split)


def _cut(run: ranking.Run, depth: int) -> ranking.Run:
    return {query: hits[:depth] for query, hits in run.items()}


def _run_development(
    suite: retrieval_systems.EvaluationSuite, split: str, development: str | None
) -> None:
    if development is None or development == split:
        return
    if not suite.has_qrels(development):
        print(f"evaluate: no judgements of split {development!r}, nothing is measured there",
              file=sys.stderr)  # fmt: skip
        return
    for name, system in suite.systems.items():
        if getattr(system, "tune_split", None) != development:
            suite.run(name, development)


def _development(
    suite: retrieval_systems.EvaluationSuite, split: str, depth: int, metrics: Sequence[str]
) -> dict[str, Any]:
    """The means of all runs on other splits, as `evaluate` writes them."""
    found = {}
    for other, runs in suite.made().items():
        if other != split:
            qrels = suite.qrels(other)
            means = {
                name: ranking.score_run(_cut(run, depth), qrels, metrics).means()
                for name, run in runs.items()
            }
            found[other] = {"n": len(qrels), "systems": means}
    return found


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.evaluate.evaluate")
