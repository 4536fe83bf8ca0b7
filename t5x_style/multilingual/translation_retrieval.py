"""Translation retrieval on sets of translations, language by language: Tatoeba, NTREX, UN."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.objective import ModelFunction, embedder
from t5x_style.interfaces.representation import PASSAGE, QUERY, function_name
from t5x_style.interfaces.texts import Texts
from t5x_style.multilingual import margin_scoring
from t5x_style.multilingual.margin_scoring import Vectors
from t5x_style.multilingual.sentence_embedders import RowSubset, SentenceSystem
from t5x_style.retrieval import encoding

DIRECTIONS = ("to_target", "to_source")
Accuracies = dict[str, dict[str, np.ndarray]]  # pair of languages -> direction -> [n] bool


@dataclasses.dataclass(frozen=True)
class TranslationSet:
    """Translations of some pairs of languages.

    Attributes:
      name: in tables.
      sources, targets: both sides, ids equal and in the same order, "en_de/..."; those of a pair
        of languages are adjacent.
    """

    name: str
    sources: Texts
    targets: Texts

    def __post_init__(self) -> None:
        if list(self.sources.ids) != list(self.targets.ids):
            raise ValueError(
                f"{self.name}: expected sources and targets of the same translations, found "
                f"{len(self.sources.ids)} and {len(self.targets.ids)} that differ"
            )
        names = [pair for pair, _ in self.pairs()]
        if len(set(names)) != len(names):
            raise ValueError(
                f"{self.name}: expected the translations of a pair of languages together, found "
                f"several runs of one among {sorted(set(names))}"
            )
        alone = [pair for pair, rows in self.pairs() if len(rows) < 2]
        if alone:
            raise ValueError(
                f"{self.name}: expected at least two translations of each pair of languages, since "
                f"one is always found, found one of {alone}"
            )

    def pairs(self) -> Iterator[tuple[str, np.ndarray]]:
        """Each pair of languages and the rows of its translations."""
        names = [name.partition("/")[0] for name in self.sources.ids]
        start = 0
        for row in range(1, len(names) + 1):
            if row == len(names) or names[row] != names[start]:
                yield names[start], np.arange(start, row)
                start = row

    def vectors(self, system: SentenceSystem) -> Iterator[tuple[str, Vectors, Vectors]]:
        """Each pair of languages with the vectors of its sources and targets."""
        for pair, rows in self.pairs():
            yield (
                pair,
                *system.vectors(RowSubset(self.sources, rows), RowSubset(self.targets, rows)),
            )

    def documents(self, rows: np.ndarray) -> np.ndarray:
        """[n] int: the document of each of these rows, counted from 0: ids up to their last '/'."""
        names = [self.sources.ids[row].rpartition("/")[0] for row in rows.tolist()]
        return np.unique(names, return_inverse=True)[1]


def both_ways(sources: Vectors, targets: Vectors) -> dict[str, np.ndarray]:
    """Direction -> whether each sentence's translation is the nearest, [n] bool."""
    return dict(zip(DIRECTIONS, margin_scoring.find_each_other(sources, targets), strict=True))


def means(found: Accuracies) -> dict[str, float]:
    """Accuracy of each direction and of both, means over pairs of languages."""
    by_direction = {
        direction: float(np.mean([one[direction].mean() for one in found.values()]))
        for direction in DIRECTIONS
    }
    return {
        "accuracy": float(np.mean(list(by_direction.values()))),
        **{f"accuracy_{direction}": value for direction, value in by_direction.items()},
    }


@dataclasses.dataclass(frozen=True)
class FindTranslations:
    """Accuracy of each sentence's translation as the nearest among those of its languages.

    Attributes:
      translations: the set.
      pivot: the language that every pair has.
      documents: whether documents are asked for, too, as UN's are: means of their sentences, which
        are those whose ids are equal up to the last '/'.
    """

    translations: TranslationSet
    pivot: str
    documents: bool = False

    def __post_init__(self) -> None:
        for pair, _ in self.translations.pairs():
            if self.pivot not in pair.split("_"):
                raise ValueError(
                    f"{self.name}: expected pairs of languages with {self.pivot!r}, found {pair!r}"
                )

    @property
    def name(self) -> str:
        """As `Task.name`."""
        return self.translations.name

    def facts(self) -> dict[str, Any]:
        """As `Task.facts`."""
        return {"translations": len(self.translations.sources.ids)}

    def measure(self, system: SentenceSystem) -> dict[str, dict[str, float]]:
        """As `Task.measure`, by the other language of each pair."""
        rows = dict(self.translations.pairs())
        values = {}
        for pair, sources, targets in self.translations.vectors(system):
            first, _, second = pair.partition("_")
            values[second if first == self.pivot else first] = {
                **self._values(first, both_ways(sources, targets)),
                **(self._of_documents(rows[pair], sources, targets) if self.documents else {}),
            }
        return values

    def _values(self, first: str, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Of both ways, and of each as seen from the pivot."""
        target, source = (float(found[direction].mean()) for direction in DIRECTIONS)
        from_pivot, to_pivot = (target, source) if first == self.pivot else (source, target)
        return {
            "accuracy": (target + source) / 2,
            "accuracy_to_pivot": to_pivot,
            "accuracy_from_pivot": from_pivot,
        }

    def _of_documents(
        self, rows: np.ndarray, sources: Vectors, targets: Vectors
    ) -> dict[str, float]:
        document = self.translations.documents(rows)
        if document.max() == 0:
            raise ValueError(f"{self.name}: expected sentences of two documents or more, found one")
        found = both_ways(
            *(margin_scoring.documents(side, document) for side in (sources, targets))
        )
        return {"document_accuracy": float(np.mean([one.mean() for one in found.values()]))}

    def between(self, system: SentenceSystem) -> tuple[list[str], np.ndarray]:
        """As `Pictured.between`, of texts that exist in many languages.

        Sentences of two languages belong together if their ids are equal after the language.
        NaN on the diagonal, and where two languages share fewer than two sentences.
        """
        ids = self.translations.sources.ids
        both = system.vectors(
            RowSubset.whole(self.translations.sources), RowSubset.whole(self.translations.targets)
        )
        said = np.unique([name.partition("/")[2] for name in ids], return_inverse=True)[1]
        texts: dict[str, list[tuple[np.ndarray, Vectors]]] = {}  # language -> what is said, vectors
        for pair, rows in self.translations.pairs():
            for language, side in zip(pair.split("_"), both, strict=True):
                texts.setdefault(language, []).append((said[rows], side[rows]))
        names = sorted(texts)
        known = [_each_once(texts[name]) for name in names]
        matrix = np.full((len(names), len(names)), np.nan)
        for one, other in itertools.combinations(range(len(names)), 2):
            (keys, left), (other_keys, right) = known[one], known[other]
            shared, at, other_at = np.intersect1d(keys, other_keys, True, return_indices=True)
            if len(shared) > 1:
                found = both_ways(left[at], right[other_at])
                matrix[one, other], matrix[other, one] = (found[way].mean() for way in DIRECTIONS)
        return names, matrix


def _each_once(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """What is said, ascending and each once, and the vectors of where it is said first."""
    said, at = np.unique(np.concatenate([part[0] for part in parts]), return_index=True)
    return said, np.concatenate([part[1] for part in parts])[at]


class TranslationEvaluator:
    """Accuracy on a set during training, with the current parameters."""

    metrics = ("accuracy", "accuracy_to_target", "accuracy_to_source")

    def __init__(self, translations: TranslationSet, partitioner: Partitioner):
        """Args:
        translations: the set, of development; its name is the prefix of the metrics' names.
        partitioner: of the training, to spread batches over its mesh.
        """
        self.name = translations.name
        self._set, self._partitioner = translations, partitioner

    @staticmethod
    def measures(translations: TranslationSet) -> tuple[str, Sequence[str]]:
        """See `hooks.Evaluator`."""
        return translations.name, TranslationEvaluator.metrics

    def evaluate(self, functions: Mapping[str, ModelFunction], step: int) -> dict[str, float]:
        """`metrics`, means over pairs of languages.

        Args:
          functions: those that embed queries and passages, jitted, with parameters.
          step: shown next to the progress bar.
        """
        sides = ((self._set.sources, QUERY), (self._set.targets, PASSAGE))
        sources, targets = (
            encoding.encode(
                *(embedder(functions, side), source, self._partitioner),
                f"step {step}: {function_name(side)}",
            )
            for source, side in sides
        )
        found = {pair: both_ways(sources[at], targets[at]) for pair, at in self._set.pairs()}
        return means(found)
