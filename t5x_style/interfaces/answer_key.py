"""Interface of the right answers of questions."""

from collections.abc import Mapping
from typing import Protocol


class AnswerKey(Protocol):
    """Questions, and their right answers."""

    def questions(self) -> Mapping[str, str]:
        """Id -> text."""
        ...

    def sets(self) -> Mapping[str, str]:
        """Id -> name of the set that a question is of, of those that are of one."""
        ...

    def exact(self, question: str, prediction: str) -> bool:
        """Whether a prediction is an answer of a question, by its id."""
        ...

    def f1(self, question: str, prediction: str) -> float:
        """F1 of shared words with the most similar answer, 0 to 1."""
        ...

    def stands_in(self, question: str, text: str) -> bool:
        """Whether a text holds an answer."""
        ...
