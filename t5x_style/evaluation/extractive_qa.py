"""Answers as spans of the passage that comes with a question: exact match and F1, by set."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.evaluation import answer_metrics
from t5x_style.interfaces.answer_key import AnswerKey
from t5x_style.interfaces.objective import ANSWER, ModelFunction, function_of
from t5x_style.interfaces.texts import Batched
from t5x_style.retrieval import answer_reader, encoding


class Windows(Batched, AnswerKey, Protocol):
    """Questions with their passages in windows, and the right answers.

    Attributes:
      question_of: int [windows], the place of each window's question among `questions()`.
    """

    question_of: np.ndarray

    def text(self, number: int, start: int, end: int) -> str:
        """The text of tokens start to end of window `number`; '' for none."""
        ...


class ExtractiveEvaluator:
    """Answers each question with the span that has the best score in all windows of its passage.

    Attributes:
      metrics: names of what is measured, in shares of the questions: `EM` and `F1`; where questions
        are of several sets, languages for instance, `EM_SET` and `F1_SET` and, over the sets'
        values, `EM_mean` and `F1_mean`.
    """

    def __init__(self, name: str, windows: Windows, partitioner: Partitioner | None = None):
        """Args:
        name: prefix of the metrics' names.
        windows: what is answered.
        partitioner: of the training, to spread batches over its mesh.
        """
        self.name = name
        self._windows, self._partitioner = windows, partitioner
        self._ids = list(windows.questions())
        self._sets = _sets(self._ids, windows.sets())
        parts = [*(f"_{one}" for one in self._sets), "_mean"] if self._sets else []
        self.metrics = tuple(f"{name}{part}" for name in ("EM", "F1") for part in ("", *parts))

    @staticmethod
    def measures(name: str) -> tuple[str, Sequence[str]]:
        """See `hooks.Evaluator`."""
        return name, ("EM", "F1", "EM_*", "F1_*")

    def evaluate(self, functions: Mapping[str, ModelFunction], step: int) -> dict[str, float]:
        """`metrics`.

        Args:
          functions: one of kind `answer`, jitted, with parameters: a token group to `start`,
            `end`, `score`, `log_probability`, [B, S] each.
          step: shown next to the progress bar.

        Raises:
          ValueError: the objective does not answer.
        """
        answers = self.answers(functions, step)
        scores = answer_metrics.score_answers(self._windows, answers, self._ids)
        found = {}
        for name, values in scores.items():
            found[name] = float(values.mean())
            if self._sets:
                by_set = {one: float(values[at].mean()) for one, at in self._sets.items()}
                found |= {f"{name}_{one}": value for one, value in by_set.items()}
                found[f"{name}_mean"] = float(np.mean(list(by_set.values())))
        return found

    def answers(self, functions: Mapping[str, ModelFunction], step: int) -> dict[str, str]:
        """Question id -> answer, a piece of its passage; '' where there is nothing to point at.

        Arguments and errors as of `evaluate`.
        """
        answer = function_of(functions, ANSWER, f"{self.name}: a model that answers questions")
        embed = answer_reader.as_vectors(answer)
        table = encoding.encode(embed, self._windows, self._partitioner, f"step {step}: answer")
        best: dict[int, int] = {}
        for number, owner in enumerate(self._windows.question_of.tolist()):
            if owner not in best or table[number, 2] > table[best[owner], 2]:
                best[owner] = number
        return {
            name: self._text(best[place], table[best[place]]) if place in best else ""
            for place, name in enumerate(self._ids)
        }

    def _text(self, number: int, row: np.ndarray) -> str:
        if row[2] <= answer_reader.NOTHING:
            return ""
        return self._windows.text(number, int(row[0]), int(row[1]))


def _sets(ids: list[str], sets: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Set -> places of its questions, where there are several and each question is of one."""
    names = sorted(set(sets.values()))
    if len(names) < 2 or len(sets) < len(ids):
        return {}
    return {name: np.flatnonzero([sets[one] == name for one in ids]) for name in names}
