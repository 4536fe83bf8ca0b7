"""BM25 over titles and bodies: the baseline, and the miner of hard negatives.

Lucene's variant with k1 = 0.9 and b = 0.4 (Pyserini's values); by default Porter2 stems, English
stop words.
"""

import collections
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from t5x_style.distributed import startup
from t5x_style.interfaces import index as index_lib
from t5x_style.retrieval.analysis import Analyzer, LanguageAnalyzer
from t5x_style.retrieval.beir_collection import Passages

K1 = 0.9
B = 0.4
_SETTINGS = {"method": "lucene", "k1": K1, "b": B, "backend": "numpy"}


class Bm25Search:
    """Text queries, results as of `index.Index`; a passage that shares no stem is no hit."""

    recall = 1.0

    def __init__(self, found: Any, ids: Sequence[str], analyzer: Analyzer):
        """Args:
        found: the library's index of the passages.
        ids: their ids.
        analyzer: makes words of queries, as it made those of the passages.
        """
        self.ids = list(ids)
        self._bm25, self._words = found, analyzer

    @classmethod
    def of(cls, texts: Iterable[str], ids: Sequence[str], analyzer: Analyzer) -> "Bm25Search":
        """Of texts, one for each passage; errors as of `Bm25Index`."""
        return cls(_indexed(analyzer(texts), ids), ids, analyzer)

    @classmethod
    def load(cls, folder: Path, ids: Sequence[str], analyzer: Analyzer) -> "Bm25Search":
        """What `save` wrote.

        Args:
          folder: of `save`.
          ids: of the passages.
          analyzer: that made their words.

        Raises:
          ValueError: files are missing or damaged, or are of another number of passages.
        """
        try:
            # On disk until it is asked; settings as here, whatever the file of parameters says.
            found = _library().BM25.load(folder, mmap=True, override_params=_SETTINGS)
        except Exception as error:  # the library raises whatever it meets
            raise ValueError(f"{folder}: expected BM25 of passages: {error!r}") from error
        if (count := found.scores["num_docs"]) != len(ids):
            raise ValueError(f"{folder}: expected BM25 of {len(ids)} passages, found {count}")
        return cls(found, ids, analyzer)

    def save(self, folder: Path) -> None:
        """Writes arrays and JSON, into a folder that is made."""
        self._bm25.save(folder)

    def search(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores [Q, k] float32 and rows [Q, k] int32; ties by row, NO_ROW past the last hit."""
        if isinstance(queries, str):
            raise index_lib.QueryError("expected a list of queries, found one string")
        if k < 1:
            raise index_lib.QueryError(f"expected k of at least 1, found {k}")
        found = [best(self._score(stems), k) for stems in self._words(queries)]
        scores = np.stack([s for s, _ in found]) if found else np.zeros((0, k), np.float32)
        rows = np.stack([r for _, r in found]) if found else np.zeros((0, k), np.int32)
        return scores, rows

    def score(self, query: str) -> np.ndarray:
        """The score of every passage, [N] float32; 0 where no stem is shared."""
        return self._score(self._words([query])[0])

    def parts(self, query: str, row: int) -> list[tuple[str, int, float]]:
        """What a passage's score is the sum of: stem, times in the query, and score of one."""
        counts = collections.Counter(self._words([query])[0])
        known = self._bm25.vocab_dict
        parts = [(one, n, self._part(known[one], row)) for one, n in counts.items() if one in known]
        return [part for part in parts if part[2] > 0]

    def _part(self, stem: int, row: int) -> float:
        """What one stem adds to the score of a passage; 0 where it does not have it."""
        arrays = self._bm25.scores
        place = slice(*arrays["indptr"][stem : stem + 2])
        (found,) = np.nonzero(arrays["indices"][place] == row)
        return float(arrays["data"][place][found].sum())

    def _score(self, stems: list[str]) -> np.ndarray:
        known = self._bm25.get_tokens_ids(stems)
        if not known:
            return np.zeros(len(self.ids), np.float32)
        scores: np.ndarray = self._bm25.get_scores_from_ids(known)
        return scores


class Bm25Index(Bm25Search):
    """A `Bm25Search` that is made of texts, and knows their stems."""

    def __init__(self, texts: Iterable[str], ids: Sequence[str], analyzer: Analyzer | None = None):
        """Args:
        texts: one for each passage.
        ids: their ids.
        analyzer: makes words of texts and queries; that of English by default.

        Raises:
          ValueError: not as many texts as ids, or no word in any of them.
        """
        words = LanguageAnalyzer("en") if analyzer is None else analyzer
        self._stems = words(texts)
        super().__init__(_indexed(self._stems, ids), ids, words)

    def stems(self, row: int) -> frozenset[str]:
        """The distinct stems of a passage."""
        return frozenset(self._stems[row])


def _indexed(stems: Sequence[Sequence[str]], ids: Sequence[str]) -> Any:
    if len(stems) != len(ids):
        raise ValueError(f"expected {len(ids)} texts, found {len(stems)}")
    if not any(stems):
        raise ValueError("expected at least one passage with a word in it, found none")
    found = _library().BM25(**_SETTINGS)
    found.index(stems, show_progress=False)
    return found


def _library() -> ModuleType:
    startup.tolerate_absent_tpu()
    import bm25s  # it runs a JAX operation on import, so not before a distributed start

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG
    return bm25s


def best(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The hits among the scores of all passages [N]: scores [k] and rows [k], as of a search."""
    hits = np.flatnonzero(scores > 0)
    return index_lib.best(scores[hits], hits, k)


def build(passages: Passages, language: str = "en") -> Bm25Index:
    """Indexes title and body of every passage, by the words that `LanguageAnalyzer` finds."""
    texts = (passage.content for passage in passages)
    return Bm25Index(texts, passages.ids, LanguageAnalyzer(language))


def stem(texts: Iterable[str], language: str = "en") -> list[list[str]]:
    """The words of each text, as `LanguageAnalyzer` finds them: stems without stop words."""
    return LanguageAnalyzer(language)(texts)
