"""Ranked lists against judgements: metrics, confidence intervals, and TREC run files.

Metrics are trec_eval's, by ir-measures. As in trec_eval, a judged query for which a system found
nothing counts as 0, passages without a judgement are not relevant, and results for queries without
judgements are ignored. Ties in score were broken when a run was made, and stay so: ranks, not
scores, decide here.
"""

import dataclasses
import math
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np

from t5x_style.evaluation import significance
from t5x_style.interfaces import index as index_lib
from t5x_style.retrieval.beir_collection import Qrels

Run = dict[str, list[tuple[str, float]]]  # query id -> (passage id, score), best first

METRICS = ("MRR@10", "nDCG@10", "Recall@10", "Recall@100")
_FAMILIES = {"MRR": ir_measures.RR, "nDCG": ir_measures.nDCG, "Recall": ir_measures.R}
_NAME = re.compile(r"(MRR|nDCG|Recall)(?:\(rel=([1-9]\d*)\))?@([1-9]\d*)")


class MetricError(ValueError):
    """A metric that does not exist, or that looks further than the lists go."""


class RunError(ValueError):
    """A run that cannot be scored: a passage twice or not in the corpus, a score not a number."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of a system on each query, and over all.

    Attributes:
      queries: their ids, sorted.
      values: metric -> [n] float64, in the order of `queries`.
    """

    queries: tuple[str, ...]
    values: dict[str, np.ndarray]

    def means(self) -> dict[str, float]:
        """Metric -> mean over queries."""
        return {metric: float(values.mean()) for metric, values in self.values.items()}

    def of(self, queries: Container[str]) -> "Scores":
        """The scores of some of the queries."""
        kept = [place for place, query in enumerate(self.queries) if query in queries]
        return Scores(
            tuple(self.queries[place] for place in kept),
            {metric: values[kept] for metric, values in self.values.items()},
        )

    def intervals(
        self, samples: int, seed: int, groups: np.ndarray | None = None
    ) -> dict[str, dict[str, float]]:
        """Metric -> value and its 95 % bootstrap interval, low and high.

        Args:
          samples: number of resamples.
          seed: of the bootstrap.
          groups: [n] int64, the group of each query; None: each query is one.
        """
        result = {}
        for metric, values in self.values.items():
            low, high = significance.bootstrap_interval(values, samples, seed, groups=groups)
            result[metric] = {"value": float(values.mean()), "low": low, "high": high}
        return result


def measure(name: str) -> tuple[Any, int]:
    """The measure of a name like 'Recall@50', and how many hits it looks at.

    'Recall(rel=2)@50' counts judgements of 2 and more as relevant, as MRR and recall on TREC DL's
    passages do; otherwise those of 1 and more. nDCG counts the grades themselves.

    Raises:
      MetricError: there is no such measure.
    """
    found = _NAME.fullmatch(name)
    if found is None or (found[1] == "nDCG" and found[2]):
        raise MetricError(
            f"metric: expected one of {[*_FAMILIES]}, the first and the last perhaps with (rel=2), "
            f"@ a number, as 'Recall(rel=2)@50'; found {name!r}"
        )
    family, relevant, depth = _FAMILIES[found[1]], found[2], int(found[3])
    return (family(rel=int(relevant)) if relevant else family) @ depth, depth


def require_depth(metrics: Sequence[str], depth: int, where: str) -> None:
    """Raises MetricError if a metric looks further than lists of `depth` hits.

    Args:
      metrics: names, see `measure`.
      depth: of the lists.
      where: the setting to raise.
    """
    for name in metrics:
        if measure(name)[1] > depth:
            raise MetricError(
                f"{name} looks further than the lists of {depth} passages: raise {where}"
            )


def make_run(
    query_ids: Sequence[str], ids: Sequence[str], scores: np.ndarray, rows: np.ndarray
) -> Run:
    """The run of an index's answers.

    Args:
      query_ids: Q ids.
      ids: of the passages, by row.
      scores, rows: [Q, k], as `index.Index.search` returns them.
    """
    return {
        query: [
            (ids[row], float(score))
            for score, row in zip(scores[i], rows[i], strict=True)
            if row != index_lib.NO_ROW
        ]
        for i, query in enumerate(query_ids)
    }


def score_run(run: Run, qrels: Qrels, metrics: Sequence[str] = METRICS) -> Scores:
    """Every metric on every judged query.

    Args:
      run: lists.
      qrels: judgements.
      metrics: names, see `measure`.

    Raises:
      MetricError: there is no such metric.
      RunError: no query of the run is judged, or `check_run` would refuse it.
    """
    check_run(run, None)
    if not run.keys() & qrels.keys():
        raise RunError(
            f"none of the run's {len(run)} queries is among the {len(qrels)} judged ones; "
            "the run belongs to another split or corpus"
        )
    judged = [ir_measures.Qrel(q, p, r) for q, grades in qrels.items() for p, r in grades.items()]
    # Ranks are passed as scores: trec_eval would break ties of scores by id, we broke them already.
    ranked = [
        ir_measures.ScoredDoc(query, passage, float(-rank))
        for query, hits in run.items()
        for rank, (passage, _) in enumerate(hits)
    ]
    queries = tuple(sorted(qrels))
    place = {query: i for i, query in enumerate(queries)}
    values = {metric: np.zeros(len(queries)) for metric in metrics}
    measures = {metric: measure(metric)[0] for metric in metrics}
    names = {str(one): metric for metric, one in measures.items()}
    for result in ir_measures.iter_calc(list(measures.values()), judged, ranked):
        values[names[str(result.measure)]][place[result.query_id]] = result.value
    return Scores(queries, values)


def check_run(run: Run, passages: Container[str] | None) -> None:
    """Raises RunError for a passage twice, a score that is no number, or one not in `passages`."""
    for query, hits in run.items():
        names = [name for name, _ in hits]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise RunError(f"query {query!r}: passage {twice!r} is listed more than once")
        for name, score in hits:
            if not math.isfinite(score):
                raise RunError(f"query {query!r}, passage {name!r}: score {score} is not finite")
            if passages is not None and name not in passages:
                raise RunError(
                    f"query {query!r}: passage {name!r} is not in the corpus; the index was built "
                    "from another one. Encode and index this corpus again."
                )


def write_run(path: str | Path, run: Run, tag: str) -> None:
    """Writes a TREC run file: 'query Q0 passage rank score tag', ranks from 1.

    trec_eval orders by score and not by rank, so equal scores would be reordered by id. A score
    that does not fall is written as the next smaller float32, which every reader can distinguish.
    """
    for name in [*run, *(passage for hits in run.values() for passage, _ in hits), tag]:
        if not name or any(c.isspace() for c in name):
            raise RunError(f"{path}: {name!r} cannot be in a TREC file: white space")
    with Path(path).open("w", encoding="utf-8") as file:
        for query, hits in run.items():
            above = np.float32(np.inf)
            for rank, (passage, score) in enumerate(hits, start=1):
                above = min(np.float32(score), np.nextafter(above, np.float32(-np.inf)))
                file.write(f"{query} Q0 {passage} {rank} {float(above)!r} {tag}\n")


def read_run(path: str | Path) -> Run:
    """Reads a TREC run file; best first by score, ties by rank."""
    entries: dict[str, list[tuple[float, int, str]]] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split()
        try:
            query, _, passage, rank, score, _ = fields
            entries.setdefault(query, []).append((-float(score), int(rank), passage))
        except ValueError as error:
            raise RunError(
                f"{path}:{number}: expected 'query Q0 passage rank score tag', found {line!r}"
            ) from error
    return {
        query: [(passage, -negated) for negated, _, passage in sorted(hits)]
        for query, hits in entries.items()
    }


def compare(
    one: Scores, other: Scores, samples: int, seed: int, groups: np.ndarray | None = None
) -> Mapping[str, dict[str, float]]:
    """The paired comparison of two systems on the same queries.

    Args:
      one, other: their scores.
      samples: of the bootstrap and of the randomisation test.
      seed: of both.
      groups: [n] int64, the group of each query; None: each query is one.

    Returns:
      Metric -> difference (one - other), the ends low and high of its 95 % bootstrap interval, and
      the p-value of a paired randomisation test.

    Raises:
      RunError: their queries differ.
    """
    if one.queries != other.queries:
        raise RunError("two systems can be compared on the same queries only; their queries differ")
    result = {}
    for metric in one.values:
        differences = one.values[metric] - other.values[metric]
        low, high = significance.bootstrap_interval(differences, samples, seed, groups=groups)
        p_value = significance.randomisation_p_value(differences, samples, seed, groups)
        mean = float(differences.mean())
        result[metric] = {"difference": mean, "low": low, "high": high, "p": p_value}
    return result
