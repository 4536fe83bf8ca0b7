"""A system to evaluate: a model whose kinds of representations are searched as one.

See `retrieval.hybrid`. Weights are never chosen on the queries of a test.
"""

from collections.abc import Mapping, Sequence
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


class HybridSearch:
    """A weighted sum of the scores of several kinds, or their reciprocal ranks.

    Weights are those that are given; else the best ones on development queries, moved towards
    `prior` where these are few.
    """

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
        prior: weights where little is known; the kinds that take part.
        weights: in place of a choice.
        tune_split: judgements that weights are chosen on.
        metric: that they maximise.
        texts: makes sources of queries that `queries` do not hold, and of changed passages.

        Raises:
          ContractError: model and indexes do not belong together.
          HybridError: weights of kinds that are not there.
        """
        self.check_arguments(name, method, prior, weights, metric)
        searched.contract.require(model.contract, f"the model of system {name!r}")
        for given in filter(None, (prior, weights)):
            hybrid.check_weights(given, searched.kinds)
        self.name = name
        self._model, self._hybrid = model, searched
        kinds = dict.fromkeys([*prior, *(index.kind for index in searched.indexes)])
        self._queries = QueryEmbedder(name, model, queries, list(kinds), texts)
        self._texts = texts
        self._method, self._prior, self._weights = method, prior, weights
        self._tune_split, self._metric = tune_split, metric
        self._facts: dict[str, Any] = {}

    @staticmethod
    def check_arguments(
        name: str,
        method: str,
        prior: Mapping[str, float],
        weights: Mapping[str, float] | None,
        metric: str,
    ) -> None:
        """Raises ValueError, MetricError for settings that no model would make right."""
        for given in filter(None, (prior, weights)):
            hybrid.check_weights(given, KINDS)
        ranking.measure(metric)
        if method not in ("weighted", "reciprocal_rank"):
            raise ValueError(
                f"{name}: method: expected 'weighted' or 'reciprocal_rank', found {method!r}"
            )

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """As `System.run`."""
        wanted = list(suite.texts(split))
        rows, scores = self._scored(suite, split)
        if self._method == "reciprocal_rank":
            total = hybrid.reciprocal_ranks(scores)
        else:
            total = hybrid.weighted(scores, self._chosen(suite, split))
        found = index_lib.padded(total, rows, suite.depth)
        return ranking.make_run(wanted, self._hybrid.ids, *found)

    def _scored(
        self, suite: EvaluationSuite, split: str
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Candidates [Q, C] of a split's queries, and their scores by kind."""
        queries = self._queries.embed(suite.texts(split), split)
        asked = {kind: queries[kind] for kind in self._prior}
        rows = self._hybrid.propose(queries, suite.depth + len(suite.changed))
        changed = pseudo_queries.changed_passages(
            self.name, self._hybrid.ids, suite.changed, self._model.contract, self._texts
        )
        if changed is None:
            return rows, self._hybrid.scores(asked, rows)
        return self._with_changed(asked, rows, changed)

    def _with_changed(
        self, queries: Representations, rows: np.ndarray, changed: pseudo_queries.ChangedPassages
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
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
        return np.take_along_axis(rows, order, axis=1), scores

    def _chosen(self, suite: EvaluationSuite, split: str) -> Mapping[str, float]:
        if self._weights is None:
            if split == self._tune_split or not suite.has_qrels(self._tune_split):
                raise ValueError(
                    f"{self.name}: weights are chosen on split {self._tune_split!r}, which has to "
                    f"be another than the one that is evaluated, {split!r}, and judged. Bind "
                    "weights, or 'reciprocal_rank' as method"
                )
            self._weights = self._tuned(suite)
        return self._weights

    def _tuned(self, suite: EvaluationSuite) -> Mapping[str, float]:
        wanted = list(suite.texts(self._tune_split))
        rows, scores = self._scored(suite, self._tune_split)
        qrels = suite.qrels(self._tune_split)
        depth = min(suite.depth, ranking.measure(self._metric)[1])
        prior = _scaled(self._prior)

        def value(weights: Mapping[str, float]) -> float:
            found = index_lib.padded(hybrid.weighted(scores, weights), rows, depth)
            run = ranking.make_run(wanted, self._hybrid.ids, *found)
            return _mean(run, qrels, self._metric)

        def distance(weights: Mapping[str, float]) -> float:
            return sum(abs(weights[kind] - prior[kind]) for kind in prior)

        best = max(
            hybrid.grid(list(prior)), key=lambda one: (round(value(one), 12), -distance(one))
        )
        self._facts = {"tuned_on": self._tune_split, "queries": len(wanted), "best_there": best}
        return {kind: fusion.shrink(best[kind], len(wanted), prior[kind]) for kind in prior}

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {
            "kinds": list(self._prior),
            "candidates_by": [index.kind for index in self._hybrid.indexes],
            "candidates": self._hybrid.candidates,
            "method": self._method,
            **({"weights": self._weights, **self._facts} if self._method == "weighted" else {}),
            "contract": self._model.contract.of_texts(),
        }


def _scaled(weights: Mapping[str, float]) -> Mapping[str, float]:
    """The same ranking with weights that sum to 1."""
    total = sum(weights.values())
    return {kind: weight / total for kind, weight in weights.items()}


def _mean(run: Run, qrels: Qrels, metric: str) -> float:
    return float(ranking.score_run(run, qrels, [metric]).means()[metric])
