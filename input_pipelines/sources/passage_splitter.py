"""Long texts as passages: cut where paragraphs, lines or words end."""

import dataclasses
from collections.abc import Iterator

from input_pipelines.sources.text_sources import BadRecords, Record, TextSource


@dataclasses.dataclass(frozen=True)
class Chunked:
    """The records of a source, each cut into passages of at most `words` words.

    Passages keep the title; ids are "id#0", "id#1", ... A passage of fewer than `min_words` words,
    such as a heading alone, is left out, unless it is all that the record has.
    """

    source: TextSource
    words: int
    min_words: int

    def __post_init__(self) -> None:
        if not 0 <= self.min_words <= self.words or self.words < 1:
            raise ValueError(
                f"Chunked: expected 1 or more words and min_words from 0 to words, found "
                f"words={self.words}, min_words={self.min_words}"
            )

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the passages in order, reporting malformed records to `bad`."""
        for record in self.source.records(bad):
            pieces = split_words(record.text, self.words)
            long = [piece for piece in pieces if len(piece.split()) >= self.min_words]
            for number, piece in enumerate(long or pieces[:1]):
                yield dataclasses.replace(record, id=f"{record.id}#{number}", text=piece)


def split_words(text: str, budget: int) -> list[str]:
    """Cuts a text into passages of at most `budget` words, at paragraphs where possible.

    A paragraph that is itself longer is cut at lines, a longer line at words.
    """
    pieces = [(p, "\n\n") for p in text.split("\n\n")]
    pieces = [(q, sep) for p, sep in pieces for q, sep in _cut(p, sep, budget, "\n")]
    pieces = [(q, sep) for p, sep in pieces for q, sep in _cut(p, sep, budget, " ")]
    out: list[str] = []
    size = budget
    for piece, separator in pieces:
        count = len(piece.split())
        if size + count > budget:
            out.append(piece)
            size = count
        elif count:
            out[-1] += separator + piece
            size += count
    return [passage.strip("\n") for passage in out if passage.strip()]


def _cut(piece: str, separator: str, budget: int, at: str) -> list[tuple[str, str]]:
    if len(piece.split()) <= budget:
        return [(piece, separator)]
    parts = piece.split("\n") if at == "\n" else piece.split()
    return [(part, separator if i == 0 else at) for i, part in enumerate(parts)]
