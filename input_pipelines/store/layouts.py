"""Layouts: turn records into rows of a token store; by default one text a row."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import numpy as np

from input_pipelines.sources.text_sources import Record
from input_pipelines.store.store_writer import StoreRecord
from input_pipelines.tokenizers import tokenization

TEXT = "text"
TITLE_AND_BODY = "title_and_body"


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows that a layout makes of some records.

    Attributes:
      records: the rows.
      truncated: how many of them lack the end of their text.
      cut_off: of each of these, how many tokens it lacks; None where a row is not a whole text,
        or the layout does not count.
      tables: further arrays by name, whatever the layout knows of its rows: int [n] or [n, c].
    """

    records: Sequence[StoreRecord]
    truncated: int
    tables: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    cut_off: Sequence[int] | None = None


class Layout(Protocol):
    """A frozen, small object that is sent to every worker; its repr identifies its rule."""

    @property
    def name(self) -> str:
        """Layout of titles in rows, which a model's contract names: TEXT or TITLE_AND_BODY."""
        ...

    @property
    def numbers(self) -> Mapping[str, str]:
        """Unit of the first column of each table: 'rows', or the lines of another table.

        Tables that are not named here are per row.
        """
        ...

    def fitted(self, titles: Sequence[str] | None, folder: str) -> "Layout":
        """The layout after it has seen all titles, where `wants_titles`; may write to `folder`."""
        ...

    @property
    def wants_titles(self) -> bool:
        """Whether `fitted` needs the titles of the whole source, which is then read twice."""
        ...

    def rows(
        self,
        records: Sequence[Record],
        tokenizer: tokenization.Tokenizer,
        length: int,
        prefix: str,
    ) -> Rows:
        """Rows of at most `length` tokens, specials included, in the order of the records."""
        ...


@dataclasses.dataclass(frozen=True)
class Plain:
    """Base of a `Layout` that reads one record at a time and writes no tables."""

    @property
    def numbers(self) -> Mapping[str, str]:
        """See `Layout`."""
        return {}

    @property
    def wants_titles(self) -> bool:
        """See `Layout`."""
        return False

    def fitted(self, titles: Sequence[str] | None, folder: str) -> Self:
        """See `Layout`."""
        return self


@dataclasses.dataclass(frozen=True)
class WholeTexts(Plain):
    """A record a row: title, a space, text; cut at the length."""

    @property
    def name(self) -> str:
        """See `Layout`."""
        return TEXT

    def rows(
        self,
        records: Sequence[Record],
        tokenizer: tokenization.Tokenizer,
        length: int,
        prefix: str,
    ) -> Rows:
        """See `Layout`."""
        texts = [prefix + tokenization.join_title(r.title, r.text) for r in records]
        encoded = tokenizer.encode_batch(texts, length)
        rows = [
            StoreRecord(r.id, r.title, r.text, r.source, e.tokens, e.word_starts)
            for r, e in zip(records, encoded, strict=True)
        ]
        cut_off = [e.cut_off for e in encoded if e.truncated]
        return Rows(rows, len(cut_off), cut_off=cut_off)


WHOLE_TEXTS = WholeTexts()


def joined(
    parts: Sequence[Mapping[str, np.ndarray]], rows: Sequence[int], layout: Layout
) -> dict[str, np.ndarray]:
    """The tables of consecutive pieces as one each, their first columns counted on.

    Args:
      parts: of each piece, in order.
      rows: of each piece.
      layout: says what first columns count.
    """
    names = list(parts[0]) if parts else []
    sizes = {"rows": list(rows)} | {name: [len(part[name]) for part in parts] for name in names}
    found = {}
    for name in names:
        counted = layout.numbers.get(name)
        pieces = []
        before = 0
        for number, part in enumerate(parts):
            piece = part[name].copy()
            if counted is not None:
                piece[:, 0] += before
                before += sizes[counted][number]
            pieces.append(piece)
        found[name] = np.concatenate(pieces)
    return found


def require_no_prefix(layout: Layout, prefix: str) -> None:
    """Of layouts whose models know of none; raises ValueError where there is one."""
    if prefix:
        raise ValueError(
            f"{type(layout).__name__}: expected no prefix, found {prefix!r}: models of such rows "
            "put none before what they are asked. Leave prepare.prepare.prefix empty."
        )
