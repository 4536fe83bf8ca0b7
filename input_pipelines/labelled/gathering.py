"""Reads labelled data once: ids for texts, labels of pairs, and everything that is wrong with them.

Texts of passages are passed on and not kept; ids, hashes and the texts of queries are in memory.
"""

import collections
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from input_pipelines.labelled.examples import Judged, LabelledSource, Row, Text
from input_pipelines.sources import triples
from input_pipelines.sources.text_sources import BadRecords, FieldError, Record

EXAMPLES = 3


@dataclass
class Labelled:
    """Labelled data, by ids.

    Attributes:
      queries: id -> text, in the order of their first rows.
      labels: query -> passage -> label.
      teacher: query -> passage -> score, where a teacher gave one.
      splits: query -> given split -> the place of its first row there.
      passages: how many there are.
      repeated: texts in rows that were passages before.
      rows: split -> its rows.
      examples: the first rows, of different queries.
      query_sizes, positive_sizes: characters of both texts of each row that has them.
      questions: how many queries and positives end in a question mark.
    """

    queries: dict[str, str] = field(default_factory=dict)
    labels: dict[str, dict[str, float]] = field(default_factory=dict)
    teacher: dict[str, dict[str, float]] = field(default_factory=dict)
    splits: dict[str, dict[str, str]] = field(default_factory=dict)
    passages: int = 0
    repeated: int = 0
    rows: collections.Counter[str] = field(default_factory=collections.Counter)
    examples: list[Row] = field(default_factory=list)
    query_sizes: "array[int]" = field(default_factory=lambda: array("L"))
    positive_sizes: "array[int]" = field(default_factory=lambda: array("L"))
    questions: collections.Counter[str] = field(default_factory=collections.Counter)


def gather(source: LabelledSource, bad: BadRecords, keep: Callable[[Record], None]) -> Labelled:
    """Reads all of a source.

    Args:
      source: the data.
      bad: counts malformed rows: an id of two texts, a passage that is not there, a pair with two
        labels.
      keep: is given each passage once, in order.

    Raises:
      SourceError: see `BadRecords`.
    """
    reading = _Reading(keep)
    for passage, where in source.passages(bad):
        try:
            reading.declare(passage)
        except FieldError as error:
            bad.add(where, error.reason, str(error), passage.text)
    for row in source.rows(bad):
        try:
            reading.take(row)
        except FieldError as error:
            bad.add(row.where, error.reason, str(error), row.query.text)
    return reading.found


class _Reading:
    """Data read so far."""

    def __init__(self, keep: Callable[[Record], None]) -> None:
        self.found = Labelled()
        self._keep = keep
        self._key_of: dict[str, str] = {}  # id of a passage -> hash of its text
        self._name_of: dict[str, str] = {}  # hash of a text -> id of the first passage with it
        self._canonical: dict[str, str] = {}  # id in a row -> id of the passage
        self._places: dict[tuple[str, str], str] = {}  # labelled pair -> where it was first

    def declare(self, passage: Text) -> None:
        """A passage of the corpus, which stays under its own id.

        Raises:
          FieldError: its id was there before.
        """
        key = _key(passage)
        name = passage.id or key
        if name in self._key_of:
            if not passage.id:
                return  # the same text again
            raise FieldError("duplicate_id", f"id {name!r} was given before")
        self._add(name, key, passage)
        self._name_of.setdefault(_key(Text(passage.text)), name)  # rows may lack its title

    def take(self, row: Row) -> None:
        """A row, wholly or not at all.

        Raises:
          FieldError: see `gather`.
        """
        query = self._query(row.query)
        pairs = self._pairs(row)
        self._require_agreement(query, pairs)
        labels = self.found.labels.setdefault(query, {})
        for name, one in pairs:
            if name not in self._key_of:
                self._add(name, _key(one.passage), one.passage)
            elif one.passage.text and name not in labels:
                self.found.repeated += 1
            if one.passage.id:
                self._canonical.setdefault(one.passage.id, name)
            labels[name] = one.label
            self._places.setdefault((query, name), row.where)
            if one.teacher is not None:
                self.found.teacher.setdefault(query, {}).setdefault(name, one.teacher)
        self._count(query, row)

    def _query(self, query: Text) -> str:
        name = query.id or triples.name_of(query.text)
        before = self.found.queries.get(name, query.text)
        if before != query.text:
            detail = f"query {name!r} had another text before: {before!r:.80}"
            raise FieldError("id_of_two_texts", detail)
        return name

    def _pairs(self, row: Row) -> list[tuple[str, Judged]]:
        """Passages with their ids; one text has one id, also within the row."""
        names: dict[str, str] = {}
        return [
            (names.setdefault(_key(one.passage), name) if one.passage.text else name, one)
            for one in row.judged
            for name in (self._passage(one.passage),)
        ]

    def _passage(self, passage: Text) -> str:
        """The id under which a passage is or will be kept."""
        known = self._canonical.get(passage.id) if passage.id else None
        if not passage.text and not passage.title:
            if known is None:
                detail = f"passage {passage.id!r} is not in the corpus"
                raise FieldError("names_no_passage", detail)
            return known
        key = _key(passage)
        if known is None:
            return self._name_of.get(key) or passage.id or key
        if key != self._key_of[known] and self._name_of.get(key) != known:
            detail = f"passage {passage.id!r} had another text before"
            raise FieldError("id_of_two_texts", detail)
        return known

    def _require_agreement(self, query: str, pairs: list[tuple[str, Judged]]) -> None:
        here: dict[str, float] = {}
        for name, one in pairs:
            before = here.get(name, self.found.labels.get(query, {}).get(name, one.label))
            if before != one.label:
                place = self._places.get((query, name), "this row")
                shown = one.passage.text[:60] or name
                detail = (
                    f"this query has the passage {shown!r} with the label {one.label:g} here and "
                    f"{before:g} in {place}; expected one label for a pair"
                )
                raise FieldError("contradiction", detail)
            here[name] = one.label

    def _add(self, name: str, key: str, passage: Text) -> None:
        self._key_of[name] = key
        self._canonical[name] = name
        self._name_of.setdefault(key, name)
        self.found.passages += 1
        self._keep(Record(name, passage.title, passage.text, source=""))

    def _count(self, query: str, row: Row) -> None:
        found, positives = self.found, [one.passage for one in row.judged if one.label > 0]
        if len(found.examples) < EXAMPLES and query not in found.queries and positives:
            found.examples.append(row)
        found.queries.setdefault(query, row.query.text)
        found.splits.setdefault(query, {}).setdefault(row.split, row.where)
        found.rows[row.split] += 1
        if positives and positives[0].text:
            found.query_sizes.append(len(row.query.text))
            found.positive_sizes.append(len(positives[0].text))
            found.questions["query"] += row.query.text.endswith(("?", "？"))
            found.questions["positive"] += positives[0].text.endswith(("?", "？"))


def _key(passage: Text) -> str:
    text, title = passage.text.strip(), passage.title.strip()
    return triples.name_of(f"{title}\n{text}" if title else text)
