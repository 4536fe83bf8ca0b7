"""Several sources as one: in turn (`Chain`), or in shares (`Mixture`)."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from input_pipelines.sources.text_sources import (
    BadRecords,
    Record,
    SourceError,
    TextSource,
    UniqueIds,
)


@dataclasses.dataclass(frozen=True)
class Chain:
    """Several sources one after the other, as if they were one; an id in two is malformed."""

    members: Sequence[TextSource]

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records in order, reporting malformed ones to `bad`."""
        unique = UniqueIds()
        for number, source in enumerate(self.members):
            for place, record in enumerate(source.records(bad)):
                if unique.first(record.id, str(number), place):
                    # Two sources may have files of one name, or name no places at all.
                    where = f"members[{number}], {record.source or f'record {place}'}"
                    detail = f"id {record.id!r} is in an earlier source too"
                    bad.add(where, "duplicate_id", detail, record.text)
                    continue
                yield record


def mixture_probabilities(
    counts: Sequence[int], weights: Sequence[float], alpha: float
) -> np.ndarray:
    """Sampling probabilities of a mixture: p_i proportional to w_i * n_i ** alpha, float64 [K].

    alpha=1 samples in proportion to size, alpha=0 by weight alone; alpha=0.7 is
    mBERT's smoothing, 0.3 LaBSE's. A temperature T is alpha = 1 / T.

    Raises:
      ValueError: lengths differ, a count or weight is negative, or nothing has any weight.
    """
    if len(counts) != len(weights) or not len(counts):
        raise ValueError(f"{len(counts)} counts and {len(weights)} weights; expected as many, > 0")
    if min(counts) < 0 or min(weights) < 0 or alpha < 0:
        raise ValueError(f"counts {counts}, weights {weights}, alpha {alpha}: expected none < 0")
    n = np.asarray(counts, np.float64)
    # An empty member has probability 0, also where alpha is 0.
    share = np.where(n > 0, np.asarray(weights, np.float64) * n**alpha, 0.0)
    if not share.sum() > 0:
        raise ValueError(f"counts {counts} with weights {weights}: nothing to sample from")
    return np.asarray(share / share.sum())


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Several sources with weights, smoothed by size.

    members: (name, source, weight). alpha: exponent of the size (see mixture_probabilities).
    records() yields every record once, members in turn, ids as "name/id"; `sample` draws.
    """

    members: Sequence[tuple[str, TextSource, float]]
    alpha: float

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records in file order, reporting malformed ones to `bad`."""
        names = [name for name, _, _ in self.members]
        if len(set(names)) != len(names):
            raise SourceError(f"mixture members {names}: expected different names")
        for name, source, _ in self.members:
            for record in source.records(bad):
                yield dataclasses.replace(record, id=f"{name}/{record.id}")

    def probabilities(self, counts: Sequence[int]) -> np.ndarray:
        """float64 [K] for members of these sizes."""
        return mixture_probabilities(counts, [weight for _, _, weight in self.members], self.alpha)

    def sample(self, size: int, seed: int, bad: BadRecords) -> Iterator[Record]:
        """About `size` records in all, each member's share as its probability, for a vocabulary.

        Each member is read twice, once to count. A share larger than the member repeats it.
        """
        counts = [sum(1 for _ in source.records(bad)) for _, source, _ in self.members]
        rng = np.random.default_rng(seed)
        for (_, source, _), p, n in zip(
            self.members, self.probabilities(counts), counts, strict=True
        ):
            repeats = np.bincount(_draw(rng, n, round(size * p)), minlength=n) if n else ()
            again = source.records(BadRecords.counted_before())
            for record, times in zip(again, repeats, strict=True):
                for _ in range(times):
                    yield record


def _draw(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """`size` indices below n, each used size // n or size // n + 1 times."""
    whole, rest = divmod(size, n)
    return np.concatenate([np.tile(np.arange(n), whole), rng.permutation(n)[:rest]])
