"""Pairs whose positives alternate from epoch to epoch."""

import numpy as np

from input_pipelines.batches import token_groups
from input_pipelines.batches.negatives import Pairs

MOST_POSITIVES = 16  # passages of a group that are shown in turn; a group may have thousands


def shown_in_turn(group: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The passages of each group that are shown in turn.

    Args:
      group: int64 [n], the group that each row is of.
      rows: int64 [n].

    Returns:
      The groups int64 [G], ascending, and rows of each int64 [G, most]; -1 where a group has fewer.
      A group with more than `MOST_POSITIVES` rows shows that many, evenly spread.
    """
    order = rows[np.argsort(group, kind="stable")]
    groups, first, count = np.unique(np.sort(group), return_index=True, return_counts=True)
    shown = np.minimum(count, MOST_POSITIVES)[:, None]
    place = np.arange(int(shown.max(initial=1)))[None]
    at = first[:, None] + place * count[:, None] // np.maximum(shown, 1)
    at = np.minimum(at, max(0, len(order) - 1))
    return groups, np.where(place < shown, order[at], token_groups.NONE) if len(order) else at


def without_negatives(queries: np.ndarray, positives: np.ndarray) -> Pairs:
    """Pairs of int64 [n] queries and [n, most] positives that bring no hard negative."""
    return Pairs(queries, positives, np.full((len(queries), 1), token_groups.NONE))
