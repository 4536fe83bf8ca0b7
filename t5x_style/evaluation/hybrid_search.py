"""A system to evaluate: a model whose kinds of representations are searched as one.

See `retrieval.hybrid`. Weights are never chosen on the queries of a test.
"""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from t5x_style.evaluation import fusion, pseudo_queries, ranking
from t5x_style.evaluation.evaluation_suite import EvaluationSuite
from t5x_style.evaluation.query_embedder import MakeSource, QueryEmbedder
from t5x_style.evaluation.ranking import Run
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.representation import KINDS, PASSAGE, Representations
from t5x_style.interfaces.text_encoder import TextEncoder
from t5x_style.interfaces.texts import EncodeSource
from t5x_style.retrieval import candidate_scores, hybrid
from t5x_style.retrieval.beir_collection import Qrels


def check_arguments(
    name: str,
    method: str,
    prior: Mapping[str, float],
    weights: Mapping[str, float] | None,
    metric: str,
    kinds: Sequence[str] = KINDS,
) -> None:
    """Raises ValueError, MetricError for settings that no model would make right.

    Args: see `HybridPart`.
    """
    for given in filter(None, (prior, weights)):
        try:
            hybrid.check_weights(given, kinds)
        except hybrid.HybridError as error:
            raise hybrid.HybridError(
                f"{name}: {error}. Of a kind that the model does not have (KIND_WEIGHTS), leave "
                "the weight or the system out (in recipes of M3, PARTS_OF_ALL={})."
            ) from error
    ranking.measure(metric)
    if method not in ("weighted", "reciprocal_rank"):
        raise ValueError(
            f"{name}: method: expected 'weighted' or 'reciprocal_rank', found {method!r}"
        )


@dataclasses.dataclass(frozen=True)
class Candidates:
    """What is scored for the queries of a split.

    Attributes:
      ids: of all passages.
      rows: [Q, C] int32, into `ids`, or NO_ROW.
      scores: kind -> [Q, C] float32.
    """

    ids: Sequence[str]
    rows: np.ndarray
    scores: Mapping[str, np.ndarray]

    def best(self, total: np.ndarray, queries: Sequence[str], depth: int) -> Run:
        """The best passages of each query by scores [Q, C]."""
        return ranking.make_run(queries, self.ids, *index_lib.padded(total, self.rows, depth))


class Weighing:
    """How the scores of several kinds become one.

    Weights are those that are given; else the best ones on development queries, moved towards
    `prior` where these are few.
    """

    def __init__(
        self,
        name: str,
        method: Literal["weighted", "reciprocal_rank"],
        prior: Mapping[str, float],
        weights: Mapping[str, float] | None,
        tune_split: str,
        metric: str,
    ):
        """Args: see `HybridSearch`.

        Raises:
          ValueError, MetricError: settings that no model would make right.
        """
        check_arguments(name, method, prior, weights, metric)
        self.kinds = list(prior)
        self._name, self._method, self._prior, self._weights = name, method, prior, weights
        self._tune_split, self._metric = tune_split, metric
        self._facts: dict[str, Any] = {}

    def run(
        self, suite: EvaluationSuite, split: str, candidates: Callable[[str], Candidates]
    ) -> Run:
        """The best passages of each query.

        Args:
          suite: the collection.
          split: whose queries.
          candidates: of the queries of a split, scored by all of `kinds`.
        """
        found, wanted = candidates(split), list(suite.texts(split))
        scores = {kind: found.scores[kind] for kind in self.kinds}
        if self._method == "reciprocal_rank":
            return found.best(hybrid.reciprocal_ranks(scores), wanted, suite.depth)
        weights = self._chosen(suite, split, candidates)
        return found.best(hybrid.weighted(scores, weights), wanted, suite.depth)

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        found: dict[str, Any] = {"kinds": self.kinds, "method": self._method}
        if self._method == "weighted":
            found |= {"weights": self._weights, **self._facts}
        return found

    def _chosen(
        self, suite: EvaluationSuite, split: str, candidates: Callable[[str], Candidates]
    ) -> Mapping[str, float]:
        if self._weights is None:
            if split == self._tune_split or not suite.has_qrels(self._tune_split):
                raise ValueError(
                    f"{self._name}: weights are chosen on split {self._tune_split!r}, which has to "
                    f"be another than the one that is evaluated, {split!r}, and judged. Bind "
                    "weights, or 'reciprocal_rank' as method"
                )
            self._weights = self._tuned(suite, candidates(self._tune_split))
        return self._weights

    def _tuned(self, suite: EvaluationSuite, candidates: Candidates) -> Mapping[str, float]:
        wanted, qrels = list(suite.texts(self._tune_split)), suite.qrels(self._tune_split)
        depth = min(suite.depth, ranking.measure(self._metric)[1])
        scores = {kind: candidates.scores[kind] for kind in self.kinds}
        prior = _scaled(self._prior)

        def value(weights: Mapping[str, float]) -> float:
            run = candidates.best(hybrid.weighted(scores, weights), wanted, depth)
            return _mean(run, qrels, self._metric)

        def distance(weights: Mapping[str, float]) -> float:
            return sum(abs(weights[kind] - prior[kind]) for kind in prior)

        best = max(
            hybrid.grid(list(prior)), key=lambda one: (round(value(one), 12), -distance(one))
        )
        self._facts = {"tuned_on": self._tune_split, "queries": len(wanted), "best_there": best}
        return {kind: fusion.shrink(best[kind], len(wanted), prior[kind]) for kind in prior}


class HybridSearch:
    """A weighted sum of the scores of several kinds, or their reciprocal ranks."""

    check_arguments = staticmethod(check_arguments)

    def __init__(
        self,
        name: str,
        model: TextEncoder,
        searched: hybrid.Hybrid,
        queries: Sequence[EncodeSource],
        method: Literal["weighted", "reciprocal_rank"],
        prior: Mapping[str, float],
        weights: Mapping[str, float] | None = None,
        tune_split: str = "dev",
        metric: str = "nDCG@10",
        texts: MakeSource | None = None,
    ):
        """Args:
        name: of the system.
        model: embeds the queries, in one pass for all kinds.
        searched: indexes and representations of the passages.
        queries: sources that together hold the queries of every split that is asked for.
        method: 'weighted' or 'reciprocal_rank', which has no weights.
        prior: weights where little is known; the kinds that take part. Those that `searched` does
            not have are left out.
        weights: in place of a choice.
        tune_split: judgements that weights are chosen on.
        metric: that they maximise.
        texts: makes sources of queries that `queries` do not hold, and of changed passages.

        Raises:
          ContractError: model and indexes do not belong together.
          HybridError: weights of kinds that are not there, or no kind of `prior` is.
        """
        check_arguments(name, method, prior, weights, metric)
        prior = {kind: weight for kind, weight in prior.items() if kind in searched.kinds}
        self._weighing = Weighing(name, method, prior, weights, tune_split, metric)
        searched.contract.require(model.contract, f"the model of system {name!r}")
        for given in (prior, *filter(None, [weights])):
            hybrid.check_weights(given, searched.kinds)
        self.name = name
        self._model, self._hybrid, self._texts = model, searched, texts
        kinds = dict.fromkeys([*prior, *(index.kind for index in searched.indexes)])
        self._queries = QueryEmbedder(name, model, queries, list(kinds), texts)
        self._candidates: weakref.WeakKeyDictionary[EvaluationSuite, dict[str, Candidates]] = (
            weakref.WeakKeyDictionary()
        )

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """As `System.run`."""
        return self._weighing.run(suite, split, functools.partial(self.candidates, suite))

    def candidates(self, suite: EvaluationSuite, split: str) -> Candidates:
        """Of the queries of a split, scored by all kinds; computed once for unchanged passages."""
        if suite.changed:
            return self._scored(suite, split)
        known = self._candidates.setdefault(suite, {})
        if split not in known:
            known[split] = self._scored(suite, split)
        return known[split]

    def _scored(self, suite: EvaluationSuite, split: str) -> Candidates:
        queries = self._queries.embed(suite.texts(split), split)
        asked = {kind: queries[kind] for kind in self._weighing.kinds}
        rows = self._hybrid.propose(queries, suite.depth + len(suite.changed))
        changed = pseudo_queries.changed_passages(
            self.name, self._hybrid.ids, suite.changed, self._model.contract, self._texts
        )
        if changed is None:
            return Candidates(self._hybrid.ids, rows, self._hybrid.scores(asked, rows))
        return self._with_changed(asked, rows, changed)

    def _with_changed(
        self, queries: Representations, rows: np.ndarray, changed: pseudo_queries.ChangedPassages
    ) -> Candidates:
        """As `_scored`, where each changed passage is a candidate by its present text."""
        rows = np.where(np.isin(rows, changed.rows), index_lib.NO_ROW, rows)
        scores = self._hybrid.scores(queries, rows)
        present = self._model.represent(PASSAGE, changed.source, list(queries))
        shape = (len(rows), len(changed.rows))
        every = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
        rows = np.concatenate([rows, np.broadcast_to(changed.rows, shape)], axis=1)
        order = np.argsort(np.where(rows == index_lib.NO_ROW, len(self._hybrid.ids), rows), axis=1)
        for kind, one in queries.items():
            more = candidate_scores.scores(kind, one, present[kind], every)
            both = np.concatenate([scores[kind], more], axis=1)
            scores[kind] = np.take_along_axis(both, order, axis=1)
        return Candidates(self._hybrid.ids, np.take_along_axis(rows, order, axis=1), scores)

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {
            "candidates_by": [index.kind for index in self._hybrid.indexes],
            "candidates": self._hybrid.candidates,
            "contract": self._model.contract.of_texts(),
            **self._weighing.facts(),
        }


class HybridPart:
    """Some kinds of another hybrid, weighed for themselves: its candidates, with its scores."""

    check_arguments = staticmethod(check_arguments)

    def __init__(
        self,
        name: str,
        of: str,
        method: Literal["weighted", "reciprocal_rank"],
        prior: Mapping[str, float],
        weights: Mapping[str, float] | None = None,
        tune_split: str = "dev",
        metric: str = "nDCG@10",
        kinds: Sequence[str] = KINDS,
    ):
        """Args:
        name: of the system.
        of: name of a system of kind `hybrid` that has these kinds.
        method, weights, tune_split, metric: see `HybridSearch`.
        prior: as there; all of its kinds are needed.
        kinds: of the other system, as far as they are known before it is made.
        """
        check_arguments(name, method, prior, weights, metric, kinds)
        self._weighing = Weighing(name, method, prior, weights, tune_split, metric)
        self.name, self._of = name, of
        self._whole: HybridSearch | None = None

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """As `System.run`.

        Raises:
          ValueError: the other system is no hybrid.
          HybridError: it has not all kinds of this one.
        """
        whole = suite.systems.get(self._of)
        if not isinstance(whole, HybridSearch):
            known = [one.name for one in suite.systems.values() if isinstance(one, HybridSearch)]
            raise ValueError(
                f"{self.name}: expected the name of a system of kind 'hybrid', of which there are "
                f"{known}, found {self._of!r}"
            )
        hybrid.check_weights(dict.fromkeys(self._weighing.kinds, 1.0), whole.facts()["kinds"])
        self._whole = whole
        return self._weighing.run(suite, split, functools.partial(whole.candidates, suite))

    def facts(self) -> dict[str, Any]:
        """As `System.facts`, with how the other system finds candidates, once this one ran."""
        inherited = {} if self._whole is None else self._whole.facts()
        shared = ("candidates_by", "candidates", "contract")
        return {
            "part_of": self._of,
            **{name: inherited[name] for name in shared if name in inherited},
            **self._weighing.facts(),
        }


def _scaled(weights: Mapping[str, float]) -> Mapping[str, float]:
    """The same ranking with weights that sum to 1."""
    total = sum(weights.values())
    return {kind: weight / total for kind, weight in weights.items()}


def _mean(run: Run, qrels: Qrels, metric: str) -> float:
    return float(ranking.score_run(run, qrels, [metric]).means()[metric])
