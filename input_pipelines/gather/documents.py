"""Documents of many languages in one file, checked: what MARGE is trained on.

`gather` writes lines {"id", "title", "text"} whose ids are LANGUAGE/SHARD/NAME: only documents of a
shard are ever compared with each other, and documents of one name say the same in several
languages, as far as that is known. Nothing but measuring looks at names.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from input_pipelines.sources import languages, places, text_sources
from input_pipelines.sources.text_sources import (
    BadRecords,
    FieldError,
    Record,
    SourceError,
    TextSource,
)

DOCUMENTS, DEVELOPMENT, LANGUAGES = "documents.jsonl", "development.jsonl", "languages.json"

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "gather": {
        "name": "gather_documents",
        "version": 1,
        "outputs": ["development", "documents", "languages", "report"],
        "check": "check",
    }
}


class Document(NamedTuple):
    """A document; its language is a code as `languages.canonical` writes it."""

    language: str
    shard: str
    name: str
    title: str
    text: str

    @property
    def id(self) -> str:
        """Language, shard and name."""
        return f"{self.language}/{self.shard}/{self.name}"


def parts_of(document: str) -> tuple[str, str, str]:
    """Language, shard and name of a document's id.

    Raises:
      ValueError: it has not these three parts.
    """
    parts = document.split("/", 2)
    if len(parts) < 3 or not all(parts):
        raise ValueError(
            f"document {document!r}: expected an id as 'de/2020-03/NAME', of language, shard and "
            "name. Prepare what documents.gather wrote."
        )
    return parts[0], parts[1], parts[2]


class DocumentSource(TextSource, Protocol):
    """Source of documents: texts with a language, a shard and a name."""

    @property
    def shard(self) -> str:
        """Name of the documents that are compared with each other, for messages."""
        ...

    def documents(self, bad: BadRecords) -> Iterator[tuple[str, Document]]:
        """(file:line, document) of each, in a fixed order, reporting malformed ones to `bad`."""
        ...


class DocumentTexts:
    """Adapter of a `DocumentSource` to a `TextSource`: record ids are LANGUAGE/SHARD/NAME.

    `gather` reads documents instead, which it checks itself.
    """

    def documents(self, bad: BadRecords) -> Iterator[tuple[str, Document]]:
        """See `DocumentSource`."""
        raise NotImplementedError(f"{type(self).__name__} has no documents")

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """See `text_sources.TextSource`."""
        unique = text_sources.UniqueIds()
        for where, document in self.documents(bad):
            path, _, line = where.rpartition(":")
            if before := unique.first(document.id, path, int(line)):
                detail = f"document {document.id!r} was already given in {before}"
                bad.add(where, "duplicate_id", detail, document.title)
                continue
            place = places.place(path, where)
            yield Record(document.id, document.title, document.text, place)


@dataclasses.dataclass(frozen=True)
class DocumentFiles(DocumentTexts):
    """JSON lines, a document each.

    Attributes:
      paths: files, read in this order.
      shard: what the documents are called that are compared with each other; with `shard_field`,
        that is put before the field's value.
      shard_field: a field such as a date or the title of a linked article; "": all are of one
        shard.
      codes: the file's own code of a language -> its code; '' leaves its documents out.
      language_field, title_field, text_field: names of fields; "" for no titles.
      name_field: a field that is equal of documents that say the same in several languages; "":
        nothing is known of that, and a document's name is its file's name and its line.
      max_line_bytes: longer lines are malformed.
    """

    paths: Sequence[str]
    shard: str
    shard_field: str = ""
    codes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    language_field: str = "lang"
    name_field: str = "topic"
    title_field: str = "title"
    text_field: str = "text"
    max_line_bytes: int = 10_000_000

    def documents(self, bad: BadRecords) -> Iterator[tuple[str, Document]]:
        """(file:line, document) of each line, reporting malformed ones to `bad`."""
        for path, file in zip(self.paths, places.file_names(self.paths), strict=True):
            for number, line, row in text_sources.json_lines(path, self.max_line_bytes, bad):
                where = f"{path}:{number}"
                try:
                    code = text_sources.text_field(row, self.language_field)
                    if code := self.codes.get(code, code):
                        yield where, self._document(row, code, f"{file}:{number}")
                except FieldError as error:
                    bad.add(where, error.reason, str(error), line)

    def _document(self, row: Mapping[str, object], code: str, place: str) -> Document:
        try:
            language = languages.canonical(code)
        except languages.LanguageError as error:
            raise FieldError("unknown_language", str(error)) from None
        shard = self.shard
        if self.shard_field:
            shard += "-" + _as_id(row, self.shard_field)
        title = text_sources.text_field(row, self.title_field) if self.title_field else ""
        return Document(
            language,
            shard.replace("/", "_"),
            _as_id(row, self.name_field) if self.name_field else place,
            title,
            text_sources.text_field(row, self.text_field),
        )


def _as_id(row: Mapping[str, object], field: str) -> str:
    """A whole number, or a text such as an article's title: "_" for white space, as ids hold none.

    Raises:
      FieldError: neither, or nothing but white space.
    """
    value = row.get(field)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    words = text_sources.text_field(row, field).split()
    if not words:
        raise FieldError("bad_id", f"field {field!r}: expected a number or a text, found none")
    return "_".join(words)


@dataclasses.dataclass(frozen=True)
class DocumentRules:
    """Rules that a document must fulfil.

    Attributes:
      min_characters: of its text.
      min_script: share of its letters that are of its language's script.
      min_documents: of a language; one with fewer is left out.
    """

    min_characters: int = 100
    min_script: float = 0.2
    min_documents: int = 2

    def __post_init__(self) -> None:
        if self.min_characters < 1 or not 0 <= self.min_script <= 1 or self.min_documents < 1:
            raise ValueError(
                "DocumentRules: expected min_characters and min_documents of at least 1 and "
                f"min_script from 0 to 1, found {self}"
            )

    def broken(self, document: Document) -> str:
        """Name of the rule that a document breaks; '' for none."""
        if len(document.text.strip()) < self.min_characters:
            return "too_short"
        script = languages.script(document.language)
        if languages.share_in_script(document.text, script) < self.min_script:
            return "wrong_script"
        return ""


def gather(
    model_dir: str,
    files: Sequence[DocumentSource],
    rules: DocumentRules | None,
    development_share: float,
    max_bad_records: int,
) -> dict[str, str]:
    """The job of a stage: documents of all languages in one file, checked.

    Args:
      model_dir: stage folder.
      files: where from.
      rules: what is kept; None keeps all, as of a test set.
      development_share: of the names, in all their languages, that go into development.jsonl.
      max_bad_records: malformed lines that are skipped before the run stops.

    Returns:
      "documents", "development", "languages" (the codes, a list) and "report": paths in the folder.

    Raises:
      SourceError: nothing is left, or too many malformed lines.
      ValueError: the share is out of range.
    """
    check(development_share, max_bad_records)
    bad = BadRecords(max_bad_records, "documents.gather")
    dropped: collections.Counter[str] = collections.Counter()
    min_documents = 1 if rules is None else rules.min_documents
    kept = _few_left_out(list(_checked(files, rules, bad, dropped)), min_documents, dropped)
    if not kept:
        raise SourceError(
            f"documents.gather: no document is left of {[f.shard for f in files]}; dropped: "
            f"{dict(dropped)}, malformed: {dict(bad.counts)}"
        )
    counts: dict[str, collections.Counter[str]] = {}
    os.makedirs(model_dir, exist_ok=True)
    with contextlib.ExitStack() as stack:
        opened = {
            name: stack.enter_context(open(os.path.join(model_dir, name), "w", encoding="utf-8"))
            for name in (DOCUMENTS, DEVELOPMENT)
        }
        for one in kept:
            develops = _share_of(f"{one.shard}/{one.name}") < development_share
            part = DEVELOPMENT if develops else DOCUMENTS
            row = {"id": one.id, "title": one.title, "text": one.text}
            opened[part].write(json.dumps(row, ensure_ascii=False) + "\n")
            counts.setdefault(one.language, collections.Counter())[part] += 1
    report: dict[str, Any] = {
        "dropped": dict(sorted(dropped.items())),
        "malformed": dict(sorted(bad.counts.items())),
        "examples": bad.examples,
        "languages": {code: dict(counts[code]) for code in sorted(counts)},
        "shards": dict(sorted(collections.Counter(one.shard for one in kept).items())),
    }
    for name, value in ((LANGUAGES, sorted(counts)), ("report.json", report)):
        with open(os.path.join(model_dir, name), "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, indent=1)
    return {
        "documents": DOCUMENTS,
        "development": DEVELOPMENT,
        "languages": LANGUAGES,
        "report": "report.json",
    }


def check(development_share: float, max_bad_records: int) -> None:
    """Check arguments before `gather` runs; ValueError: a number out of range."""
    BadRecords(max_bad_records)
    if not 0 <= development_share < 1:
        raise ValueError(
            f"gather.development_share: expected 0 to below 1, found {development_share}"
        )


def trained_on(languages_file: str) -> languages.Among:
    """The languages of a gathering, from its languages.json."""
    with open(languages_file, encoding="utf-8") as file:
        return languages.Among(json.load(file))


def _checked(
    files: Sequence[DocumentSource],
    rules: DocumentRules | None,
    bad: BadRecords,
    dropped: collections.Counter[str],
) -> Iterator[Document]:
    unique, texts = text_sources.UniqueIds(), text_sources.UniqueIds()
    for one in files:
        for where, document in one.documents(bad):
            path, _, line = where.rpartition(":")
            if before := unique.first(document.id, path, int(line)):
                detail = f"document {document.id!r} was already given in {before}"
                bad.add(where, "duplicate_id", detail, document.title)
            elif rules and (reason := rules.broken(document)):
                dropped[reason] += 1
            elif texts.first(f"{document.language}\t{document.text}", path, int(line)):
                dropped["repeated"] += 1
            else:
                yield document


def _few_left_out(
    documents: list[Document], min_documents: int, dropped: collections.Counter[str]
) -> list[Document]:
    """Without those of languages that have too few, by language and then as they came."""
    counts = collections.Counter(one.language for one in documents)
    kept = [one for one in documents if counts[one.language] >= min_documents]
    dropped["too_few_of_the_language"] += len(documents) - len(kept)
    return sorted(kept, key=lambda one: one.language)


def _share_of(name: str) -> float:
    """A number from 0 to 1 that follows from a name alone."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") / 2**64
