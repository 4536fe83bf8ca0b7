"""Fuse two ranked lists: by reciprocal ranks, or by scores on a common scale."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from t5x_style.evaluation import ranking
from t5x_style.evaluation.ranking import Run
from t5x_style.retrieval import hybrid
from t5x_style.retrieval.beir_collection import Qrels

WEIGHTS = tuple(round(float(w), 2) for w in np.linspace(0, 1, 21))
# Weight of a dense system next to BM25 before anything is known of it. Of small models the best one
# was between 0.2 and 0.4 on six collections. Half of that keeps most of the gain, and keeps a poor
# dense system, or a collection of 50 queries, from losing against BM25 alone.
PRIOR = 0.15


def reciprocal_rank(runs: Sequence[Run], depth: int) -> Run:
    """Sum over runs of 1 / (60 + rank); needs no scores and no tuning."""

    def to_scores(hits: list[tuple[str, float]]) -> dict[str, float]:
        return {name: 1 / (hybrid.RRF_K + rank) for rank, (name, _) in enumerate(hits, 1)}

    return _combine(runs, to_scores, depth)


def linear(one: Run, other: Run, weight: float, depth: int) -> Run:
    """A weighted sum, weight * one + (1 - weight) * other, each query's scores scaled to [0, 1].

    A passage that one of the runs did not list has 0 there, the score of its last hit. In short
    lists that is nearly the score of the passages that are listed, so a passage that only one
    system lists is misjudged: give lists of about 1,000.
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"weight: expected in [0, 1], found {weight}")
    return {pair.query: pair.fused(weight, depth) for pair in _pairs(one, other)}


def head(run: Run, count: int) -> Run:
    """The first `count` hits of each query, which come best first."""
    return {query: hits[:count] for query, hits in run.items()}


def with_rest(ordered: Run, every: Run, depth: int) -> Run:
    """Each query's hits, and after them those of `every` that are not among them, in their order.

    Scores of the latter fall from below the last one: those of two systems cannot be compared.
    """
    found = {}
    for query, hits in ordered.items():
        listed, below = {name for name, _ in hits}, (hits[-1][1] if hits else 0.0) - 1
        rest = [name for name, _ in every.get(query, []) if name not in listed]
        found[query] = [*hits, *((name, below - place) for place, name in enumerate(rest))][:depth]
    return found


def choose_weight(
    one: Run, other: Run, qrels: Qrels, metric: str, depth: int, prior: float = PRIOR
) -> float:
    """The weight with the best mean `metric`; give it development queries, never those of a test.

    Of equally good weights the one nearest to `prior` is taken.
    """
    depth = min(depth, ranking.measure(metric)[1])
    pairs = [pair for pair in _pairs(one, other) if pair.query in qrels]
    values = {}
    for weight in WEIGHTS:
        run = {pair.query: pair.fused(weight, depth) for pair in pairs}
        values[weight] = ranking.score_run(run, qrels, [metric]).means()[metric]
    return max(values, key=lambda weight: (round(values[weight], 12), -abs(weight - prior)))


def shrink(weight: float, queries: int, prior: float = PRIOR, strength: float = 25.0) -> float:
    """A weight that was chosen on few queries, moved towards the prior.

    Args:
      weight: chosen.
      queries: on how many.
      prior: counts like `strength` queries.
      strength: see `prior`.

    >>> shrink(0.9, 25, 0.1)
    0.5
    """
    return round((queries * weight + strength * prior) / (queries + strength), 4)


@dataclasses.dataclass(frozen=True)
class _Pair:
    """Scores by two systems of the passages that either listed for a query.

    Attributes:
      names: ids, sorted, [n].
      one, other: [n] float64, scaled scores.
    """

    query: str
    names: Sequence[str]
    one: np.ndarray
    other: np.ndarray

    def fused(self, weight: float, depth: int) -> list[tuple[str, float]]:
        """The best `depth` passages by the weighted sum, ties by id."""
        total = weight * self.one + (1 - weight) * self.other
        places = np.arange(len(total))
        if len(total) > depth:
            # Keep everything that ties with the last place, so that ids can break the tie.
            places = np.flatnonzero(total >= np.partition(total, -depth)[-depth])
        best = places[np.argsort(-total[places], kind="stable")][:depth]
        return [(self.names[place], float(total[place])) for place in best.tolist()]


def _pairs(one: Run, other: Run) -> Iterator[_Pair]:
    for query in dict.fromkeys([*one, *other]):
        sides = [_scaled(run.get(query, [])) for run in (one, other)]
        names = sorted(sides[0].keys() | sides[1].keys())
        scores = [np.array([side.get(name, 0.0) for name in names]) for side in sides]
        yield _Pair(query, names, *scores)


def _combine(
    runs: Sequence[Run],
    to_scores: Callable[[list[tuple[str, float]]], Mapping[str, float]],
    depth: int,
) -> Run:
    fused: Run = {}
    for query in {query: None for run in runs for query in run}:
        total: dict[str, float] = {}
        for run in runs:
            for name, score in to_scores(run.get(query, [])).items():
                total[name] = total.get(name, 0.0) + score
        fused[query] = sorted(total.items(), key=lambda hit: (-hit[1], hit[0]))[:depth]
    return fused


def _scaled(hits: list[tuple[str, float]]) -> dict[str, float]:
    scores = [score for _, score in hits]
    if not scores:
        return {}
    low, width = min(scores), max(scores) - min(scores)
    return {name: (score - low) / width if width else 1.0 for name, score in hits}
