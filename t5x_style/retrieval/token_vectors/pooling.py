"""Pool similar token vectors of a passage into fewer vectors.

Token pooling (Clavié, Chaffin and Adams 2024, arXiv:2409.14683): the vectors of a passage are
clustered by Ward's method, and the mean of each cluster is kept. MaxSim then compares queries with
the means; models need no training for it.
"""

import itertools

import numpy as np

from t5x_style.interfaces.representation import Entries

_TINY = np.finfo(np.float32).tiny


def pooled(texts: Entries, factor: int) -> Entries:
    """About 1 / `factor` of the vectors of each text; `texts` unchanged for a factor of 1.

    Of n vectors ceil(n / factor) clusters remain at most, in the order of their first vectors. A
    cluster's vector is the mean of its vectors, at the mean of their lengths: unit vectors give
    unit vectors, and a cluster of one vector is that vector. A text without vectors keeps none.

    Args:
      texts: several vectors [T, d] float32 of N texts, in memory.
      factor: at least 1.
    """
    if factor == 1:
        return texts
    vectors, offsets = texts.arrays["vectors"], texts.offsets
    parts = [
        pool(vectors[start:end], -(-int(end - start) // factor))
        for start, end in itertools.pairwise(offsets)
    ]
    counts = np.cumsum([0, *map(len, parts)])
    return Entries(counts, {"vectors": np.concatenate([vectors[:0], *parts])})


def pool(vectors: np.ndarray, clusters: int) -> np.ndarray:
    """[m, d] float32, m at most `clusters`; see `pooled`.

    Ward's method takes Euclidean distances. Between vectors of unit length their squares are
    2 - 2 cosines, so that directions are clustered by their cosines.

    Args:
      vectors: [n, d] float32, of one text.
      clusters: at most n; 0 of no vectors.
    """
    if clusters >= len(vectors):
        return vectors
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = _labels(vectors / np.maximum(lengths, _TINY), clusters)
    _, first, of = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)  # place -> cluster
    member = (of == order[:, None]).astype(np.float32)  # [m, n]
    sizes = member.sum(axis=1, keepdims=True)
    means = member @ vectors
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), _TINY)
    means *= member @ lengths / sizes
    alone = sizes[:, 0] == 1
    means[alone] = vectors[first[order[alone]]]
    return means


def _labels(directions: np.ndarray, clusters: int) -> np.ndarray:
    """[n]: the number of each direction's cluster, `clusters` of them at most."""
    from scipy.cluster import hierarchy  # it takes a while, and only this needs it

    if clusters == 1:
        return np.ones(len(directions), np.int32)
    tree = hierarchy.linkage(directions.astype(np.float64), method="ward")
    found: np.ndarray = hierarchy.fcluster(tree, clusters, criterion="maxclust")
    return found
