"""Pairs of texts with a class, read from files: JSON lines, and PAWS-X's tables."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence

from input_pipelines.sources import languages, text_sources
from input_pipelines.sources.text_sources import BadRecords, FieldError, Record, SourceError

LINE_FIELDS = ("id", "first", "second", "label")
TABLE_COLUMNS = ("id", "sentence1", "sentence2", "label")  # PAWS-X's and GLUE's


@dataclasses.dataclass(frozen=True)
class PairLines:
    """JSON lines {"id", "first", "second", "label"}, as a source.

    A record's title and text are the two texts, and its source is its class, as
    `classifier_batches.LabelledPairs` wants it.

    Attributes:
      path: of the file, perhaps gzipped.
      classes: names of what `label` may say; one that is a number in the file is meant, too.
      max_line_bytes: longer lines are malformed.
    """

    path: str
    classes: Sequence[str]
    max_line_bytes: int = 1_000_000

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records in order, reporting malformed ones to `bad`.

        Malformed is a line without one of the fields, with a text that is empty, with a label that
        is no class, or with an id that was there before.
        """
        unique = text_sources.UniqueIds()
        for number, line, row in text_sources.json_lines(self.path, self.max_line_bytes, bad):
            where = f"{self.path}:{number}"
            try:
                yield _record(row, LINE_FIELDS, self.classes, unique, (self.path, number))
            except FieldError as error:
                bad.add(where, error.reason, str(error), line)


@dataclasses.dataclass(frozen=True)
class PairTables:
    """Tables with a header and tab between columns, a file a language, as a source: PAWS-X.

    No quotes are interpreted, as in PAWS-X's own reading. Ids get their language: "de/17".

    Attributes:
      folder: of the files.
      name: of a file, with {language} in it: '{language}/test_2k.tsv'.
      languages: their codes, as files are named.
      classes: names of what the column `label` may say.
      columns: names of id, first text, second text and label in the header.
      max_line_bytes: longer lines are malformed.
    """

    folder: str
    name: str
    languages: Sequence[str]
    classes: Sequence[str]
    columns: Sequence[str] = TABLE_COLUMNS
    max_line_bytes: int = 1_000_000

    def __post_init__(self) -> None:
        if "{language}" not in self.name or len(self.columns) != len(TABLE_COLUMNS):
            raise ValueError(
                "PairTables: expected '{language}' in name, and four columns such as "
                f"{TABLE_COLUMNS}; found {self.name!r} and {self.columns!r}"
            )
        languages.require_once(self.languages, "PairTables.languages")

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """See `PairLines.records`; malformed is a line of more or fewer cells than the header, too.

        Raises:
          SourceError: a file is missing, or its header lacks a column.
          languages.LanguageError: a code that no language has.
        """
        for code in self.languages:
            language = languages.canonical(code)
            path = os.path.join(self.folder, self.name.format(language=code))
            unique = text_sources.UniqueIds()
            for record in self._of(path, unique, bad):
                yield dataclasses.replace(record, id=f"{language}/{record.id}")

    def _of(self, path: str, unique: text_sources.UniqueIds, bad: BadRecords) -> Iterator[Record]:
        lines = text_sources.lines(path, self.max_line_bytes, bad)
        header = next(lines, (0, ""))[1].split("\t")
        if missing := [name for name in self.columns if name not in header]:
            raise SourceError(
                f"{path}:1: expected a header with the columns {list(self.columns)}, tab between "
                f"them, found no {missing} in {header[:10]}. Name them in PairTables.columns."
            )
        for number, line in lines:
            if not line.strip():
                continue
            cells = line.split("\t")
            try:
                if len(cells) != len(header):
                    detail = f"expected {len(header)} cells, found {len(cells)}"
                    raise FieldError("columns", detail)
                row: dict[str, object] = dict(zip(header, cells, strict=True))
                yield _record(row, self.columns, self.classes, unique, (path, number))
            except FieldError as error:
                bad.add(f"{path}:{number}", error.reason, str(error), line)


def _record(
    row: Mapping[str, object],
    fields: Sequence[str],
    classes: Sequence[str],
    unique: text_sources.UniqueIds,
    at: tuple[str, int],
) -> Record:
    """Raises FieldError for what `PairLines.records` calls malformed."""
    name = text_sources.text_field(row, fields[0], is_id=True)
    texts = [text_sources.text_field(row, field).strip() for field in fields[1:3]]
    label = text_sources.text_field(row, fields[3], is_id=True)
    for field, text in zip(fields[1:3], texts, strict=True):
        if not text:
            raise FieldError("empty_side", f"field {field!r}: expected a text, found none")
    if label not in classes:
        detail = f"field {fields[3]!r}: expected one of {list(classes)}, found {label!r}"
        raise FieldError("unknown_label", detail)
    if before := unique.first(name, *at):
        raise FieldError("duplicate_id", f"id {name!r} was already given in {before}")
    return Record(name, texts[0], texts[1], label)
