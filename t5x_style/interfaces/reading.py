"""Interface of a reader's input: questions with passages, each pair in one text."""

from collections.abc import Sequence
from typing import Protocol

from t5x_style.interfaces.texts import Batched


class JointPairs(Batched, Protocol):
    """Questions with passages as token groups, one a row, each once."""

    def characters(self, number: int, start: int, end: int) -> tuple[int, int] | None:
        """The range of characters of a passage that tokens start to end of its row cover."""
        ...


class Reading(Protocol):
    """Rule that turns questions and passages into a reader's texts.

    Attributes:
      query_length, passage_length: tokens at which they are cut.
      fingerprint: of the tokenizer.
    """

    query_length: int
    passage_length: int
    fingerprint: str

    def pairs(self, questions: Sequence[str], passages: Sequence[str]) -> JointPairs:
        """Texts of questions[n] with the body passages[n], in this order."""
        ...
