"""BM25's best hits of a question in the order of a re-ranker, for whoever searches.

The re-ranker scores each of them with the question, and an evaluation chose on development queries
how much its score counts next to BM25's; the other hits follow. See
`retrieval_systems.Reranker` and `Fusion`, whose lists these are.
"""

from collections.abc import Callable

import numpy as np

from t5x_style.interfaces.index import NO_ROW
from t5x_style.retrieval import bm25
from t5x_style.retrieval.bm25 import Bm25Search
from t5x_style.retrieval.lexical import bm25_fusion
from t5x_style.retrieval.lexical.bm25_fusion import Fusion

Score = Callable[[str, np.ndarray], np.ndarray]  # question, rows [n] -> [n] float32, a re-ranker's


class Bm25Reranking:
    """From any thread.

    Attributes:
      fusion: how the scores of both are added; its depth is how many hits are scored.
      words: BM25 of the passages.
    """

    def __init__(self, fusion: Fusion, words: Bm25Search) -> None:
        self.fusion, self.words = fusion, words

    def found(self, question: str, within: np.ndarray | None = None) -> np.ndarray:
        """BM25's scores of all passages, [N] float32; 0 of those outside of the rows `within`."""
        scores = self.words.score(question)
        if within is None:
            return scores
        kept = np.zeros_like(scores)
        kept[within] = scores[within]
        return kept

    def search(
        self, question: str, found: np.ndarray, k: int, score: Score
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best passages.

        Args:
          question: what is asked.
          found: [N] float32, of `found`.
          k: at least 1.
          score: of the re-ranker.

        Returns:
          [k] float32 and [k] int32, as of a search. Scores are sums of the two lists', each scaled
          to [0, 1]; of the hits that follow, numbers that fall from below the last sum.
        """
        scores, rows = bm25.best(found, max(k, self.fusion.depth))
        scores, rows = scores[rows != NO_ROW], rows[rows != NO_ROW]
        best_scores = np.full(k, -np.inf, np.float32)
        best_rows = np.full(k, NO_ROW, np.int32)
        if not len(rows):
            return best_scores, best_rows
        head, rest = rows[: self.fusion.depth], rows[self.fusion.depth :]
        given = score(question, head)
        order = np.argsort(-given, kind="stable")
        lists = (given[order], head[order]), (scores[: len(head)], head)
        sums, ordered = bm25_fusion.added(self.fusion, *lists, self.words.ids, len(head))
        sums = np.concatenate([sums, sums[-1] - 1 - np.arange(len(rest), dtype=np.float32)])[:k]
        best_scores[: len(sums)] = sums
        best_rows[: len(sums)] = np.concatenate([ordered, rest])[:k]
        return best_scores, best_rows
