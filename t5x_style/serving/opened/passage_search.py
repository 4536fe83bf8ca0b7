"""Search of one version's passages: by each kind, by BM25, by all as one, within one source."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from t5x_style.interfaces.index import NO_ROW, Index, padded
from t5x_style.interfaces.representation import (
    SPARSE,
    Representation,
    Representations,
)
from t5x_style.retrieval import candidate_scores, hybrid
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.retrieval.lexical.bm25_fusion import Bm25Fusion
from t5x_style.serving.encoded_texts import as_representations
from t5x_style.serving.opened.passage_sources import Sources
from t5x_style.serving.service import BM25, HYBRID, Encoded, Hit, RequestError, shown

# Of the hits that are asked for: an exact index compiles once for each. Above, powers of two.
SIZES = (16, 128, 1024)


Found = list[tuple[int, float, dict[str, float]]]  # row, score, and score by kind; best first


def hits(found: Found, passages: Passages) -> list[Hit]:
    """What was found with the passages that it is about."""
    listed = [(passages.passage(row), score, scores) for row, score, scores in found]
    return [
        Hit(score, scores, one.id, one.title, one.text, one.source) for one, score, scores in listed
    ]


@dataclasses.dataclass(frozen=True)
class PassageSearch:
    """Answers from any thread. Letters: n hits, at most the k that are asked for; N passages.

    Attributes:
      passages: kind -> representation of the N passages.
      indexes: kind -> index of them, of kinds that propose candidates.
      combined: how all kinds are searched as one; None where there is one kind.
      candidates: that each index proposes to a kind without one.
      sources: of the passages.
      fusion: with BM25; None where there is no BM25.
    """

    passages: Mapping[str, Representation]
    indexes: Mapping[str, Index]
    combined: hybrid.Combined | None
    candidates: int
    sources: Sources
    fusion: Bm25Fusion | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        """Of `search`: HYBRID last, which is what to ask first."""
        several = self.combined is not None or self.fusion is not None
        words = [] if self.fusion is None else [BM25]
        return (*self.passages, *words, *([HYBRID] if several else []))

    def needs(self, mode: str) -> tuple[str, ...]:
        """See `Service.needs`."""
        if mode not in self.modes:
            raise RequestError(f"mode: expected one of {list(self.modes)}, found {shown(mode)}")
        if mode == BM25:
            return ()
        if mode == HYBRID:
            return tuple(self.passages) if self.combined is None else self.combined.kinds
        if mode in self.indexes:
            return (mode,)
        return (mode, *self.indexes)  # which propose what it puts in order

    def search(self, query: Encoded, mode: str, k: int, source: str | None) -> Found:
        """The best passages; see `Service.search`."""
        asked = as_representations([query])
        if source is not None:
            rows = self.sources.required(source)[None]
            scores, rows = self._within(query.text, asked, mode, k, rows)
        elif mode == BM25:
            scores, rows = self._with_bm25.words.search([query.text], k)
        elif mode == HYBRID:
            scores, rows = self._hybrid(query.text, asked, k)
        elif mode in self.indexes:
            scores, rows = self.indexes[mode].search(asked[mode], _rounded(k))
        else:
            scores, rows = self._in_order(asked, mode, k)
        best_scores, best_rows = scores[0, :k], rows[0, :k]
        best_scores = best_scores[best_rows != NO_ROW]
        best_rows = best_rows[best_rows != NO_ROW]
        if not len(best_rows):
            return []
        parts = {
            kind: candidate_scores.scores(kind, one, self.passages[kind], best_rows[None])[0]
            for kind, one in asked.items()
            if kind in self.passages
        }
        if self.fusion is not None and mode in (BM25, HYBRID):
            parts[BM25] = self.fusion.words.score(query.text)[best_rows]
        return [
            (int(row), float(score), {kind: float(part[n]) for kind, part in parts.items()})
            for n, (row, score) in enumerate(zip(best_rows, best_scores, strict=True))
        ]

    def _in_order(self, asked: Representations, kind: str, k: int) -> tuple[np.ndarray, np.ndarray]:
        """What the indexes propose, in the order of a kind that has none: [1, k] of both."""
        width = max(_rounded(k), self.candidates)
        found = [index.search(asked[one], width)[1][0] for one, index in self.indexes.items()]
        rows = np.unique(np.concatenate(found))
        rows = rows[rows != NO_ROW][None].astype(np.int32)
        scores = candidate_scores.scores(kind, asked[kind], self.passages[kind], rows)
        return padded(scores, rows, k)

    def _hybrid(self, text: str, asked: Representations, k: int) -> tuple[np.ndarray, np.ndarray]:
        """All kinds as one, and BM25 with them: [1, k] of both, or more."""
        if self.fusion is None:
            return self._by_model(asked, _rounded(k))
        depth = self.fusion.depth  # not rounded: as many candidates as the evaluation had
        scores, rows = self._by_model(asked, depth)
        added = self.fusion.add(text, scores[0], rows[0], k)
        return added[0][None], added[1][None]

    def _by_model(self, asked: Representations, k: int) -> tuple[np.ndarray, np.ndarray]:
        """All kinds as one, or the only one: [1, k] of both."""
        if self.combined is not None:
            return self.combined.search(asked, k)
        (kind,) = self.passages
        return self.indexes[kind].search(asked[kind], k)

    def _within(
        self, text: str, asked: Representations, mode: str, k: int, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Every one of the passages [1, n] is compared: [1, k] scores and rows."""
        if mode == BM25:
            found = self._with_bm25.words.score(text)[rows]
            return padded(np.where(found == 0, -np.inf, found), rows, k)
        if mode != HYBRID:
            return self._compared(asked, mode, rows, k)
        if self.fusion is None:
            return self._compared_by_model(asked, rows, k)
        compared = self._compared_by_model(asked, rows, rows.shape[1])
        added = self.fusion.within(text, compared[0][0], compared[1][0], rows[0], k)
        return added[0][None], added[1][None]

    def _compared_by_model(
        self, asked: Representations, rows: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        if self.combined is not None:
            return self.combined.best_of(asked, rows, k)
        (kind,) = self.passages
        return self._compared(asked, kind, rows, k)

    def _compared(
        self, asked: Representations, kind: str, rows: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        found = candidate_scores.scores(kind, asked[kind], self.passages[kind], rows)
        if kind == SPARSE:
            found = np.where(found == 0, -np.inf, found)  # nothing in common is no hit
            rows = np.where(np.isfinite(found), rows, NO_ROW)
        return padded(found, rows, k)

    @property
    def _with_bm25(self) -> Bm25Fusion:
        if self.fusion is None:
            raise RequestError(f"mode: expected one of {list(self.modes)}, found {BM25!r}")
        return self.fusion


def _rounded(k: int) -> int:
    """The next of SIZES, or power of two past the last."""
    return next((size for size in SIZES if size >= k), 1 << (k - 1).bit_length())
