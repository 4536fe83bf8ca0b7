"""Queries and passages out of which a re-ranker's texts are made."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from t5x_style.interfaces.texts import Batched


class JointTexts(Protocol):
    """Queries and passages out of which pairs are made.

    Attributes:
      query_length, passage_length: tokens at which texts are cut.
      query_prefix, passage_prefix: text that was put before each.
      passage_layout: how titles are put into passages, as in `Contract`.
      tokenizer_fingerprint: of the tokenizer that made the tokens.
      fingerprint: of all texts, where they are cut, and the shape of batches.
    """

    query_length: int
    passage_length: int
    query_prefix: str
    passage_prefix: str
    passage_layout: str
    tokenizer_fingerprint: str
    fingerprint: str

    def mined(self, negatives: str) -> Iterable[tuple[str, list[str], list[str]]]:
        """The ids of each query of a file of negatives, its positives and its negatives.

        Every line is checked before the first is given: its form, that its texts are here, and
        that the file was made from these. Raises ValueError where one does not fit.
        """
        ...

    def searched(self, negatives: str) -> Mapping[str, Mapping[str, float]]:
        """Query -> passage -> score of the search that mined it, for queries that have scores."""
        ...

    def pairs(self, query_ids: Sequence[str], passage_ids: Sequence[str]) -> Batched:
        """The pairs query_ids[n], passage_ids[n], in this order, as token groups."""
        ...
