"""Systems that embed sentences for comparison: trained models, and character n-grams."""

import dataclasses
from typing import Any, Protocol

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from t5x_style.interfaces.representation import PASSAGE, QUERY
from t5x_style.interfaces.text_encoder import TextEncoder
from t5x_style.interfaces.texts import Texts
from t5x_style.multilingual.margin_scoring import Vectors


@dataclasses.dataclass(frozen=True)
class RowSubset:
    """Some of the sentences of a source.

    Attributes:
      source: all of them.
      rows: int64 [n], which.
    """

    source: Texts
    rows: np.ndarray

    @classmethod
    def whole(cls, source: Texts) -> "RowSubset":
        """All sentences of a source."""
        return cls(source, np.arange(len(source.ids)))


class SentenceSystem(Protocol):
    """Compares sentences."""

    @property
    def name(self) -> str:
        """In tables."""
        ...

    def vectors(self, left: RowSubset, right: RowSubset) -> tuple[Vectors, Vectors]:
        """[n, D] and [m, D] in one space; the nearer by cosine, the more alike."""
        ...

    def facts(self) -> dict[str, Any]:
        """Facts that explain its numbers."""
        ...


class Embedder:
    """A model whose vectors are compared."""

    def __init__(self, name: str, model: TextEncoder):
        """Args:
        name: in tables.
        model: embeds the left texts as queries and the right ones as passages.
        """
        self.name = name
        self._model = model
        # The source is kept, too, since another could get its id otherwise.
        self._known: dict[tuple[int, str], tuple[Texts, np.ndarray]] = {}

    def vectors(self, left: RowSubset, right: RowSubset) -> tuple[np.ndarray, np.ndarray]:
        """As `SentenceSystem.vectors`; a source is embedded whole when it is first asked for."""
        return self._of(left, QUERY), self._of(right, PASSAGE)

    def _of(self, part: RowSubset, side: str) -> np.ndarray:
        key = (id(part.source), side)
        if key not in self._known:
            self._known[key] = part.source, self._model.encode(side, part.source)
        return self._known[key][1][part.rows]

    def facts(self) -> dict[str, Any]:
        """As `SentenceSystem.facts`."""
        return {"checkpoint": self._model.fingerprint}


class CharacterNgrams:
    """TF-IDF of character n-grams inside words, of what is compared at a time by itself.

    What names, numbers and related words give away without any training.
    """

    def __init__(self, name: str, min_length: int = 2, max_length: int = 4):
        """Args:
        name: in tables.
        min_length, max_length: characters of an n-gram.
        """
        if not 1 <= min_length <= max_length:
            raise ValueError(
                f"CharacterNgrams: expected 1 <= min_length <= max_length, found {min_length}, "
                f"{max_length}"
            )
        self.name = name
        self._range = (min_length, max_length)
        self._texts: dict[int, tuple[Texts, list[str]]] = {}

    def vectors(self, left: RowSubset, right: RowSubset) -> tuple[Vectors, Vectors]:
        """As `SentenceSystem.vectors`, sparse; a text without n-grams is 0."""
        grams = TfidfVectorizer(analyzer="char_wb", ngram_range=self._range, sublinear_tf=True)
        both = grams.fit_transform(self._of(left) + self._of(right))
        return both[: len(left.rows)], both[len(left.rows) :]

    def _of(self, part: RowSubset) -> list[str]:
        key = id(part.source)
        if key not in self._texts:
            self._texts[key] = part.source, part.source.texts()
        known = self._texts[key][1]
        return [known[row] for row in part.rows.tolist()]

    def facts(self) -> dict[str, Any]:
        """As `SentenceSystem.facts`."""
        return {"ngrams": list(self._range)}
