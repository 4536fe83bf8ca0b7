"""What is asked for translations: trained models, and character n-grams to compare them with."""

import itertools
from typing import Any, Protocol

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from t5x_style.evaluation import bitext
from t5x_style.evaluation.translation_sets import DIRECTIONS, Accuracies, TranslationSet
from t5x_style.retrieval import encoding

BLOCK = 1024  # sentences whose similarities exist at a time


class TranslationSystem(Protocol):
    """Finds translations."""

    @property
    def name(self) -> str:
        """In tables."""
        ...

    def found(self, of: TranslationSet) -> Accuracies:
        """Whether it finds each translation of a set, both ways."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a reader of its numbers should know."""
        ...


class Embedder:
    """A model whose vectors are compared."""

    def __init__(self, name: str, model: encoding.Encoder):
        """Args:
        name: in tables.
        model: embeds sources as queries and targets as passages.
        """
        self.name = name
        self._model = model
        self._vectors: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def vectors(self, of: TranslationSet) -> tuple[np.ndarray, np.ndarray]:
        """Of sources and targets, [N, D] each; kept, since a picture asks again."""
        if of.name not in self._vectors:
            sources = self._model.encode("embed_query", of.sources)
            targets = self._model.encode("embed_passage", of.targets)
            self._vectors[of.name] = sources, targets
        return self._vectors[of.name]

    def found(self, of: TranslationSet) -> Accuracies:
        """As `TranslationSystem.found`."""
        return of.found(*self.vectors(of))

    def facts(self) -> dict[str, Any]:
        """As `TranslationSystem.facts`."""
        return {"checkpoint": self._model.fingerprint}


class CharacterNgrams:
    """TF-IDF of character n-grams inside words, of each pair of languages by itself.

    What names, numbers and related words give away without any training.
    """

    def __init__(self, name: str, shortest: int = 2, longest: int = 4):
        """Args:
        name: in tables.
        shortest, longest: characters of an n-gram.
        """
        if not 1 <= shortest <= longest:
            raise ValueError(
                f"CharacterNgrams: expected 1 <= shortest <= longest, found {shortest}, {longest}"
            )
        self.name = name
        self._range = (shortest, longest)

    def found(self, of: TranslationSet) -> Accuracies:
        """As `TranslationSystem.found`."""
        sources, targets = of.sources.texts(), of.targets.texts()
        return {
            pair: dict(zip(DIRECTIONS, self._both_ways(sources[rows], targets[rows]), strict=True))
            for pair, rows in of.pairs()
        }

    def _both_ways(self, sources: list[str], targets: list[str]) -> tuple[np.ndarray, np.ndarray]:
        grams = TfidfVectorizer(analyzer="char_wb", ngram_range=self._range, sublinear_tf=True)
        both = grams.fit_transform(sources + targets)
        left, right = both[: len(sources)], both[len(sources) :]
        return _finds_own(left, right), _finds_own(right, left)

    def facts(self) -> dict[str, Any]:
        """As `TranslationSystem.facts`."""
        return {"ngrams": list(self._range)}


def _finds_own(sources: Any, targets: Any) -> np.ndarray:
    """As `bitext.finds_own`, of sparse rows of length 1; a text without n-grams finds nothing."""
    found = np.zeros(sources.shape[0], bool)
    for start in range(0, sources.shape[0], BLOCK):
        similarity = (sources[start : start + BLOCK] @ targets.T).toarray()
        rows = np.arange(start, start + len(similarity))
        found[rows] = (similarity.argmax(axis=1) == rows) & (similarity.max(axis=1) > 0)
    return found


def between_languages(
    of: TranslationSet, sources: np.ndarray, targets: np.ndarray
) -> tuple[list[str], np.ndarray]:
    """Accuracy from every language of a set to every other, of texts that stand in many languages.

    Sentences of two languages belong together if their ids are equal behind the languages.

    Args:
      of: the set.
      sources, targets: vectors of its two sides, [N, D] each.

    Returns:
      Languages, sorted, and [languages, languages] float64: of the sentences that row and column
      share, how many find the column's; NaN on the diagonal and where they share fewer than two.
    """
    texts: dict[str, dict[str, np.ndarray]] = {}  # language -> what is said -> its vector
    for pair, at in of.pairs():
        for language, side in zip(pair.split("_"), (sources, targets), strict=True):
            known = texts.setdefault(language, {})
            for row in range(at.start, at.stop):
                known.setdefault(of.sources.ids[row].partition("/")[2], side[row])
    names = sorted(texts)
    matrix = np.full((len(names), len(names)), np.nan)
    for one, other in itertools.permutations(range(len(names)), 2):
        left, right = texts[names[one]], texts[names[other]]
        shared = [said for said in left if said in right]
        if len(shared) > 1:
            vectors = [np.stack([side[said] for said in shared]) for side in (left, right)]
            matrix[one, other] = bitext.finds_own(*vectors).mean()
    return names, matrix
