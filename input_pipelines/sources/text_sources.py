"""The interface of text sources, helpers to write one, and two sources: jsonl, plain lines.

Whatever reads text takes a `TextSource`: `prepare.prepare` with any layout,
`tokenization.train_tokenizer`, `write_beir.write_collection`, `mixtures`. A new source is a new
file next to this one with a class that has `records`; no other file lists the sources. Two
interfaces have more than texts: a `documents.DocumentSource` is a `TextSource`, too, and
`bitext.Sides` reads a `bitext.Bitext` as one. `Judgements` have no texts.

The functions here read a line of a file at a time: files may be gzipped, and a line is never read
past `max_line_bytes`.
"""

import collections
import dataclasses
import gzip
import hashlib
import json
import logging
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, Protocol

from input_pipelines.sources import places

_log = logging.getLogger(__name__)

QUOTE = 80  # characters of a bad line that are shown
EXAMPLES = 20  # bad records that are kept for the report


class SourceError(ValueError):
    """Input that cannot be read, or more malformed records than the user allows."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One passage, query or line; title and source may be empty.

    The source says where in a file it is, without the file's folder (`places.place`): the same
    files give the same records wherever they are.
    """

    id: str
    title: str
    text: str
    source: str


class BadRecords:
    """Counts malformed records and stops past a limit.

    Attributes:
      counts: reason -> how many were skipped.
      examples: the first messages, each "file:line: reason: quote".
    """

    def __init__(self, limit: int, job: str = "", quiet: bool = False):
        """
        Args:
          limit: the most that are skipped.
          job: whose parameter `max_bad_records` the limit is, as gin files name it, such as
            'prepare.prepare'; for the message.
          quiet: whether they are not reported.

        Raises:
          ValueError: a limit below 0.
        """
        if limit < 0:
            raise ValueError(f"max_bad_records: expected 0 or more, found {limit}")
        self._limit, self._job = limit, job
        self._quiet = quiet
        self.counts: collections.Counter[str] = collections.Counter()
        self.examples: list[str] = []
        self._places: set[str] = set()

    @classmethod
    def counted_before(cls) -> "BadRecords":
        """For reading a file a second time: skips in silence what the first reading reported."""
        return cls(limit=sys.maxsize, quiet=True)

    def add(self, where: str, reason: str, detail: str, quote: str) -> None:
        """Counts one, once however often its file is read.

        `reason` is the class that is counted, `detail` says what is wrong here.

        Raises:
          SourceError: this is one more than the limit.
        """
        if where in self._places:
            return
        self._places.add(where)
        self.counts[reason] += 1
        shown = quote if len(quote) <= QUOTE else f"{quote[:QUOTE]}… ({len(quote)} characters)"
        message = f"{where}: {detail}: {shown!r}"
        if len(self.examples) < EXAMPLES:
            self.examples.append(message)
            if not self._quiet:
                _log.warning("skipped %s", message)
        if self.counts.total() > self._limit:
            raise SourceError(
                f"{self.counts.total()} malformed records, and max_bad_records={self._limit}. "
                f"The last: {message}. By reason: {dict(self.counts)}. "
                "Correct the file (the original, if a stage copied it), or raise max_bad_records "
                f"to skip this many{self._flag()}"
            )

    def _flag(self) -> str:
        """Flag that raises the limit, where the job is known."""
        return f": --gin.{self._job}.max_bad_records=NUMBER" if self._job else ""


class TextSource(Protocol):
    """Texts in a fixed order: the interface of all sources of text.

    It is made by gin of paths and names. It has no fingerprint: what it reads is in
    `stage.run.inputs`, whose content identifies a stage's result together with these parameters.
    """

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records, and reports each malformed one to `bad` with its file and line.

        Every call yields the same records in the same order, wherever the files are: a tokenizer
        reads a source three times. Ids are unique, not empty and without white space. Malformed
        records are skipped; `bad` stops the reading when there are too many.

        Raises:
          SourceError: something cannot be read at all, or `bad` has reached its limit.
        """
        ...


class Judgements(Protocol):
    """Judgements: the passages that answer each query, in a fixed order."""

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields (query, passage, relevance, "file:line"), reporting malformed ones to `bad`."""
        ...


class UniqueIds:
    """Refuses an id that was seen before, naming both places.

    Holds 8 bytes of hash and two small integers an id, not the ids.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}
        self._files: dict[str, int] = {}

    def first(self, id_: str, file: str, line: int) -> str:
        """First place of an id ("file:line"), or an empty string for a new one."""
        key = _hash(id_)
        number = self._files.setdefault(file, len(self._files))
        before = self._seen.setdefault(key, (number, line))
        if before == (number, line):
            return ""
        return f"{list(self._files)[before[0]]}:{before[1]}"

    def knows(self, id_: str) -> bool:
        """Whether an id was seen."""
        return _hash(id_) in self._seen


def _hash(id_: str) -> int:
    return int.from_bytes(hashlib.blake2b(id_.encode(), digest_size=8).digest(), "big")


def files_of(path: str) -> list[str]:
    """The files of a folder and of those in it, in the order of their names; a file is its own.

    Raises:
      SourceError: a folder without files.
    """
    if not os.path.isdir(path):
        return [path]
    found = sorted(os.path.join(at, name) for at, _, names in os.walk(path) for name in names)
    if not found:
        raise SourceError(f"{path}: the folder holds no files")
    return found


def open_binary(path: str) -> BinaryIO:
    """Opens a file for reading bytes, through gzip where the name ends in .gz.

    Raises:
      SourceError: there is no such file, or it is a folder.
    """
    if not os.path.isfile(path):
        what = "is a folder" if os.path.isdir(path) else "does not exist"
        raise SourceError(f"{path} {what}; expected a text file (or one ending in .gz)")
    return gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")  # type: ignore[return-value]


def lines(path: str, max_line_bytes: int, bad: BadRecords) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its end) of each line that is UTF-8 and short enough.

    Raises:
      SourceError: the file is missing or its gzip data is damaged; names the last good line.
    """
    number = 0
    with open_binary(path) as f:
        try:
            while raw := f.readline(max_line_bytes + 1):
                number += 1
                where = f"{path}:{number}"
                size = len(raw)
                if size > max_line_bytes and not raw.endswith(b"\n"):
                    while rest := f.readline(max_line_bytes):
                        size += len(rest)
                        if rest.endswith(b"\n"):
                            break
                    detail = f"line of {size} bytes, more than max_line_bytes={max_line_bytes}"
                    bad.add(where, "line_too_long", detail, raw[:200].decode("utf-8", "replace"))
                    continue
                try:
                    yield number, raw.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError as e:
                    detail = f"not UTF-8 (byte 0x{raw[e.start]:02x} at byte {e.start})"
                    bad.add(where, "not_utf8", detail, raw[:200].decode("utf-8", "replace"))
        except (EOFError, zlib.error, gzip.BadGzipFile) as e:
            raise SourceError(
                f"{path}: the gzip data is damaged or cut short after line {number} ({e}); "
                "fetch or write the file again"
            ) from e


def json_lines(
    path: str, max_line_bytes: int, bad: BadRecords
) -> Iterator[tuple[int, str, dict[str, object]]]:
    """(line number, line, object) of each line that is a JSON object, blank lines aside."""
    for number, line in lines(path, max_line_bytes, bad):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as e:
            bad.add(f"{path}:{number}", "not_json", f"not JSON ({e})", line)
            continue
        if not isinstance(value, dict):
            detail = f"expected a JSON object, found {type(value).__name__}"
            bad.add(f"{path}:{number}", "not_an_object", detail, line)
            continue
        yield number, line, value


class FieldError(Exception):
    """A field that is missing or wrong; `reason` is the class that is counted."""

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason = reason


def text_field(row: Mapping[str, object], name: str, is_id: bool = False) -> str:
    """A field as text; an id may be a whole number and may hold no white space.

    Raises:
      FieldError: the field is missing, of another type, or no text that can be written.
    """
    if name not in row:
        raise FieldError("missing_field", f"no field {name!r} (there are {sorted(row)[:10]})")
    value = row[name]
    if is_id and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        expected = "a string or a whole number" if is_id else "a string"
        found = type(value).__name__
        raise FieldError("wrong_type", f"field {name!r}: expected {expected}, found {found}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise FieldError("not_utf8", f"field {name!r} holds half a surrogate pair") from None
    if is_id and (not value or value.split() != [value]):
        raise FieldError("bad_id", f"field {name!r}: an id is not empty and has no white space")
    return value


@dataclasses.dataclass(frozen=True)
class Jsonl:
    """JSON lines with a mapping of fields.

    paths: files, read in this order. id_fields: joined by "/" (a name may be used in several
    files, a joined id not). title_field: "" for no titles. text_field: the body. source_field: ""
    for the file's name and line. max_line_bytes: a longer line is not parsed.

    SQuAD's paragraphs: id_fields=("title", "para"), title_field="title", text_field="context".
    """

    paths: Sequence[str]
    id_fields: Sequence[str]
    title_field: str
    text_field: str
    source_field: str
    max_line_bytes: int

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records in file order, reporting malformed ones to `bad`."""
        unique = UniqueIds()
        for path in self.paths:
            for number, line, row in json_lines(path, self.max_line_bytes, bad):
                where = f"{path}:{number}"
                try:
                    record = self._record(row, places.place(path, where))
                except FieldError as e:
                    bad.add(where, e.reason, str(e), line)
                    continue
                before = unique.first(record.id, path, number)
                if before:
                    detail = f"id {record.id!r} was already given in {before}"
                    bad.add(where, "duplicate_id", detail, line)
                    continue
                yield record

    def _record(self, row: Mapping[str, object], place: str) -> Record:
        return Record(
            id="/".join(text_field(row, name, is_id=True) for name in self.id_fields),
            title=text_field(row, self.title_field) if self.title_field else "",
            text=text_field(row, self.text_field),
            source=text_field(row, self.source_field) if self.source_field else place,
        )


@dataclasses.dataclass(frozen=True)
class Lines:
    """Plain text, one passage a line; blank lines are passed over. The id is file:line.

    Files of one name in several folders are numbered.
    """

    paths: Sequence[str]
    max_line_bytes: int

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records in file order, reporting malformed ones to `bad`."""
        for path, name in zip(self.paths, places.file_names(self.paths), strict=True):
            for number, line in lines(path, self.max_line_bytes, bad):
                if line.strip():
                    place = f"{name}:{number}"
                    yield Record(place, "", line.strip(), place)


def found_in(folder: str) -> str:
    """List the first 20 names of a folder where certain files were expected, for messages."""
    if os.path.isdir(folder):
        return f"found {sorted(os.listdir(folder))[:20]}"
    return "it is a file" if os.path.exists(folder) else "no such folder"
