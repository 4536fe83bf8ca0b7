"""Search of one version's passages by BM25, and the order of its hits by a re-ranker's scores."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from t5x_style.interfaces.index import NO_ROW
from t5x_style.interfaces.representation import Representation
from t5x_style.retrieval import bm25
from t5x_style.retrieval.lexical.bm25_reranking import Bm25Reranking
from t5x_style.serving.opened.passage_search import Found
from t5x_style.serving.opened.passage_sources import Sources
from t5x_style.serving.service import BM25, RERANKED, Encoded, RequestError, shown


@dataclasses.dataclass(frozen=True)
class RerankedSearch:
    """As `passage_search.PassageSearch`, of a bundle without representations.

    Attributes:
      fusion: BM25, and how its scores and the re-ranker's are added.
      sources: of the passages.
    """

    fusion: Bm25Reranking
    sources: Sources
    passages: ClassVar[Mapping[str, Representation]] = MappingProxyType({})
    modes: ClassVar[tuple[str, ...]] = (BM25, RERANKED)

    def needs(self, mode: str) -> tuple[str, ...]:
        """See `Service.needs`: a query's words are enough."""
        if mode not in self.modes:
            raise RequestError(f"mode: expected one of {list(self.modes)}, found {shown(mode)}")
        return ()

    def search(self, query: Encoded, mode: str, k: int, source: str | None) -> Found:
        """See `PassageSearch.search`; of mode RERANKED see `ordered`."""
        if mode != BM25:
            raise RequestError(f"mode: expected {BM25!r} without a re-ranker, found {shown(mode)}")
        words = self.words(query.text, source)
        scores, rows = bm25.best(words, k)
        return _found(scores, rows, words, {})

    def words(self, question: str, source: str | None) -> np.ndarray:
        """BM25's scores of all passages, [N] float32; 0 outside of the source."""
        within = None if source is None else self.sources.required(source)
        return self.fusion.found(question, within)

    def ordered(self, words: np.ndarray, rows: np.ndarray, logits: np.ndarray, k: int) -> Found:
        """The best passages, as `search`; RERANKED is the logit of those that were scored.

        Args:
          words: [N] float32, of `words`.
          rows: [n] int32, of `Bm25Reranking.head`.
          logits: [n] float32, their scores by the re-ranker.
          k: at least 1.
        """
        scores, best = self.fusion.order(words, rows, logits, k)
        by_row = dict(zip(rows.tolist(), logits.tolist(), strict=True))
        return _found(scores, best, words, by_row)


def _found(
    scores: np.ndarray, rows: np.ndarray, words: np.ndarray, logits: Mapping[int, float]
) -> Found:
    found: Found = []
    for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
        if row != NO_ROW:
            parts = {BM25: float(words[row])}
            found.append((row, score, parts | ({RERANKED: logits[row]} if row in logits else {})))
    return found
