"""Collections in BEIR's layout: passages by id, queries, and judgements.

corpus.jsonl          {"_id", "title", "text", "source" (optional)}
queries.jsonl         {"_id", "text"}
qrels/<split>.tsv     query-id <tab> corpus-id <tab> score, usually with a header
                      (or qrels.<split>.tsv)

Each may be gzipped (then with ".gz"); a single passage of a gzipped corpus is slow to read.
"""

import dataclasses
import gzip
import json
import os
import weakref
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

Qrels = dict[str, dict[str, int]]  # query id -> passage id -> relevance, 0: not relevant
QRELS_HEADER = ["query-id", "corpus-id", "score"]  # may be absent


class CollectionError(ValueError):
    """A file of a collection is not as BEIR lays it out; the message names file and line."""


def find(corpus: str | Path, *names: str) -> Path:
    """The first of these files of a collection, or of the same gzipped.

    Raises:
      FileNotFoundError: none is there; says what is.
    """
    for name in names:
        for path in (Path(corpus) / name, Path(corpus) / f"{name}.gz"):
            if path.is_file():
                return path
    files = [*Path(corpus).glob("*"), *Path(corpus).glob("qrels/*")]
    there = sorted(str(path.relative_to(corpus)) for path in files if path.is_file())[:20]
    raise FileNotFoundError(
        f"{Path(corpus) / names[0]}: not found (nor {names[0]}.gz). Expected a folder in BEIR's "
        f"layout; it holds {there}"
    )


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb"))


@dataclasses.dataclass(frozen=True)
class Passage:
    """A piece of text; `source` says where it came from and may be empty."""

    id: str
    title: str
    text: str
    source: str

    @property
    def content(self) -> str:
        """Title and body, as every system sees them."""
        return f"{self.title}\n{self.text}" if self.title else self.text


class Passages:
    """The passages of a corpus folder, read from disk by row or id; only ids stay in memory.

    A plain file stays open: single passages can still be read where it was deleted since. A gzipped
    one is opened again for each. May be used from any thread.
    """

    def __init__(self, corpus: str | Path):
        """Reads the file once, to find where each line begins."""
        self.path = find(corpus, "corpus.jsonl")
        self._gzipped = self.path.suffix == ".gz"
        starts, self.ids, end = [], [], 0
        with _open(self.path) as file:
            for start, number, line in _lines(file):
                starts.append(start)
                end = start + len(line)
                self.ids.append(_parse(line, self.path, number).id)
            if not self._gzipped:
                self._file = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._file)
        self._starts = np.asarray([*starts, end], np.int64)  # the last one is no passage's
        self._rows = {name: row for row, name in enumerate(self.ids)}
        if not self.ids:
            raise CollectionError(f"{self.path}: holds no passages")
        if len(self._rows) != len(self.ids):
            twice = next(name for row, name in enumerate(self.ids) if self._rows[name] != row)
            raise CollectionError(f"{self.path}: the id {twice!r} occurs more than once")

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[Passage]:
        with _open(self.path) as file:
            for _, number, line in _lines(file):
                yield _parse(line, self.path, number)

    def row(self, name: str) -> int:
        """The row of the passage with this id; KeyError names the file."""
        if name not in self._rows:
            raise KeyError(f"{self.path}: no passage has the id {name!r}")
        return self._rows[name]

    def passage(self, row: int) -> Passage:
        """The passage in this row."""
        start, end = self._starts[row : row + 2].tolist()
        if self._gzipped:
            with _open(self.path) as file:
                file.seek(start)
                line = file.read(end - start)
        else:  # at its place, as threads share the position of the open file
            line = os.pread(self._file, end - start, start)
        return _parse(line, self.path, row + 1)


def read_queries(corpus: str | Path) -> dict[str, str]:
    """Query id -> text, in the order of the file."""
    path = find(corpus, "queries.jsonl")
    queries: dict[str, str] = {}
    with _open(path) as file:
        for _, number, line in _lines(file):
            record = _record(line, path, number, ("_id", "text"))
            if record["_id"] in queries:
                raise CollectionError(f"{path}:{number}: the id {record['_id']!r} occurs twice")
            queries[record["_id"]] = record["text"]
    return queries


def read_qrels(
    corpus: str | Path,
    split: str,
    queries: Container[str],
    passages: Container[str],
    sampled: bool = False,
) -> Qrels:
    """The judgements of a split.

    Args:
      corpus: a folder in BEIR's layout.
      split: as its file is called.
      queries, passages: ids that exist.
      sampled: whether `passages` are a part of the corpus. Judgements that passages are not
        relevant are then left out where the passage is not in the sample: no metric counts them.

    Raises:
      CollectionError: a malformed line, a query or passage that does not exist, a pair judged
        twice, or a query of which nothing is relevant (its every metric would be 0 for any system).
    """
    path = find_qrels(corpus, split)
    qrels: Qrels = {}
    with _open(path) as file:
        lines = file.read().decode("utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip() and not (number == 1 and line.split("\t") == QRELS_HEADER):
            query, passage, relevance = _judgement(line, f"{path}:{number}")
            if sampled and relevance < 1 and passage not in passages:
                continue
            for kind, name, known in (("query", query, queries), ("passage", passage, passages)):
                if name not in known:
                    raise CollectionError(f"{path}:{number}: no {kind} has the id {name!r}")
            if passage in qrels.setdefault(query, {}):
                raise CollectionError(f"{path}:{number}: {query!r}, {passage!r} are judged twice")
            qrels[query][passage] = relevance
    for query, judged in qrels.items():
        if max(judged.values()) < 1:
            raise CollectionError(f"{path}: query {query!r} has no relevant passage; remove it")
    if not qrels:
        raise CollectionError(f"{path}: holds no judgements below its header")
    return qrels


def find_qrels(corpus: str | Path, split: str) -> Path:
    """The file of a split's judgements; FileNotFoundError if there is none, see `find`."""
    return find(corpus, f"qrels/{split}.tsv", f"qrels.{split}.tsv")


def has_judgements(corpus: str | Path, split: str) -> bool:
    """Whether a split judges any query: False where its file holds a header alone.

    Raises:
      FileNotFoundError: the split has no file.
    """
    with _open(find_qrels(corpus, split)) as file:
        lines = file.read().decode("utf-8").splitlines()
    return any(
        line.strip() and not (number == 0 and line.split("\t") == QRELS_HEADER)
        for number, line in enumerate(lines)
    )


def _judgement(line: str, where: str) -> tuple[str, str, int]:
    fields = line.split("\t")
    if len(fields) != 3 or not fields[2].strip().lstrip("-").isdigit():
        raise CollectionError(
            f"{where}: expected 'query-id<tab>corpus-id<tab>score', a whole number, found {line!r}"
        )
    return fields[0], fields[1], int(fields[2])


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """(byte offset, line number from 1, line) of each line that is not blank."""
    start = 0
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield start, number, line
        start += len(line)


def _parse(line: bytes, path: Path, number: int) -> Passage:
    record = _record(line, path, number, ("_id", "text"))
    return Passage(
        record["_id"], record.get("title") or "", record["text"], record.get("source") or ""
    )


def _record(line: bytes, path: Path, number: int, fields: tuple[str, ...]) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise CollectionError(f"{path}:{number}: not JSON in UTF-8 ({error})") from error
    if not isinstance(record, dict):
        raise CollectionError(f"{path}:{number}: expected an object, found {type(record).__name__}")
    for field in fields:
        if not isinstance(record.get(field), str):
            raise CollectionError(
                f"{path}:{number}: expected a string in {field!r}, found {record.get(field)!r:.80}"
            )
    return record
