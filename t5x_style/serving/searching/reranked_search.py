"""Search of one version's passages by BM25, and by a re-ranker of its hits."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from t5x_style.interfaces.index import NO_ROW
from t5x_style.interfaces.representation import Representation
from t5x_style.retrieval import bm25
from t5x_style.retrieval.lexical.bm25_reranking import Bm25Reranking, Score
from t5x_style.serving.searching.passage_sources import Sources
from t5x_style.serving.service import BM25, RERANKED, Encoded, RequestError, shown


@dataclasses.dataclass(frozen=True)
class RerankedSearch:
    """As `passage_search.PassageSearch`, of a bundle without representations.

    Attributes:
      fusion: BM25, and how its scores and the re-ranker's are added.
      sources: of the passages.
      score: of the re-ranker; None: there is none yet, and mode RERANKED cannot be asked.
    """

    fusion: Bm25Reranking
    sources: Sources
    score: Score | None = None
    passages: ClassVar[Mapping[str, Representation]] = MappingProxyType({})
    modes: ClassVar[tuple[str, ...]] = (BM25, RERANKED)

    def by(self, score: Score) -> "RerankedSearch":
        """The same with a re-ranker."""
        return dataclasses.replace(self, score=score)

    def needs(self, mode: str) -> tuple[str, ...]:
        """See `Service.needs`: a query's words are enough."""
        if mode not in self.modes:
            raise RequestError(f"mode: expected one of {list(self.modes)}, found {shown(mode)}")
        return ()

    def search(
        self, query: Encoded, mode: str, k: int, source: str | None
    ) -> list[tuple[int, float, dict[str, float]]]:
        """See `PassageSearch.search`; RERANKED is a logit, of those that were scored."""
        self.needs(mode)
        within = None if source is None else self.sources.required(source)
        words, logits = self.fusion.found(query.text, within), dict[int, float]()
        if mode == BM25:
            scores, rows = bm25.best(words, k)
        else:
            scores, rows = self.fusion.search(query.text, words, k, self._keeping(logits))
        return [
            (row, value, self._parts(row, words, logits))
            for row, value in zip(rows.tolist(), scores.tolist(), strict=True)
            if row != NO_ROW
        ]

    def _keeping(self, logits: dict[int, float]) -> Score:
        """The re-ranker, which leaves its scores by row in `logits`."""
        score = self.score
        assert score is not None

        def scored(question: str, rows: np.ndarray) -> np.ndarray:
            found = score(question, rows)
            logits.update(zip(rows.tolist(), found.tolist(), strict=True))
            return found

        return scored

    def _parts(self, row: int, words: np.ndarray, logits: Mapping[int, float]) -> dict[str, float]:
        parts = {BM25: float(words[row])}
        return parts | {RERANKED: logits[row]} if row in logits else parts
