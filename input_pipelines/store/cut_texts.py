"""Count truncated texts of a token store, and their tokens: for a person and for reports.

A store of whole texts leaves `cut_texts.json` in its stage's folder, next to report.json:

    kind, length      of the store
    texts, cut        how many there are, and how many of them are longer than `length`
    share             cut / texts
    tokens            of the cut texts, what was cut off: {"median", "percentile_95", "all"}
    share_of_tokens   of all texts, how much of their text was cut off
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from input_pipelines.store.token_store import TokenStore

FILE = "cut_texts.json"
MANY = 0.2  # share of cut passages from which on a warning says what that means


@dataclasses.dataclass(frozen=True)
class LongTexts:
    """Texts of which a model may not have read all.

    Attributes:
      length: tokens of a text that it reads at most, specials included.
      ids: of the texts with so many tokens or more.
    """

    length: int
    ids: frozenset[str]


def long_texts(store: str) -> LongTexts:
    """Those of a token store; StoreError if it is damaged."""
    opened = TokenStore.open(store)
    length = int(opened.manifest["max_length"])
    return LongTexts(
        length, frozenset(opened.ids[row] for row in np.flatnonzero(opened.lengths >= length))
    )


@dataclasses.dataclass(frozen=True)
class CutTexts:
    """See the module.

    Attributes:
      kind, length: of the store; tokens, specials included.
      texts: how many there are.
      kept: tokens in the store.
      cut_off: tokens that each of the cut texts lost.
    """

    kind: str
    length: int
    texts: int
    kept: int
    cut_off: Sequence[int]

    @property
    def share(self) -> float:
        """Of the texts, those that were cut."""
        return len(self.cut_off) / self.texts

    def as_dict(self) -> Mapping[str, object]:
        """For JSON."""
        median, late = self._percentiles()
        lost = sum(self.cut_off)
        return {
            "kind": self.kind,
            "length": self.length,
            "texts": self.texts,
            "cut": len(self.cut_off),
            "share": self.share,
            "tokens": {"median": median, "percentile_95": late, "all": lost},
            "share_of_tokens": lost / (lost + self.kept),
        }

    def text(self) -> str:
        """For a terminal; of many cut passages, also what that means and what to do."""
        cut, name = len(self.cut_off), f"{self.texts} texts (kind {self.kind})"
        if not cut:
            return f"none of {name} is longer than {self.length} tokens"
        median, late = self._percentiles()
        line = (
            f"{cut} of {name}, {self.share:.1%}, are longer than {self.length} tokens and were "
            f"cut: in the median {median:.0f} tokens were cut off, 95 % lost {late:.0f} or fewer"
        )
        if self.kind != "passage" or self.share <= MANY:
            return line
        return (
            f"{line}\nwarning: what was cut off is in no vector: a query that it answers finds "
            "the passage by its beginning or not at all. Raise the length (PASSAGE_LENGTH of a "
            "recipe), at most to the encoder's positions, or divide long passages before "
            "(gin_configs/runs/collections/blocks_as_passages.gin)"
        )

    def _percentiles(self) -> tuple[float, float]:
        if not self.cut_off:
            return 0.0, 0.0
        median, late = np.percentile(np.asarray(self.cut_off), (50, 95)).tolist()
        return median, late
