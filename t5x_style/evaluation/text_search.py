"""A trained model on any collection: passages and queries are embedded from their texts."""

from typing import Any

from t5x_style.evaluation import ranking
from t5x_style.evaluation.evaluation_suite import EvaluationSuite
from t5x_style.evaluation.ranking import Run
from t5x_style.evaluation.retrieval_systems import MakeSource
from t5x_style.interfaces.representation import PASSAGE, QUERY
from t5x_style.interfaces.text_encoder import TextEncoder
from t5x_style.retrieval import exact_index


class TextSearch:
    """Exact search over a collection without token stores or index; it has to fit in memory."""

    def __init__(self, name: str, model: TextEncoder, texts: MakeSource):
        """Args:
        name: of the system.
        model: embeds passages and queries.
        texts: makes sources of both.
        """
        self.name = name
        self._model, self._texts = model, texts

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """As `System.run`; a passage is its title, a space and its body."""
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
        found = exact_index.top_k(
            self._model.encode(QUERY, queries), self._model.encode(PASSAGE, passages), suite.depth
        )
        return ranking.make_run(list(wanted), suite.passages.ids, *found)

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {"index": "exact", "contract": self._model.contract.facts()}
