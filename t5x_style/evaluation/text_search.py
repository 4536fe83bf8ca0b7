"""A trained model on any collection: passages and queries are embedded from their texts."""

from typing import Any

import numpy as np

from t5x_style.evaluation import ranking
from t5x_style.evaluation.evaluation_suite import EvaluationSuite
from t5x_style.evaluation.ranking import Run
from t5x_style.evaluation.retrieval_systems import MakeSource
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import Combination
from t5x_style.interfaces.representation import KINDS, PASSAGE, QUERY, Representations
from t5x_style.interfaces.text_encoder import TextEncoder
from t5x_style.retrieval import candidate_scores, exact_index
from t5x_style.retrieval.hybrid import counted, reciprocal_ranks, weighted

_SCORES = 1 << 20  # of a kind in memory at a time


class TextSearch:
    """Exact search over a collection without token stores or index; it has to fit in memory."""

    def __init__(self, name: str, model: TextEncoder, texts: MakeSource, hybrid: str | None = None):
        """Args:
        name: of the system.
        model: embeds passages and queries.
        texts: makes sources of both.
        hybrid: folder of a contract that says how kinds are searched as one
          (`hybrid_weights.keep`); None: the vector alone.

        Raises:
          ContractError: `hybrid` is of another model.
        """
        self.name = name
        self._model, self._texts = model, texts
        self._combination = (
            None if hybrid is None else model.contract.combined(hybrid, KINDS).combination
        )

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """As `System.run`; a passage is its title, a space and its body.

        Raises:
          RepresentationError: the model does not offer a kind that is combined.
        """
        wanted, contract = suite.texts(split), self._model.contract
        passages = self._texts(
            suite.passages.ids,
            [" ".join(filter(None, (one.title, one.text))) for one in suite.passages],
            contract.passage_length,
            contract.passage_prefix,
        )
        queries = self._texts(
            list(wanted), list(wanted.values()), contract.query_length, contract.query_prefix
        )
        model, how = self._model, self._combination
        if how is None:
            asked, given = model.encode(QUERY, queries), model.encode(PASSAGE, passages)
            found = exact_index.top_k(asked, given, suite.depth)
        else:
            several = model.represent(QUERY, queries, how.kinds)
            compared = model.represent(PASSAGE, passages, how.kinds)
            found = _combined(several, compared, how, suite.depth)
        return ranking.make_run(list(wanted), suite.passages.ids, *found)

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {"index": "exact", "contract": self._model.contract.facts()}


def _combined(
    queries: Representations, passages: Representations, combination: Combination, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """As `Index.search` of Q queries, all N passages compared by each kind: scores, rows [Q, k]."""
    weights = combination.weights
    kinds = combination.kinds if weights is None else counted(weights)
    count, total = (len(side[kinds[0]]) for side in (queries, passages))
    step = max(1, _SCORES // max(1, total))
    all_scores, all_rows = [], []
    for start in range(0, count, step):
        rows = np.tile(np.arange(total, dtype=np.int32), (min(step, count - start), 1))
        scores = {
            kind: candidate_scores.scores(
                kind, queries[kind][start : start + step], passages[kind], rows
            )
            for kind in kinds
        }
        summed = reciprocal_ranks(scores) if weights is None else weighted(scores, weights)
        best, at = index_lib.padded(summed, rows, k)
        all_scores.append(best)
        all_rows.append(at)
    return np.concatenate(all_scores), np.concatenate(all_rows)
