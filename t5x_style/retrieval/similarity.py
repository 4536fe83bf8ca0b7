"""How well a query fits a passage, by the kind of their representations, on the host.

| kind | score | nothing in common, so no hit |
|---|---|---|
| dense | inner product | never |
| sparse | sum over tokens of the query's weight times the passage's | 0 |
| multi_vector | MaxSim: sum over the query's vectors of the largest inner product with one of the passage's (Khattab and Zaharia, ColBERT, 2020, section 3.3) | either has no vector |
"""  # noqa: E501

from collections.abc import Iterator

import numpy as np
import scipy.sparse

from t5x_style.interfaces.representation import DENSE, SPARSE, Entries, Representation

# Vectors of queries and of passages that are compared at once: 64 MiB of products
_QUERY_VECTORS, _PASSAGE_VECTORS = 1_024, 16_384


def scores(kind: str, queries: Representation, passages: Representation) -> np.ndarray:
    """[Q, P] float32 of every query with every passage, all in memory; 0 of nothing in common."""
    if kind == DENSE:
        return np.asarray(queries @ passages.T)
    if kind == SPARSE:
        width = 1 + max(int(one.arrays["tokens"].max(initial=-1)) for one in (queries, passages))
        products = _matrix(queries, width) @ _matrix(passages, width).T
        return np.asarray(products.toarray(), np.float32)
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


def bounds(kind: str, representation: Representation) -> np.ndarray:
    """[N] float32 of texts in memory: no score is larger in size than the product of two bounds.

    The lengths of vectors, added up where a text has several; of a sparse text that of its weights.
    """
    if kind == DENSE:
        return np.linalg.norm(representation, axis=1)
    if kind == SPARSE:
        squares = _summed(representation, representation.arrays["weights"] ** 2)
        return np.sqrt(squares)
    return _summed(representation, np.linalg.norm(representation.arrays["vectors"], axis=1))


def _matrix(texts: Entries, width: int) -> scipy.sparse.csr_array:
    """[N, width] float32: a text's weights, at its tokens."""
    arrays = texts.arrays["weights"], texts.arrays["tokens"], texts.offsets
    return scipy.sparse.csr_array(arrays, shape=(len(texts), width))


def _max_sim(queries: Entries, passages: Entries) -> np.ndarray:
    found = np.zeros((len(queries), len(passages)), np.float32)
    for asked in _blocks(queries, _QUERY_VECTORS):
        query = queries[asked]
        for compared in _blocks(passages, _PASSAGE_VECTORS):
            passage = passages[compared]
            if not (len(query.arrays["vectors"]) and len(passage.arrays["vectors"])):
                continue
            products = query.arrays["vectors"] @ passage.arrays["vectors"].T  # [t, u]
            largest = _reduced(np.maximum, products.T, passage.offsets)  # [p, t]
            found[asked, compared] = _reduced(np.add, largest.T, query.offsets)
    return found


def _blocks(texts: Entries, most: int) -> Iterator[slice]:
    """Texts in order, in blocks of at most `most` entries, or of one text."""
    start = 0
    while start < len(texts):
        limit = texts.offsets[start] + most
        end = max(start + 1, int(np.searchsorted(texts.offsets, limit, side="right")) - 1)
        yield slice(start, min(end, len(texts)))
        start = end


def _reduced(reduce: np.ufunc, entries: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """[T, X] -> [N, X]: the entries of each text reduced to one, 0 of a text without any."""
    some = np.diff(offsets) > 0
    found = np.zeros((len(some), entries.shape[1]), entries.dtype)
    if some.any():
        found[some] = reduce.reduceat(entries, offsets[:-1][some], axis=0)
    return found


def _summed(texts: Entries, entries: np.ndarray) -> np.ndarray:
    return _reduced(np.add, entries[:, None], texts.offsets)[:, 0]
