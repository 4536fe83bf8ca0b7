"""Texts that are ready for a model: token groups in which each text occurs once."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from t5x_style.interfaces.objective import Group


class Batched(Protocol):
    """Texts as packed token groups, each text once; `example_id` is the place in `ids`."""

    @property
    def ids(self) -> Sequence[str]:
        """One for each text, in order."""
        ...

    def batches(self) -> Iterator[Group]:
        """Groups of one shape; free rows at the end are padding."""
        ...


class EncodeSource(Batched, Protocol):
    """Texts that can be embedded.

    Attributes:
      segment_length: tokens at which texts are cut.
      prefix: text that was put before each.
      layout: how titles are put into them, as in `Contract.passage_layout`.
      tokenizer_fingerprint: of the tokenizer that made the tokens.
      fingerprint: of the texts and of the shape of their batches.
      cls_every: tokens of a text from one [CLS] to the next; None: there is one [CLS].
    """

    cls_every: int | None

    @property
    def segment_length(self) -> int:
        """See above."""
        ...

    @property
    def prefix(self) -> str:
        """See above."""
        ...

    @property
    def layout(self) -> str:
        """See above."""
        ...

    @property
    def tokenizer_fingerprint(self) -> str:
        """See above."""
        ...

    @property
    def fingerprint(self) -> str:
        """See above."""
        ...

    def part(self, start: int, end: int) -> "EncodeSource":
        """The texts ids[start:end] as another source, in batches of the same shape."""
        ...


class Texts(EncodeSource, Protocol):
    """Sentences, as tokens and as text."""

    def texts(self) -> list[str]:
        """Return the texts in the order of the ids."""
        ...
