"""Sets of translations that are asked for each other, language by language."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from t5x_style.evaluation import bitext
from t5x_style.partitioning import Partitioner
from t5x_style.retrieval import encoding

DIRECTIONS = ("to_target", "to_source")
Accuracies = dict[str, dict[str, np.ndarray]]  # pair of languages -> direction -> [n] bool


class Side(encoding.EncodeSource, Protocol):
    """One side of translations."""

    def texts(self) -> list[str]:
        """What stands there, in the order of the ids."""
        ...


@dataclasses.dataclass(frozen=True)
class TranslationSet:
    """Translations of some pairs of languages.

    Attributes:
      name: in tables.
      sources, targets: both sides, ids equal and in the same order, "en_de/..."; those of a pair
        of languages stand together.
    """

    name: str
    sources: Side
    targets: Side

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
        alone = [pair for pair, rows in self.pairs() if rows.stop - rows.start < 2]
        if alone:
            raise ValueError(
                f"{self.name}: expected at least two translations of each pair of languages, since "
                f"one is always found, found one of {alone}"
            )

    def pairs(self) -> Iterator[tuple[str, slice]]:
        """Each pair of languages and where its translations are."""
        names = [name.partition("/")[0] for name in self.sources.ids]
        start = 0
        for row in range(1, len(names) + 1):
            if row == len(names) or names[row] != names[start]:
                yield names[start], slice(start, row)
                start = row

    def found(self, sources: np.ndarray, targets: np.ndarray) -> Accuracies:
        """Whether each sentence's translation is the nearest among those of its languages.

        Args:
          sources, targets: [N, D], in the order of the ids.
        """
        return {
            pair: {
                "to_target": bitext.finds_own(sources[rows], targets[rows]),
                "to_source": bitext.finds_own(targets[rows], sources[rows]),
            }
            for pair, rows in self.pairs()
        }


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


class TranslationEvaluator:
    """Accuracy of a set in the middle of training, with the parameters of the moment."""

    metrics = ("accuracy", "accuracy_to_target", "accuracy_to_source")

    def __init__(self, of: TranslationSet, partitioner: Partitioner):
        """Args:
        of: the set, of development; its name stands before the metrics'.
        partitioner: of the training, to spread batches over its mesh.
        """
        self.name = of.name
        self._set, self._partitioner = of, partitioner

    def evaluate(self, functions: Mapping[str, Callable[..., Any]], step: int) -> dict[str, float]:
        """`metrics`, means over pairs of languages.

        Args:
          functions: `embed_query` and `embed_passage`, jitted, with parameters.
          step: shown beside the progress bar.
        """
        sides = ((self._set.sources, "embed_query"), (self._set.targets, "embed_passage"))
        vectors = [
            encoding.encode(
                functions[function], source, self._partitioner, f"step {step}: {function}"
            )
            for source, function in sides
        ]
        return means(self._set.found(*vectors))
