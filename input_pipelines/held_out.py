"""Development queries out of a collection's training queries, where it has none of its own."""

import dataclasses
import hashlib
from collections.abc import Iterator

from input_pipelines import beir
from input_pipelines.sources import BadRecords
from input_pipelines.to_beir import Judgements


@dataclasses.dataclass(frozen=True)
class BeirJudgements:
    """The judgements of a split of a BEIR folder."""

    folder: str
    split: str

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields (query, passage, relevance, "file:line"), telling `bad` of malformed lines."""
        for qrel in beir.read_qrels(self.folder, self.split, bad):
            yield qrel.query, qrel.passage, qrel.score, qrel.where


@dataclasses.dataclass(frozen=True)
class Part:
    """The judgements of some queries, chosen by a hash of their ids.

    Attributes:
      of: all judgements.
      share: of the queries, between 0 and 1, that is held out.
      held_out: whether these are meant, or the others.
    """

    of: Judgements
    share: float
    held_out: bool

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"Part.share: expected between 0 and 1, found {self.share}")

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields those of its queries, in order, telling `bad` of malformed lines."""
        for row in self.of.judgements(bad):
            if (_place(row[0]) < self.share) == self.held_out:
                yield row


def _place(query: str) -> float:
    """Where a query falls between 0 and 1; the same in every collection and on every machine."""
    return int.from_bytes(hashlib.sha256(query.encode()).digest()[:8], "big") / 2**64
