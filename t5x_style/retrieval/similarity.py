"""Similarity of a query and a passage, by the kind of their representations, on the host.

| kind | score | nothing in common, so no hit |
|---|---|---|
| dense | inner product | never |
| sparse | sum over tokens of the query's weight times the passage's | 0 |
| multi_vector | MaxSim: sum over the query's vectors of the largest inner product with one of the passage's (Khattab and Zaharia, ColBERT, 2020, section 3.3) | either has no vector |
"""  # noqa: E501

from typing import TYPE_CHECKING

import numpy as np

from t5x_style.interfaces.representation import (
    DENSE,
    QUERY,
    SPARSE,
    Entries,
    Representation,
    blocks,
)

if TYPE_CHECKING:  # it takes 0.15 s, for sparse representations alone
    import scipy.sparse

# Vectors of queries and of passages that are compared at once: 64 MiB of products
_QUERY_VECTORS, _PASSAGE_VECTORS = 1_024, 16_384


def scores(kind: str, queries: Representation, passages: Representation) -> np.ndarray:
    """[Q, P] float32 of every query with every passage, all in memory; 0 of nothing in common."""
    if kind == DENSE:
        return np.asarray(queries @ passages.T)
    if kind == SPARSE:
        return _shared_weights(queries, passages)
    return _max_sim(queries, passages)


def hits(kind: str, queries: Representation, passages: Representation) -> np.ndarray:
    """`scores`, but -inf of nothing in common: such a passage is not found."""
    found = scores(kind, queries, passages)
    if kind == DENSE:
        return found
    if kind == SPARSE:
        return np.where(found == 0, -np.inf, found)
    both = (np.diff(queries.offsets) > 0)[:, None] & (np.diff(passages.offsets) > 0)
    return np.where(both, found, -np.inf)


def bounds(kind: str, side: str, representation: Representation) -> np.ndarray:
    """[N] float32 of texts in memory: a score is at most the query's bound times the passage's.

    The lengths of vectors; of a sparse text that of its weights. Of several vectors the sum of
    their lengths in a query, the largest in a passage.
    """
    if kind == DENSE:
        return np.linalg.norm(representation, axis=1)
    if kind == SPARSE:
        squares = representation.arrays["weights"] ** 2
        return np.sqrt(_reduced(np.add, squares[:, None], representation.offsets)[:, 0])
    lengths = np.linalg.norm(representation.arrays["vectors"], axis=1)[:, None]
    reduce = np.add if side == QUERY else np.maximum
    return _reduced(reduce, lengths, representation.offsets)[:, 0]


def _shared_weights(queries: Entries, passages: Entries) -> np.ndarray:
    """The sparse score; of the passages only tokens of queries are looked at."""
    asked = np.unique(queries.arrays["tokens"])
    products = _matrix(queries, asked) @ _matrix(passages, asked).T
    return np.asarray(products.toarray(), np.float32)


def _matrix(texts: Entries, tokens: np.ndarray) -> "scipy.sparse.csr_array":
    """[N, W] float32: the weights that texts have at W ascending tokens."""
    import scipy.sparse

    found = texts.arrays["tokens"]
    columns = np.searchsorted(tokens, found)
    kept = np.isin(found, tokens)
    parts = texts.arrays["weights"][kept], (texts.owners()[kept], columns[kept])
    return scipy.sparse.csr_array(parts, shape=(len(texts), len(tokens)))


def _max_sim(queries: Entries, passages: Entries) -> np.ndarray:
    found = np.zeros((len(queries), len(passages)), np.float32)
    for asked in blocks(queries, entries=_QUERY_VECTORS):
        query = queries[asked]
        for compared in blocks(passages, entries=_PASSAGE_VECTORS):
            passage = passages[compared]
            if not (len(query.arrays["vectors"]) and len(passage.arrays["vectors"])):
                continue
            products = query.arrays["vectors"] @ passage.arrays["vectors"].T  # [t, u]
            largest = _reduced(np.maximum, products.T, passage.offsets)  # [p, t]
            found[asked, compared] = _reduced(np.add, largest.T, query.offsets)
    return found


def _reduced(reduce: np.ufunc, entries: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """[T, X] -> [N, X]: the entries of each text reduced to one, 0 of a text without any."""
    some = np.diff(offsets) > 0
    found = np.zeros((len(some), entries.shape[1]), entries.dtype)
    if some.any():
        found[some] = reduce.reduceat(entries, offsets[:-1][some], axis=0)
    return found
