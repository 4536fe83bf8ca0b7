"""Pairs of sentences with a judgement of how similar they are: STS, of one or several languages."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from input_pipelines.sources import languages, places, text_sources
from input_pipelines.sources.text_sources import BadRecords, Record, SourceError

MAX_LINE_BYTES = 100_000
SIDES = ("first", "second")


class Judged(NamedTuple):
    """A pair: id 'en/17', its two sentences, the judgement, and where in a file it is."""

    id: str
    sentences: tuple[str, str]
    score: float
    where: str


@dataclasses.dataclass(frozen=True)
class SimilarityFiles:
    """Tables without a header, tab between columns.

    Attributes:
      files: name -> path, perhaps gzipped. A name is a language, or two: 'en', 'es_en'.
      score, first, second: numbers of the columns, from 0. The STS Benchmark as published has
        them at 4, 5 and 6.
    """

    files: Mapping[str, str]
    score: int
    first: int
    second: int

    def judged(self, bad: BadRecords) -> Iterator[Judged]:
        """All pairs in file order, reporting malformed ones to `bad`; ids count lines.

        Raises:
          SourceError: a file cannot be read or has no pairs.
          languages.LanguageError: a name that is no language.
        """
        for name, path in self.files.items():
            for code in name.split("_"):
                languages.canonical(code)
            found = False
            for number, line in text_sources.lines(path, MAX_LINE_BYTES, bad):
                one = self._of(line, f"{name}/{number}", path, number, bad)
                if one is not None:
                    found = True
                    yield one
            if not found:
                raise SourceError(f"{path}: expected pairs of sentences, found none")

    def _of(self, line: str, name: str, path: str, number: int, bad: BadRecords) -> Judged | None:
        cells, where = line.split("\t"), f"{path}:{number}"
        try:
            score = float(cells[self.score])
            both = (cells[self.first].strip(), cells[self.second].strip())
        except (IndexError, ValueError) as error:
            bad.add(where, "columns", f"expected a score and two sentences ({error})", line)
            return None
        if not all(both) or not math.isfinite(score):
            bad.add(where, "empty", "expected a finite score and two sentences", line)
            return None
        return Judged(name, both, score, places.place(path, where))


@dataclasses.dataclass(frozen=True)
class SimilarSentences:
    """The first or the second sentences, as a source.

    Attributes:
      pairs: where they are.
      side: 'first' or 'second'.
    """

    pairs: SimilarityFiles
    side: str

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise ValueError(f"SimilarSentences.side: expected one of {SIDES}, found {self.side!r}")

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """See `text_sources.TextSource`; errors as `SimilarityFiles.judged`."""
        at = SIDES.index(self.side)
        for one in self.pairs.judged(bad):
            yield Record(one.id, "", one.sentences[at], one.where)


def scores(pairs: SimilarityFiles) -> dict[str, float]:
    """Id -> judgement; malformed lines were reported when the sentences were read."""
    return {one.id: one.score for one in pairs.judged(BadRecords.counted_before())}
