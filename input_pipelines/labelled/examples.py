"""Common form of all layouts of labelled data: rows of a query with labelled passages."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, SupportsFloat

from input_pipelines.sources.text_sources import BadRecords, FieldError, SourceError, text_field

POSITIVE, NEGATIVE = 1.0, 0.0
UNDIVIDED = ""  # the split of data that is in one file
NAMES = {  # what files, folders and qrels are called -> split
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "validation", "valid", "val", "eval"), "dev"),
    "test": "test",
}

Cells = Mapping[str, object]  # column or field -> value of one row


class LayoutError(SourceError):
    """Data of an unknown layout, or data that contradicts its layout."""


@dataclass(frozen=True)
class Text:
    """A query or a passage.

    Attributes:
      text: in rows without white space around it; "" for a passage that is named by its id alone.
      id: as the data gives it, "" where it gives none.
      title: of a passage, "" where there is none.
    """

    text: str
    id: str = ""
    title: str = ""


@dataclass(frozen=True)
class Judged:
    """A passage that is written in a row.

    Attributes:
      passage: its text or id.
      label: POSITIVE, NEGATIVE, or the score of a scored pair.
      teacher: the score of a teacher, if there is one.
    """

    passage: Text
    label: float
    teacher: float | None = None


@dataclass(frozen=True)
class Row:
    """A query and the labels of some passages, at one place ("file:line") of a split."""

    split: str
    query: Text
    judged: tuple[Judged, ...]
    where: str


class RowLayout(Protocol):
    """Parser of a file's rows. One class for each layout, with fields for its columns."""

    @property
    def name(self) -> str:
        """Of the layout, for reports."""
        ...

    @property
    def guessed(self) -> bool:
        """Whether only the order of columns says which is the query."""
        ...

    @property
    def roles(self) -> Mapping[str, str]:
        """Role (query, positive, ...) -> the columns that have it."""
        ...

    def read(self, cells: Cells) -> tuple[Text, tuple[Judged, ...]]:
        """The query and its passages.

        Raises:
          FieldError: something is missing, empty or of another type.
        """
        ...


class LabelledSource(Protocol):
    """Labelled data in a fixed order; both methods give the same again when called again."""

    @property
    def layout(self) -> str:
        """Name of the layout."""
        ...

    @property
    def guessed(self) -> bool:
        """See `RowLayout`."""
        ...

    @property
    def roles(self) -> Mapping[str, str]:
        """Role -> where it is: columns of rows, or files."""
        ...

    def passages(self, bad: BadRecords) -> Iterator[tuple[Text, str]]:
        """Yields (passage, "file:line") of a corpus, whether or not a row names them."""
        ...

    def rows(self, bad: BadRecords) -> Iterator[Row]:
        """Yields the rows, and reports each malformed one to `bad`."""
        ...


def filled(cells: Cells, name: str) -> str:
    """A field that must hold a text, without white space around it.

    Raises:
      FieldError: it is missing, empty or no string.
    """
    if name in cells and cells[name] is None:
        raise FieldError("empty_field", f"field {name!r}: expected a text, found none")
    text = text_field(cells, name).strip()
    if not text:
        raise FieldError("empty_field", f"field {name!r}: expected a text, found an empty one")
    return text


def optional_id(cells: Cells, *names: str) -> str:
    """The first of these fields that is there, as an id; "" where none is."""
    for name in names:
        if cells.get(name) not in (None, ""):
            return text_field(cells, name, is_id=True)
    return ""


def number(value: object, name: str) -> float:
    """A score or label.

    Raises:
      FieldError: it is no finite number.
    """
    try:
        found = float(value) if isinstance(value, str | SupportsFloat) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        detail = f"field {name!r}: expected a finite number, found {value!r:.60}"
        raise FieldError("not_a_number", detail)
    return found


def listed(cells: Cells, name: str, count: int | None = None) -> list[object]:
    """A field that holds a list, empty where the field is missing or null.

    Raises:
      FieldError: it holds something else, or another number of values than `count`.
    """
    value = cells.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        detail = f"field {name!r}: expected a list, found {type(value).__name__} {value!r:.60}"
        raise FieldError("wrong_type", detail)
    if count is not None and len(value) != count:
        detail = f"field {name!r}: expected {count} values, one for each text, found {len(value)}"
        raise FieldError("wrong_length", detail)
    return value
