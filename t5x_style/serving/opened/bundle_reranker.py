"""The re-ranker of a bundle: the program that scores a question with a passage."""

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from t5x_style.interfaces.objective import SCORE
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.serving.opened import passage_search
from t5x_style.serving.opened.reranked_search import RerankedSearch
from t5x_style.serving.reranking import pair_texts
from t5x_style.serving.service import Candidates, Hit, Tokens
from t5x_style.serving.text_tokens import TextTokenizer
from t5x_style.serving.token_batches import TokenBatches


class BundleReranker:
    """Implements `service.Reranker`."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        batches: TokenBatches,
        passages: Passages,
        search: RerankedSearch,
    ) -> None:
        """Args:
        tokenizer: of the bundle.
        batches: that compute the program.
        passages: of the bundle.
        search: of them.
        """
        self._tokenizer, self._batches = tokenizer, batches
        self._passages, self._search = passages, search

    def pair(self, question: Tokens, passage: Tokens) -> Tokens:
        """See `Reranker`."""
        return self._tokenizer.pairs.scored(question, passage)

    def score(self, pair: Tokens) -> "Future[float]":
        """See `Reranker`."""
        return self._batches.submit(SCORE, pair, lambda found, row: float(found[SCORE][row]))

    def candidates(self, question: str, source: str | None) -> Candidates:
        """See `Reranker`."""
        words = self._search.words(question, source)
        rows = self._search.fusion.head(words)
        pairs = pair_texts.pairs(self._tokenizer, self._passages, question, rows)
        return Candidates(rows, pairs, words)

    def ordered(self, candidates: Candidates, logits: Sequence[float], k: int) -> list[Hit]:
        """See `Reranker`."""
        given = np.asarray(logits, np.float32)
        found = self._search.ordered(candidates.words, candidates.rows, given, k)
        return passage_search.hits(found, self._passages)
