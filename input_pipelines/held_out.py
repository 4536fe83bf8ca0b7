"""Splits of judged queries, for collections that lack some.

`Part` holds development queries out of the training queries (gin_configs/runs/hold_out.gin).
`Share` splits one set of judged queries into training, development and test queries, for
collections that come with test queries only (gin_configs/runs/split_queries.gin).
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping

from input_pipelines import beir
from input_pipelines.sources import BadRecords, SourceError
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


@dataclasses.dataclass(frozen=True)
class Share:
    """The judgements of one of the splits that judged queries are divided into.

    Queries are ordered by a hash of the seed and their ids; each split takes its share of that
    order, so that the splits have no query in common and are the same on every machine.

    Attributes:
      of: all judgements.
      shares: split -> its share of the queries, in order; they add up to 1.
      split: which of them is meant.
      seed: another one gives another division.
      least: a split with fewer queries is an error.
    """

    of: Judgements
    shares: Mapping[str, float]
    split: str
    seed: int = 0
    least: int = 5

    def __post_init__(self) -> None:
        total = math.fsum(self.shares.values())
        if self.split not in self.shares or abs(total - 1) > 1e-6 or min(self.shares.values()) <= 0:
            raise ValueError(
                "Share.shares: expected positive shares that add up to 1, one of them of split "
                f"{self.split!r}, found {dict(self.shares)}"
            )

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields those of its queries, in order, telling `bad` of malformed lines.

        Raises:
          SourceError: there are too few queries to divide.
        """
        rows = list(self.of.judgements(bad))
        chosen = self._queries(sorted({query for query, _, grade, _ in rows if grade > 0}))
        yield from (row for row in rows if row[0] in chosen)

    def _queries(self, answered: list[str]) -> set[str]:
        """Those of the split, of all that have a relevant passage."""
        order = sorted(answered, key=lambda query: _digest(f"{self.seed}:{query}"))
        begins, ends, place = 0, 0, 0.0
        for split, share in self.shares.items():
            begins, place = ends, place + share
            ends = round(place * len(order))
            if split == self.split:
                break
        if ends - begins < self.least:
            raise SourceError(
                f"split {self.split!r}: expected at least {self.least} queries, found "
                f"{ends - begins}: {len(order)} queries with a relevant passage, divided as "
                f"{dict(self.shares)}. Judge more queries, give this split a larger share, or "
                "train on unsupervised pairs, which need no queries, and test on all of them"
            )
        return set(order[begins:ends])


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _place(query: str) -> float:
    """Where a query falls between 0 and 1; the same in every collection and on every machine."""
    return int.from_bytes(_digest(query)[:8], "big") / 2**64
