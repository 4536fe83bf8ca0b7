"""Translations of two languages: line-aligned files and TFDS; bitext_tables.py has many languages.

A bitext names the pairs of languages it has, and gives the translations of one pair at a time, in a
fixed order.
"""

import dataclasses
import gzip
import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from input_pipelines import languages, sources, tfds_source
from input_pipelines.sources import BadRecords, SourceError

Languages = tuple[str, str]


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
        """What its keys begin with; no two that are gathered together share it."""
        ...

    def pairs(self) -> Sequence[Languages]:
        """The pairs of languages, canonical codes, each once."""
        ...

    def read(self, pair: Languages, bad: BadRecords) -> Iterator[Translation]:
        """The translations of one of `pairs`, in a fixed order, telling `bad` of malformed ones.

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
    """

    name: str
    source_file: str
    target_file: str
    source_language: str
    target_language: str
    max_line_bytes: int = 100_000

    def pairs(self) -> list[Languages]:
        """See `Bitext`."""
        return [two_languages(self.source_language, self.target_language)]

    def read(self, pair: Languages, bad: BadRecords) -> Iterator[Translation]:
        """See `Bitext`. Files of unequal length are refused before anything is read from them."""
        files = (self.source_file, self.target_file)
        counts = [_count(path) for path in files]
        if counts[0] != counts[1]:
            raise SourceError(
                f"{self.name}: expected as many lines in both files, found {counts[0]} in "
                f"{files[0]} and {counts[1]} in {files[1]}. From the first line on that one of them"
                " lacks, nothing is a translation: mend or leave out both."
            )
        left, right = (sources.lines(path, self.max_line_bytes, bad) for path in files)
        for number, source, target in _same_lines(left, right):
            where = f"{self.source_file}:{number}"
            yield Translation(f"{self.name}/{number}", source, target, where)


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


def _same_lines(
    left: Iterator[tuple[int, str]], right: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, str, str]]:
    """Lines of the same number; of those that one side skipped as malformed, neither."""
    one, other = next(left, None), next(right, None)
    while one is not None and other is not None:
        if one[0] == other[0]:
            yield one[0], one[1], other[1]
        behind = min(one[0], other[0])
        one = next(left, None) if one[0] == behind else one
        other = next(right, None) if other[0] == behind else other


def _count(path: str) -> int:
    """Lines of a file, the last one with or without its end."""
    count, last = 0, b"\n"
    with sources.open_binary(path) as file:
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
