"""ir_datasets by name: documents, queries and judgements of any of its collections.

Names are those of ir-datasets.com, such as `beir/scifact/test` or `msmarco-passage/train`. The
library fetches what a name needs on first use, where there is a network, and keeps it in
IR_DATASETS_HOME.
"""

import dataclasses
import difflib
from collections.abc import Iterator
from typing import Any

from input_pipelines.sources import text_sources
from input_pipelines.sources.text_sources import BadRecords, FieldError, Record, SourceError


@dataclasses.dataclass(frozen=True)
class IrDocuments:
    """The documents of a dataset.

    Attributes:
      name: of the dataset.
      title_field: "" for none.
      text_fields: joined by a space; () for the library's own choice (`default_text`), which holds
        the title where there is one.
    """

    name: str
    title_field: str = ""
    text_fields: tuple[str, ...] = ()

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records in the library's order, reporting malformed ones to `bad`."""
        dataset = _load(self.name, "docs")
        _require_fields(self.name, dataset.docs_cls(), (self.title_field, *self.text_fields))
        for number, document in enumerate(dataset.docs_iter()):
            yield from _record(
                document, "doc_id", self.title_field, self.text_fields,
                f"{self.name}:docs:{number}", bad,
            )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class IrQueries:
    """The queries of one or more datasets over the same documents."""

    names: tuple[str, ...]
    text_field: str = ""

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields each query once, reporting malformed ones to `bad`."""
        seen: set[str] = set()
        for name in self.names:
            dataset = _load(name, "queries")
            fields = (self.text_field,) if self.text_field else ()
            _require_fields(name, dataset.queries_cls(), fields)
            for number, query in enumerate(dataset.queries_iter()):
                where = f"{name}:queries:{number}"
                for record in _record(query, "query_id", "", fields, where, bad):
                    if record.id not in seen:  # splits may share queries
                        seen.add(record.id)
                        yield record


@dataclasses.dataclass(frozen=True)
class IrQrels:
    """The judgements of a dataset."""

    name: str

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields (query, passage, relevance, place)."""
        del bad  # the library reads its own files
        for number, qrel in enumerate(_load(self.name, "qrels").qrels_iter()):
            yield qrel.query_id, qrel.doc_id, int(qrel.relevance), f"{self.name}:qrels:{number}"


def _load(name: str, what: str) -> Any:
    """The dataset, if it has docs, queries or qrels.

    Raises:
      SourceError: the library does not know the name, or the dataset lacks what is asked for.
    """
    import ir_datasets

    try:
        dataset = ir_datasets.load(name)
    except KeyError:
        known = list(ir_datasets.registry)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        raise SourceError(
            f"ir_datasets knows no {name!r}; the nearest names are {near}, all are on "
            "ir-datasets.com"
        ) from None
    if not getattr(dataset, f"has_{what}")():
        raise SourceError(
            f"ir_datasets {name!r} has no {what}; a part of it may, such as {name}/train"
        )
    return dataset


def _require_fields(name: str, kind: Any, fields: tuple[str, ...]) -> None:
    missing = [field for field in fields if field and field not in kind._fields]
    if missing:
        raise SourceError(f"ir_datasets {name!r}: no field {missing}; there are {kind._fields}")


def _record(
    item: Any, id_field: str, title_field: str, text_fields: tuple[str, ...], where: str,
    bad: BadRecords,
) -> Iterator[Record]:  # fmt: skip
    """The record, or nothing and a word to `bad`."""
    row = item._asdict()
    texts = {field: row[field] for field in text_fields} or {"text": item.default_text()}
    try:
        yield Record(
            id=text_sources.text_field(row, id_field, is_id=True),
            title=text_sources.text_field(row, title_field) if title_field else "",
            text=" ".join(text_sources.text_field(texts, field) for field in texts),
            source=where,
        )
    except FieldError as error:
        bad.add(where, error.reason, str(error), repr(row))
