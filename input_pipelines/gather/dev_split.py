"""Splits of judged queries, for collections that lack some.

`HoldOutSplit` holds development queries out of the training queries
(gin_configs/runs/collections/hold_out.gin).
`Share` splits one set of judged queries into training, development and test queries, for
collections that come with test queries only (gin_configs/runs/collections/split_queries.gin).
Both keep queries together that share a relevant passage.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from input_pipelines.gather import query_families
from input_pipelines.sources import beir
from input_pipelines.sources.text_sources import BadRecords, Judgements, SourceError


@dataclasses.dataclass(frozen=True)
class BeirJudgements:
    """The judgements of a split of a BEIR folder."""

    folder: str
    split: str

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields (query, passage, relevance, "file:line"), reporting malformed lines to `bad`."""
        for qrel in beir.read_qrels(self.folder, self.split, bad):
            yield qrel.query, qrel.passage, qrel.score, qrel.where


@dataclasses.dataclass(frozen=True)
class HoldOutSplit:
    """The judgements of the queries that are held out, or of the others.

    Queries that share a relevant passage are on one side, see `query_families`.

    Attributes:
      base: all judgements.
      share: of the queries, between 0 and 1, that is held out.
      held_out: whether these are meant, or the others.
    """

    base: Judgements
    share: float
    held_out: bool

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"HoldOutSplit.share: expected between 0 and 1, found {self.share}")

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields those of its queries, in order, reporting malformed lines to `bad`."""
        rows = list(self.base.judgements(bad))
        shares = {"others": 1 - self.share, "held out": self.share}
        held_out = query_families.divide(_relevant(rows), shares, 0)["held out"]
        yield from (row for row in rows if (row[0] in held_out) == self.held_out)


@dataclasses.dataclass(frozen=True)
class Share:
    """The judgements of one of the splits that judged queries are divided into.

    No query is in two splits, and queries that share a relevant passage are in one, see
    `query_families`. The splits are the same on every machine.

    Attributes:
      base: all judgements.
      shares: split -> its share of the queries; they add up to 1.
      split: which of them is meant.
      seed: another one gives another division.
      min_queries: a split with fewer queries is an error.
    """

    base: Judgements
    shares: Mapping[str, float]
    split: str
    seed: int = 0
    min_queries: int = 5

    def __post_init__(self) -> None:
        total = math.fsum(self.shares.values())
        if self.split not in self.shares or abs(total - 1) > 1e-6 or min(self.shares.values()) <= 0:
            raise ValueError(
                "Share.shares: expected positive shares that add up to 1, one of them of split "
                f"{self.split!r}, found {dict(self.shares)}"
            )

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields those of its queries, in order, reporting malformed lines to `bad`.

        Raises:
          SourceError: there are too few queries to divide.
        """
        rows = list(self.base.judgements(bad))
        parts = query_families.divide(_relevant(rows), self.shares, self.seed)
        chosen = parts[self.split]
        if len(chosen) < self.min_queries:
            raise SourceError(
                f"split {self.split!r}: expected at least {self.min_queries} queries, found "
                f"{len(chosen)}: {sum(map(len, parts.values()))} queries with a relevant passage, "
                f"divided as {dict(self.shares)}. Judge more queries, give this split a larger "
                "share, or train on unsupervised pairs, which need no queries, and test on all of "
                "them"
            )
        yield from (row for row in rows if row[0] in chosen)


def _relevant(rows: list[tuple[str, str, int, str]]) -> list[tuple[str, str]]:
    return [(query, passage) for query, passage, grade, _ in rows if grade > 0]
