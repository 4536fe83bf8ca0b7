"""Count held-out queries that share a relevant passage with a training query."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from input_pipelines.labelled.division import Pairs


@dataclass(frozen=True)
class Overlap:
    """Passages that a held-out part shares with the training queries.

    Attributes:
      queries: how many are held out.
      gold: different relevant passages of these.
      gold_in_training: those that answer a training query, too.
      near_duplicates: held-out queries that nearly repeat a training query.
      shared: sorted ids of the queries of which a relevant passage is in training.
      apart: sorted ids of the others.
    """

    queries: int
    gold: int
    gold_in_training: int
    near_duplicates: int
    shared: tuple[str, ...]
    apart: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def text(self, part: str) -> str:
        """One line about this part, for a terminal."""
        return (
            f"{part}: {self.queries} queries; {self.gold_in_training} of {self.gold} relevant "
            f"passages answer training queries, too ({len(self.shared)} queries)"
        )


def measure(
    held_out: set[str], train: set[str], relevant: Mapping[str, Iterable[str]], near: Pairs
) -> Overlap:
    """Counts what two disjoint parts have in common.

    Args:
      held_out, train: ids of queries.
      relevant: query -> its relevant passages.
      near: pairs of queries that nearly repeat each other.
    """
    learned = {passage for query in train for passage in relevant[query]}
    gold = {passage for query in held_out for passage in relevant[query]}
    shared = {query for query in held_out if not learned.isdisjoint(relevant[query])}
    both = [*near, *((b, a) for a, b in near)]
    return Overlap(
        queries=len(held_out),
        gold=len(gold),
        gold_in_training=len(gold & learned),
        near_duplicates=len({a for a, b in both if a in held_out and b in train}),
        shared=tuple(sorted(shared)),
        apart=tuple(sorted(held_out - shared)),
    )
