"""Search of one version's passages: by each kind, by all as one, and within one source."""

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
from t5x_style.serving.encoded_texts import as_representations
from t5x_style.serving.passage_sources import Sources
from t5x_style.serving.service import HYBRID, Encoded, RequestError, shown

# Of the hits that are asked for: an exact index compiles once for each. Above, powers of two.
SIZES = (16, 128, 1024)


@dataclasses.dataclass(frozen=True)
class PassageSearch:
    """Answers from any thread. Letters: n hits, at most the k that are asked for; N passages.

    Attributes:
      passages: kind -> representation of the N passages.
      indexes: kind -> index of them, of kinds that propose candidates.
      combined: how all kinds are searched as one; None where there is one kind.
      candidates: that each index proposes to a kind without one.
      sources: of the passages.
    """

    passages: Mapping[str, Representation]
    indexes: Mapping[str, Index]
    combined: hybrid.Combined | None
    candidates: int
    sources: Sources

    @property
    def modes(self) -> tuple[str, ...]:
        """Of `search`: HYBRID last, which is what to ask first."""
        return (*self.passages, *([] if self.combined is None else [HYBRID]))

    def needs(self, mode: str) -> tuple[str, ...]:
        """See `Service.needs`."""
        if mode not in self.modes:
            raise RequestError(f"mode: expected one of {list(self.modes)}, found {shown(mode)}")
        if mode == HYBRID and self.combined is not None:
            return self.combined.kinds
        if mode in self.indexes:
            return (mode,)
        return (mode, *self.indexes)  # which propose what it puts in order

    def search(
        self, query: Encoded, mode: str, k: int, source: str | None
    ) -> list[tuple[int, float, dict[str, float]]]:
        """Row, score, and score by kind of the best passages, best first; see `Service.search`."""
        asked = as_representations([query])
        if source is not None:
            scores, rows = self._within(asked, mode, k, source)
        elif mode == HYBRID and self.combined is not None:
            scores, rows = self.combined.search(asked, _rounded(k))
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

    def _within(
        self, asked: Representations, mode: str, k: int, source: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Every passage of a source is compared: [1, k] scores and rows; RequestError."""
        rows = self.sources.rows(source)[None].astype(np.int32)
        if not rows.size:
            raise RequestError(
                f"source: expected the beginning of a passage's source, found {shown(source)}, "
                f"with which none begins; GET /info lists some"
            )
        if mode == HYBRID and self.combined is not None:
            return self.combined.best_of(asked, rows, k)
        found = candidate_scores.scores(mode, asked[mode], self.passages[mode], rows)
        if mode == SPARSE:
            found = np.where(found == 0, -np.inf, found)  # nothing in common is no hit
            rows = np.where(np.isfinite(found), rows, NO_ROW)
        return padded(found, rows, k)


def _rounded(k: int) -> int:
    """The next of SIZES, or power of two past the last."""
    return next((size for size in SIZES if size >= k), 1 << (k - 1).bit_length())
