"""Scores of a few passages for each query, of any kind, on the host; see `retrieval.similarity`."""

import numpy as np

from t5x_style.interfaces.index import NO_ROW
from t5x_style.interfaces.representation import DENSE, SPARSE, Entries, Representation

_NUMBERS = 1 << 24  # of passages in memory at a time, about


def scores(
    kind: str, queries: Representation, passages: Representation, rows: np.ndarray
) -> np.ndarray:
    """Score each query's candidates, exactly as `similarity.scores` does.

    Args:
      kind: of both.
      queries: [Q, D] float32, or `Entries` of Q queries, in memory.
      passages: of all passages, perhaps on disk; only candidates are read.
      rows: [Q, C] int32, rows of `passages`, or NO_ROW.

    Returns:
      [Q, C] float32; 0 of nothing in common, -inf at NO_ROW.
    """
    found = np.full(rows.shape, -np.inf, np.float32)
    if rows.size == 0:
        return found
    score = _dense if kind == DENSE else _sparse if kind == SPARSE else _max_sim
    for start, end in _blocks(passages, rows):
        there = rows[start:end] != NO_ROW
        candidates = np.where(there, rows[start:end], 0)
        found[start:end] = np.where(there, score(queries[start:end], passages, candidates), -np.inf)
    return found


def _blocks(passages: Representation, rows: np.ndarray) -> list[tuple[int, int]]:
    """(start, end) of queries whose candidates fit into memory, one query at least."""
    if isinstance(passages, Entries):
        sizes = [array.shape[1] if array.ndim > 1 else 1 for array in passages.arrays.values()]
        lengths = np.diff(passages.offsets)
        cost = lengths[np.maximum(rows, 0)].sum(axis=1) * max(sizes)
    else:
        cost = np.full(len(rows), rows.shape[1] * passages.shape[1])
    return _parts(cost)


def _parts(cost: np.ndarray) -> list[tuple[int, int]]:
    """(start, end) of runs that cost about `_NUMBERS` together, one element at least."""
    part = np.cumsum(cost) // _NUMBERS
    starts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist()]
    return list(zip(starts, [*starts[1:], len(cost)], strict=True))


def _dense(queries: np.ndarray, passages: Representation, rows: np.ndarray) -> np.ndarray:
    different, at = np.unique(rows, return_inverse=True)
    vectors = np.asarray(passages[different], np.float32)  # each is read once
    return np.einsum("qd,qcd->qc", queries, vectors[at.reshape(rows.shape)])


def _sparse(queries: Entries, passages: Entries, rows: np.ndarray) -> np.ndarray:
    """Entries of all candidates are looked up among those of their queries at once."""
    candidates = passages[rows.reshape(-1)]
    owners = candidates.owners()
    asked = queries.arrays["tokens"].astype(np.int64)
    given = candidates.arrays["tokens"].astype(np.int64)
    size = 1 + max(int(asked.max(initial=0)), int(given.max(initial=0)))
    keys = queries.owners() * size + asked
    order = np.argsort(keys)
    keys, weights = keys[order], queries.arrays["weights"][order]
    wanted = owners // rows.shape[1] * size + given
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    if len(keys) == 0:
        return np.zeros(rows.shape, np.float32)
    products = np.where(keys[at] == wanted, weights[at] * candidates.arrays["weights"], 0.0)
    return np.bincount(owners, products, rows.size).reshape(rows.shape).astype(np.float32)


def _max_sim(queries: Entries, passages: Entries, rows: np.ndarray) -> np.ndarray:
    found = np.zeros(rows.shape, np.float32)
    counts = np.diff(passages.offsets)
    for number, candidates in enumerate(rows):
        query = queries[number : number + 1].arrays["vectors"]
        if not len(query):
            continue
        for start, end in _parts(counts[candidates] * max(query.shape)):
            compared = passages[candidates[start:end]]
            some = np.diff(compared.offsets) > 0
            if some.any():
                products = compared.arrays["vectors"] @ query.T  # [u, t]
                largest = np.maximum.reduceat(products, compared.offsets[:-1][some], axis=0)
                found[number, start:end][some] = largest.sum(axis=1)
    return found
