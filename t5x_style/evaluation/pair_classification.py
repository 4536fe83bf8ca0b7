"""Accuracy and F1 of a classifier of pairs of texts, by language too."""

import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

import jax
import numpy as np
from sklearn import metrics

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.objective import CLASSIFY, ModelFunction, function_of
from t5x_style.interfaces.texts import Batched
from t5x_style.retrieval import encoding


class LabelledPairs(Batched, Protocol):
    """Pairs with known classes.

    Attributes:
      classes: names of the classes.
      labels: int [N], the number of each pair's class, in the order of `ids`.
    """

    classes: tuple[str, ...]

    @property
    def labels(self) -> np.ndarray:
        """See above."""
        ...


class PairClassificationEvaluator:
    """Predict the class of every pair: the one with the largest logit.

    Attributes:
      metrics: names of what is measured: `accuracy`; `F1_CLASS` of each class of which there are
        pairs, and `F1`, their mean; where all ids begin with languages, "de/17", and there are
        several, `accuracy_LANGUAGE` and `F1_LANGUAGE`, too.
    """

    def __init__(self, name: str, pairs: LabelledPairs, partitioner: Partitioner | None = None):
        """Args:
        name: prefix of the metrics' names.
        pairs: what is measured on. A class without a pair is reported, and has no F1.
        partitioner: of the training, to spread batches over its mesh.
        """
        self.name = name
        self._pairs, self._partitioner = pairs, partitioner
        self._languages = _languages(pairs.ids)
        counts = np.bincount(pairs.labels, minlength=len(pairs.classes))
        absent = [one for one, count in zip(pairs.classes, counts, strict=True) if not count]
        if absent and jax.process_index() == 0:
            print(
                f"{name}: of {len(pairs.ids)} pairs none is of class {', '.join(absent)}: it has "
                "no F1, and does not count in the mean",
                file=sys.stderr,
            )
        self.metrics = tuple(self._measure(pairs.labels))

    @staticmethod
    def measures(name: str) -> tuple[str, Sequence[str]]:
        """See `hooks.Evaluator`."""
        return name, ("accuracy", "F1", "accuracy_*", "F1_*")

    def evaluate(self, functions: Mapping[str, ModelFunction], step: int) -> dict[str, float]:
        """`metrics`.

        Args:
          functions: one of kind `classify`, jitted, with parameters: a token group to logits
            [B, S, C].
          step: shown next to the progress bar.

        Raises:
          ValueError: the objective classifies nothing, or as another number of classes.
        """
        classify = function_of(functions, CLASSIFY, f"{self.name}: a classifier of pairs")
        where = f"step {step}: classify"
        logits = encoding.encode(classify, self._pairs, self._partitioner, where)
        if logits.shape[1] != len(self._pairs.classes):
            raise ValueError(
                f"{self.name}: expected logits of the classes {self._pairs.classes}, found "
                f"{logits.shape[1]} for each pair"
            )
        return self._measure(logits.argmax(axis=1))

    def _measure(self, predicted: np.ndarray) -> dict[str, float]:
        """The metrics of predictions, int [N]."""
        labels = np.asarray(self._pairs.labels)
        found = {"accuracy": float(np.mean(predicted == labels))}
        class_f1 = _f1(labels, predicted)
        found |= {f"F1_{self._pairs.classes[number]}": value for number, value in class_f1.items()}
        found["F1"] = float(np.mean(list(class_f1.values())))
        for language, at in self._languages.items():
            found[f"accuracy_{language}"] = float(np.mean(predicted[at] == labels[at]))
            found[f"F1_{language}"] = float(np.mean(list(_f1(labels[at], predicted[at]).values())))
        return found


def _f1(labels: np.ndarray, predicted: np.ndarray) -> dict[int, float]:
    """Number of a class -> its F1, of those that occur among the labels."""
    there = np.unique(labels)
    values = metrics.f1_score(labels, predicted, labels=there, average=None, zero_division=0.0)
    return dict(zip(there.tolist(), np.asarray(values, np.float64).tolist(), strict=True))


def _languages(ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Language -> row numbers of its pairs, if ids name several languages."""
    parts = [name.partition("/") for name in ids]
    languages = np.array([language if slash else "" for language, slash, _ in parts])
    names = sorted(set(languages.tolist()))
    if len(names) < 2 or "" in names:
        return {}
    return {name: np.flatnonzero(languages == name) for name in names}
