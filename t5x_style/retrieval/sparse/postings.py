"""Passages by token: an exact search looks at those alone that share a token with the query."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.representation import SPARSE, Entries

QUERIES = 256  # of a block, at most
PRODUCTS = 1 << 24  # scores of a block, at most, unless one query has more: 8 bytes each


class Postings:
    """Which passages have a token, and with which weight: int32 and float32, in memory.

    Searches may come from any thread.
    """

    def __init__(self, passages: Entries) -> None:
        """Args:
        passages: of kind sparse, [N]; may be on disk.
        """
        import scipy.sparse  # it takes 0.15 s, for sparse representations alone

        held = passages[:]
        tokens, weights = held.arrays["tokens"], held.arrays["weights"]
        shape = (len(held), int(tokens.max(initial=-1)) + 1)
        by_passage = scipy.sparse.csr_array((weights, tokens, held.offsets), shape=shape)
        self._passages = passages
        self._by_token: Any = by_passage.T.tocsr()  # [tokens, N]

    def search(self, queries: Entries, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `index.Index.search`; equals `exact_index.top_k`."""
        queries = index_lib.check_entry_queries(SPARSE, queries, self._passages, k)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        rows = np.full((len(queries), k), index_lib.NO_ROW, np.int32)
        for at, products in self._products(queries):
            ends = products.indptr
            for query in range(at.stop - at.start):
                place = slice(ends[query], ends[query + 1])
                found, passages = products.data[place], products.indices[place]
                hit = found != 0
                best = index_lib.best(found[hit], passages[hit], k)
                scores[at][query], rows[at][query] = best
        return scores, rows

    def _products(self, queries: Entries) -> Iterator[tuple[slice, Any]]:
        """Yields a range of q queries, and their scores: sparse [q, N] float32, 0 left out."""
        import scipy.sparse

        count = self._by_token.shape[0]
        asked = queries.arrays["tokens"]
        known = asked < count
        before = np.concatenate([[0], np.cumsum(known)])  # known tokens before each
        tokens, weights = asked[known], queries.arrays["weights"][known]
        offsets = before[queries.offsets]
        lengths = np.diff(self._by_token.indptr)[tokens]
        sizes = np.diff(np.concatenate([[0], np.cumsum(lengths)])[offsets])  # of each query
        for at in _blocks(sizes):
            place = slice(offsets[at.start], offsets[at.stop])
            ends = offsets[at.start : at.stop + 1] - offsets[at.start]
            shape = (at.stop - at.start, count)
            block = scipy.sparse.csr_array((weights[place], tokens[place], ends), shape=shape)
            yield at, block @ self._by_token


def _blocks(sizes: np.ndarray) -> Iterator[slice]:
    """Ranges of queries, of at most QUERIES and PRODUCTS."""
    start, held = 0, 0
    for end, size in enumerate(sizes.tolist()):
        if end > start and (end - start == QUERIES or held + size > PRODUCTS):
            yield slice(start, end)
            start, held = end, 0
        held += size
    if start < len(sizes):
        yield slice(start, len(sizes))
