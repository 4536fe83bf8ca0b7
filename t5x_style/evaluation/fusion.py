"""One ranked list out of two: reciprocal ranks, or scores on a common scale."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from t5x_style.evaluation import ranking
from t5x_style.evaluation.ranking import Run
from t5x_style.retrieval.passages import Qrels

RRF_K = 60  # Cormack, Clarke and Buettcher 2009
WEIGHTS = tuple(round(float(w), 2) for w in np.linspace(0, 1, 21))


def reciprocal_rank(runs: Sequence[Run], depth: int) -> Run:
    """Sum over runs of 1 / (60 + rank); needs no scores and no tuning."""

    def to_scores(hits: list[tuple[str, float]]) -> dict[str, float]:
        return {name: 1 / (RRF_K + rank) for rank, (name, _) in enumerate(hits, 1)}

    return _combine(runs, to_scores, depth)


def linear(one: Run, other: Run, weight: float, depth: int) -> Run:
    """A weighted sum, weight * one + (1 - weight) * other, each query's scores scaled to [0, 1].

    A passage that one of the runs did not list has 0 there, the score of its last hit.
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"weight: expected in [0, 1], found {weight}")
    scaled = [
        {query: [(n, w * s) for n, s in _scaled(hits)] for query, hits in run.items()}
        for run, w in ((one, weight), (other, 1 - weight))
    ]
    return _combine(scaled, dict, depth)


def choose_weight(one: Run, other: Run, qrels: Qrels, metric: str, depth: int) -> float:
    """The weight with the best mean `metric`; give it development queries, never those of a test.

    Of equally good weights the one nearest 0.5 is taken.
    """
    values = {
        weight: ranking.score_run(linear(one, other, weight, depth), qrels, [metric]).means()[
            metric
        ]
        for weight in WEIGHTS
    }
    return max(values, key=lambda weight: (round(values[weight], 12), -abs(weight - 0.5)))


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


def _scaled(hits: list[tuple[str, float]]) -> list[tuple[str, float]]:
    scores = [score for _, score in hits]
    if not scores:
        return []
    low, width = min(scores), max(scores) - min(scores)
    return [(name, (score - low) / width if width else 1.0) for name, score in hits]
