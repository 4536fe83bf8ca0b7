"""Relevance of passages: labels of any scale become whole degrees of relevance."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from input_pipelines.labelled.examples import LayoutError

MIDDLE = 0.5  # of scores between 0 and 1


@dataclass(frozen=True)
class Relevance:
    """Relevant and irrelevant passages of queries.

    Attributes:
      relevant: query -> passage -> whole degree, 1 or more; queries without any are left out.
      negatives: query -> the passages that do not answer it, of the same queries.
      unanswered: queries that are left out.
      rule: which labels count as relevant, for the report.
      least: label of a relevant passage at least.
    """

    relevant: Mapping[str, Mapping[str, int]]
    negatives: Mapping[str, list[str]]
    unanswered: int
    rule: str
    least: float


def decide(labels: Mapping[str, Mapping[str, float]], positive_from: float | None) -> Relevance:
    """Whole labels above 0 are degrees of relevance; of others, those from a threshold count.

    Args:
      labels: query -> passage -> label.
      positive_from: the least score that is relevant; None for 0.5 where scores are between 0 and
        1, and for every whole label above 0.

    Raises:
      LayoutError: scores are fractions outside of 0 to 1 and no threshold is given, or nothing is
        relevant.
    """
    values = {label for judged in labels.values() for label in judged.values()}
    whole = all(value == math.floor(value) for value in values)
    if positive_from is None and not whole:
        positive_from = _middle(values)
    if positive_from is None:
        rule, least = "labels above 0", 1.0

        def degree(label: float) -> int:
            return max(0, int(label))
    else:
        rule, least = f"scores from {positive_from:g}", positive_from

        def degree(label: float) -> int:
            return int(label >= least)

    relevant = {
        query: {name: degree(label) for name, label in judged.items() if degree(label)}
        for query, judged in labels.items()
    }
    answered = {query: judged for query, judged in relevant.items() if judged}
    if not answered:
        raise LayoutError(
            f"expected relevant passages, found none: {rule} count, and labels are between "
            f"{min(values, default=0):g} and {max(values, default=0):g}. Set "
            "POSITIVE_FROM, the least score that is relevant"
        )
    negatives = {
        query: [name for name in labels[query] if name not in judged]
        for query, judged in answered.items()
    }
    return Relevance(answered, negatives, len(relevant) - len(answered), rule, least)


def _middle(values: set[float]) -> float:
    if min(values) >= 0 and max(values) <= 1:
        return MIDDLE
    raise LayoutError(
        f"scores are between {min(values):g} and {max(values):g}, and not whole numbers: expected "
        "labels 1 and 0, grades, or scores between 0 and 1, of which 0.5 and more are relevant. "
        "Say which are: POSITIVE_FROM=NUMBER"
    )
