"""Sentences among which translations are to be mined, in the form of BUCC 2017 and 2018.

A folder has, for each pair of languages and split, de-en.training.de and de-en.training.en with
lines 'id TAB sentence', and de-en.training.gold with lines 'id TAB id', the translations.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from input_pipelines.sources import languages, places, text_sources
from input_pipelines.sources.text_sources import BadRecords, Record, SourceError

MAX_LINE_BYTES = 100_000
SIDES = ("source", "target")
Gold = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class BuccSentences:
    """One side of pairs of languages, as a source; ids are 'de-en/training/de-000000001'.

    Attributes:
      folder: with the files, or with a folder for each pair, as published.
      pairs: names of pairs, as files begin with: 'de-en'.
      splits: 'training', 'test'.
      side: 'source', the first language of a pair's name, or 'target'.
    """

    folder: str
    pairs: Sequence[str]
    splits: Sequence[str]
    side: str

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise ValueError(f"BuccSentences.side: expected one of {SIDES}, found {self.side!r}")

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """See `text_sources.TextSource`.

        Raises:
          SourceError: a file cannot be read or has no sentences.
        """
        unique = text_sources.UniqueIds()
        for pair in self.pairs:
            language = _languages(pair)[SIDES.index(self.side)]
            for split in self.splits:
                path = _path(self.folder, pair, split, language)
                yield from _sentences(path, f"{pair}/{split}", unique, bad)


def _sentences(
    path: str, prefix: str, unique: text_sources.UniqueIds, bad: BadRecords
) -> Iterator[Record]:
    found = False
    for number, line in text_sources.lines(path, MAX_LINE_BYTES, bad):
        key, tab, text = line.partition("\t")
        where, name = f"{path}:{number}", f"{prefix}/{key}"
        if not tab or not text.strip() or key.split() != [key]:
            bad.add(where, "not_a_sentence", "expected 'id TAB sentence'", line)
        elif before := unique.first(name, path, number):
            bad.add(where, "duplicate_id", f"id {key!r} was already given in {before}", line)
        else:
            found = True
            yield Record(name, "", " ".join(text.split()), places.place(path, where))
    if not found:
        raise SourceError(f"{path}: expected sentences, found none")


@dataclasses.dataclass(frozen=True)
class BuccGold:
    """Gold pairs of translations.

    Attributes:
      folder: see `BuccSentences`.
    """

    folder: str

    def translations(self, pair: str, split: str) -> Gold:
        """Ids of sources and their targets, as `BuccSentences` gives them.

        Raises:
          SourceError: the file cannot be read, has a malformed line, or no translations.
        """
        path = _path(self.folder, pair, split, "gold")
        found = []
        for number, line in text_sources.lines(path, MAX_LINE_BYTES, BadRecords(limit=0)):
            ids = line.split()
            if len(ids) != 2:
                raise SourceError(f"{path}:{number}: expected 'id TAB id', found {line!r}")
            found.append((f"{pair}/{split}/{ids[0]}", f"{pair}/{split}/{ids[1]}"))
        if not found:
            raise SourceError(f"{path}: expected translations, found none")
        return found


def _languages(pair: str) -> tuple[str, str]:
    """The codes in a pair's name, as files have them."""
    first, hyphen, second = pair.partition("-")
    if not hyphen or languages.canonical(first) == languages.canonical(second):
        raise SourceError(f"pair: expected two languages such as 'de-en', found {pair!r}")
    return first, second


def _path(folder: str, pair: str, split: str, ending: str) -> str:
    """In the folder, or in one of the pair's name there; the first where neither has it."""
    name = f"{pair}.{split}.{ending}"
    inner = Path(folder, pair, name)
    return str(inner if inner.exists() else Path(folder, name))
