"""Translations of two languages: line-aligned files and TFDS; bitext_tables.py has many languages.

A bitext names the pairs of languages it has, and gives the translations of one pair at a time, in a
fixed order. `Sides` reads its texts one by one.
"""

import dataclasses
import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from input_pipelines.sources import languages, places, text_sources, tfds_source
from input_pipelines.sources.text_sources import BadRecords, Record, SourceError, UniqueIds

Languages = tuple[str, str]
_MOSES = re.compile(
    r"(?P<stem>.+\.(?P<first>[A-Za-z_]+)-(?P<second>[A-Za-z_]+))\.(?P<language>[A-Za-z_]+)(?P<gz>\.gz)?"
)


@dataclasses.dataclass(frozen=True)
class Translation:
    """A sentence in two languages.

    Attributes:
      key: what was said; all languages of a text share it.
      source, target: texts.
      where: file and line, for messages.
    """

    key: str
    source: str
    target: str
    where: str


class Bitext(Protocol):
    """Translations of one or more pairs of languages."""

    @property
    def name(self) -> str:
        """Prefix of its keys; no two that are gathered together share it."""
        ...

    def pairs(self) -> Sequence[Languages]:
        """The pairs of languages, canonical codes, each once."""
        ...

    def read(self, pair: Languages, bad: BadRecords) -> Iterator[Translation]:
        """The translations of one of `pairs`, in a fixed order, reporting malformed ones to `bad`.

        Raises:
          SourceError: a file that is missing, damaged, or not aligned.
        """
        ...


@dataclasses.dataclass(frozen=True)
class LineAligned:
    """Two files whose lines n are translations, as Moses and OPUS have them.

    Attributes:
      name: of the text, part of every key.
      source_file, target_file: plain text, perhaps gzipped.
      source_language, target_language: codes.
      max_line_bytes: longer lines are malformed.
      document_file: a third one, lines n the name of the document that the sentences are of, which
        is part of their keys then; '' for none.
    """

    name: str
    source_file: str
    target_file: str
    source_language: str
    target_language: str
    max_line_bytes: int = 100_000
    document_file: str = ""

    def pairs(self) -> list[Languages]:
        """See `Bitext`."""
        return [two_languages(self.source_language, self.target_language)]

    def read(self, pair: Languages, bad: BadRecords) -> Iterator[Translation]:
        """See `Bitext`. Files of unequal length are refused before anything is read from them."""
        files = [path for path in (self.source_file, self.target_file, self.document_file) if path]
        counts = [_count(path) for path in files]
        if len(set(counts)) > 1:
            found = " and ".join(f"{n} in {path}" for n, path in zip(counts, files, strict=True))
            raise SourceError(
                f"{self.name}: expected as many lines in each file, found {found}. From the first "
                "line on that one of them lacks, nothing is a translation: correct or omit all."
            )
        read = [text_sources.lines(path, self.max_line_bytes, bad) for path in files]
        for number, (source, target, *document) in _same_lines(*read):
            key = "/".join([self.name, *document, str(number)])
            yield Translation(key, source, target, f"{self.source_file}:{number}")


@dataclasses.dataclass(frozen=True)
class MosesFolder:
    """A folder of line-aligned files as OPUS gives them: CORPUS.de-en.de and CORPUS.de-en.en.

    Attributes:
      name: part of every key.
      folder: of the files, which may be gzipped; several corpora of a pair follow each other.
      max_line_bytes: longer lines are malformed.
    """

    name: str
    folder: str
    max_line_bytes: int = 100_000

    def pairs(self) -> list[Languages]:
        """See `Bitext`."""
        return list(dict.fromkeys(one.pairs()[0] for one in self._files()))

    def read(self, pair: Languages, bad: BadRecords) -> Iterator[Translation]:
        """See `Bitext`."""
        for one in self._files():
            if one.pairs()[0] == pair:
                yield from one.read(pair, bad)

    def _files(self) -> list[LineAligned]:
        names = set(os.listdir(self.folder)) if os.path.isdir(self.folder) else set()
        found = []
        for name in sorted(names):
            parts = _MOSES.fullmatch(name)
            if not parts or parts["language"] != parts["first"]:
                continue
            other = f"{parts['stem']}.{parts['second']}{parts['gz'] or ''}"
            if other not in names:
                raise SourceError(f"{self.folder}: expected {other} next to {name}, found none")
            first, second = (os.path.join(self.folder, one) for one in (name, other))
            key = f"{self.name}/{parts['stem']}"
            codes = parts["first"], parts["second"]
            found.append(LineAligned(key, first, second, *codes, self.max_line_bytes))
        if not found:
            raise SourceError(
                f"{self.folder}: expected files such as CORPUS.de-en.de and CORPUS.de-en.en, found "
                f"{sorted(names)[:5] or 'nothing'}"
            )
        return found


@dataclasses.dataclass(frozen=True)
class TfdsTranslations:
    """A translation data set of TensorFlow Datasets, features named by their languages.

    Attributes:
      dataset: name and configuration, 'wmt14_translate/de-en'.
      split: of it.
      source_language, target_language: names of two features, which are codes.
      data_dir: where it was prepared; '' for the library's default.
    """

    dataset: str
    split: str
    source_language: str
    target_language: str
    data_dir: str = ""

    @property
    def name(self) -> str:
        """See `Bitext`."""
        return self.dataset

    def pairs(self) -> list[Languages]:
        """See `Bitext`."""
        return [two_languages(self.source_language, self.target_language)]

    def read(self, pair: Languages, bad: BadRecords) -> Iterator[Translation]:
        """See `Bitext`."""
        fields = (self.source_language, self.target_language)
        both = tfds_source.Tfds(self.dataset, self.data_dir, self.split, "", *fields)
        for one in both.records(bad):
            yield Translation(f"{self.dataset}/{one.id}", one.title, one.text, one.source)


@dataclasses.dataclass(frozen=True)
class Sides:
    """Both sides of bitexts as a `text_sources.TextSource`; ids are LANGUAGE/KEY.

    A text that is translated into several languages comes once, one that is blank does not come.

    Attributes:
      bitexts: in this order; no two have the same name.
      languages: codes of those that are read; None: all.
    """

    bitexts: Sequence[Bitext]
    languages: Sequence[str] | None = None

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """See `text_sources.TextSource`.

        Raises:
          SourceError: no bitext has one of `languages`; further ones as `Bitext.read`.
        """
        wanted, seen = self._wanted(), UniqueIds()
        for bitext in self.bitexts:
            for pair in bitext.pairs():
                if not wanted.isdisjoint(pair):
                    for one in bitext.read(pair, bad):
                        both = zip(pair, (one.source, one.target), strict=True)
                        for language, text in both:
                            name = "_".join(f"{language}/{one.key}".split())
                            if language in wanted and text.strip() and not seen.knows(name):
                                seen.first(name, "", 0)
                                file = one.where.rpartition(":")[0]
                                place = places.place(file, one.where)
                                yield Record(name, "", text.strip(), place)

    def _wanted(self) -> set[str]:
        pairs = (pair for bitext in self.bitexts for pair in bitext.pairs())
        there = {language for pair in pairs for language in pair}
        wanted = there if self.languages is None else set(map(languages.canonical, self.languages))
        if missing := sorted(wanted - there):
            names = [bitext.name for bitext in self.bitexts]
            raise SourceError(f"bitexts {names}: no texts of {missing}; there are {sorted(there)}")
        return wanted


def _same_lines(*files: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """Lines of the same number; of those that one file skipped as malformed, none."""
    lines = [next(file, None) for file in files]
    while True:
        there = [line for line in lines if line is not None]
        if len(there) < len(files):
            return
        numbers = {line[0] for line in there}
        if len(numbers) == 1:
            yield there[0][0], [line[1] for line in there]
        behind = min(numbers)
        lines = [
            next(file, None) if line[0] == behind else line
            for file, line in zip(files, there, strict=True)
        ]


def _count(path: str) -> int:
    """Lines of a file, the last one with or without its end."""
    count, last = 0, b"\n"
    with text_sources.open_binary(path) as file:
        try:
            while part := file.read(1 << 20):
                count, last = count + part.count(b"\n"), part
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise SourceError(
                f"{path}: the gzip data is damaged or cut short ({error}); fetch or write the file "
                "again"
            ) from error
    return count + (not last.endswith(b"\n"))


def name_of(pair: Languages) -> str:
    """'en_zh-Hant': codes have hyphens themselves."""
    return "_".join(pair)


def two_languages(first: str, second: str) -> Languages:
    """Canonical codes of two languages that differ."""
    pair = languages.canonical(first), languages.canonical(second)
    if pair[0] == pair[1]:
        raise SourceError(f"expected two languages, found {first!r} and {second!r}, which are one")
    return pair
