"""The re-ranker of a bundle: the program that scores a question with a passage."""

from concurrent.futures import Future

import numpy as np

from t5x_style.interfaces.objective import SCORE
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.serving.reranking import pair_texts
from t5x_style.serving.service import Tokens
from t5x_style.serving.text_tokens import TextTokenizer
from t5x_style.serving.token_batches import TokenBatches


class BundleReranker:
    """Implements `service.Reranker`."""

    def __init__(self, tokenizer: TextTokenizer, batches: TokenBatches, passages: Passages) -> None:
        """Args:
        tokenizer: of the bundle.
        batches: that compute the program.
        passages: of the bundle.
        """
        self._tokenizer, self._batches, self._passages = tokenizer, batches, passages

    def pair(self, question: Tokens, passage: Tokens) -> Tokens:
        """See `Reranker`."""
        return self._tokenizer.pairs.scored(question, passage)

    def score(self, pair: Tokens) -> "Future[float]":
        """See `Reranker`."""
        return self._batches.submit(SCORE, pair, lambda found, row: float(found[SCORE][row]))

    def scores(self, question: str, rows: np.ndarray) -> np.ndarray:
        """Scores of a question with passages of the bundle; waits for them.

        Args:
          question: in words.
          rows: [n] of the passages.

        Returns:
          [n] float32.

        Raises:
          Overloaded, Unavailable: as `Service.submit`; what waits is taken back.
        """
        futures: list[Future[float]] = []
        try:
            for pair in pair_texts.pairs(self._tokenizer, self._passages, question, rows):
                futures.append(self.score(pair))
            return np.array([one.result() for one in futures], np.float32)
        finally:
            for one in futures:
                one.cancel()
