"""Search by BM25 whose best hits a re-ranker puts in order.

The re-ranker scores each of them with the question, and an evaluation chose on development queries
how much its score counts next to BM25's; the other hits follow. See
`retrieval_systems.Reranker` and `Fusion`, whose lists these are.
"""

import numpy as np

from t5x_style.interfaces.index import NO_ROW
from t5x_style.retrieval import bm25
from t5x_style.retrieval.bm25 import Bm25Search
from t5x_style.retrieval.lexical import bm25_fusion
from t5x_style.retrieval.lexical.bm25_fusion import ALONE, Fusion


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

    def head(self, found: np.ndarray) -> np.ndarray:
        """The hits that the re-ranker scores, [n] int32 rows of `found`, the best first."""
        _, rows = bm25.best(found, self.fusion.depth)
        return rows[rows != NO_ROW]

    def order(
        self, found: np.ndarray, head: np.ndarray, logits: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best passages.

        Args:
          found: [N] float32, of `found`.
          head: [n] int32, of `head`.
          logits: [n] float32, their scores by the re-ranker.
          k: at least 1.

        Returns:
          [k] float32 and [k] int32, as of a search. Scores are the re-ranker's, or sums of both
          lists', each scaled to [0, 1]; of the hits that follow, numbers that fall from below the
          last of these.
        """
        best_scores = np.full(k, -np.inf, np.float32)
        best_rows = np.full(k, NO_ROW, np.int32)
        if not len(head):
            return best_scores, best_rows
        by_model = np.argsort(-logits, kind="stable")  # of equal scores BM25's order, as evaluated
        if self.fusion.reranked == ALONE:
            sums, ordered = logits[by_model], head[by_model]
        else:
            lists = (logits[by_model], head[by_model]), (found[head], head)
            sums, ordered = bm25_fusion.added(self.fusion, *lists, self.words.ids, len(head))
        _, rows = bm25.best(found, max(k, len(head)))
        rest = rows[rows != NO_ROW][len(head) :]
        sums = np.concatenate([sums, sums[-1] - 1 - np.arange(len(rest), dtype=np.float32)])[:k]
        best_scores[: len(sums)] = sums
        best_rows[: len(sums)] = np.concatenate([ordered, rest])[:k]
        return best_scores, best_rows
