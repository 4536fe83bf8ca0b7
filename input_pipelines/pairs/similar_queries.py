"""Order queries so that those whose answers are hard negatives of each other are adjacent.

A batch of queries on a few topics has hard negatives without further passages (topic-aware
sampling: Hofstätter et al. 2021, arXiv:2104.06967, who cluster the queries). Here the negatives
that were mined say which queries belong together.
"""

from collections import defaultdict, deque

import numpy as np

from input_pipelines.batches import token_groups


def grouped(
    order: np.ndarray, positives: np.ndarray, negatives: np.ndarray, size: int
) -> np.ndarray:
    """The queries in groups of `size`: int64 [N // size, size], each at most once.

    The first query of a group is the next of `order` that is free. Those whose answers are its
    negatives join it, hardest first, then those whose answers are negatives of these. No two of
    them have the same answer. Queries that find no full group are put together in their order.

    Args:
      order: int64 [N], all queries, in an order of chance.
      positives: int64 [N], the passage that answers each query; by query, not by `order`.
      negatives: int64 [N, M], its hard negatives, the hardest first, -1 where fewer.
      size: queries of a group; with 1, `order` stays.
    """
    if size == 1:
        return order[:, None]
    answered = defaultdict(list)  # passage -> queries, in `order`
    for query, passage in zip(order.tolist(), positives[order].tolist(), strict=True):
        answered[passage].append(query)
    answers = positives.tolist()
    free = np.ones(len(order), np.bool_)
    full: list[list[int]] = []
    for first in order.tolist():
        if not free[first]:
            continue
        group = _group_of(first, negatives, answers, answered, free, size)
        if len(group) == size:
            full.append(group)
            free[group] = False
    rest = order[free[order]]
    rest = rest[: len(rest) // size * size].reshape(-1, size)
    return np.concatenate([np.array(full, np.int64).reshape(-1, size), rest])


def _group_of(
    first: int,
    negatives: np.ndarray,
    answers: list[int],
    answered: dict[int, list[int]],
    free: np.ndarray,
    size: int,
) -> list[int]:
    """`first` and at most `size` - 1 free queries that are hard next to it."""
    group, waiting, taken = [first], deque([first]), {answers[first]}
    while waiting:
        for passage in negatives[waiting.popleft()].tolist():
            if passage == token_groups.NONE or passage in taken:
                continue
            query = next((query for query in answered.get(passage, ()) if free[query]), None)
            if query is not None:
                group.append(query)
                if len(group) == size:
                    return group
                waiting.append(query)
                taken.add(passage)
    return group
