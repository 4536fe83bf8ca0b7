"""Score translations by vectors of sentences: retrieval, and mining by margin.

Sentences of two languages are compared by the cosine of their vectors. Retrieval asks for each
sentence's own translation among all (Tatoeba, UN); mining does not know which have one, and
is judged by precision and recall of the pairs it proposes (BUCC).

Vectors are arrays, or sparse rows such as counts of n-grams, of which one may be 0: it is near to
nothing. Letters: N sources, M targets, D vector size, k neighbours, n pairs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn import preprocessing

from t5x_style.retrieval import exact_index

Vectors = Any  # [N, D] float: np.ndarray or scipy.sparse
DENSE_BLOCK = 4096  # rows whose similarities with as many others exist at a time
SPARSE_BLOCK = 1024  # sparse rows whose similarities exist at a time
MARGINS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "absolute": lambda cosine, mean: cosine,
    "distance": lambda cosine, mean: cosine - mean,
    # What is near to nothing has a mean of 0, and is a translation of nothing.
    "ratio": lambda cosine, mean: np.divide(cosine, mean, np.zeros_like(cosine), where=mean > 0),
}
WAYS = ("forward", "backward", "intersection", "max")


def unit(vectors: Vectors) -> Vectors:
    """[N, D] float32 of length 1; a zero vector stays zero, and is near to nothing.

    A bag of embeddings gives one for a sentence of unknown tokens, TF-IDF for one without known
    n-grams.

    Raises:
      ValueError: a vector of an array that is not finite, or vectors that are all 0.
    """
    if scipy.sparse.issparse(vectors):
        return preprocessing.normalize(vectors)
    vectors = np.asarray(vectors, np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    bad = np.flatnonzero(~np.isfinite(norms))
    if len(bad):
        raise ValueError(
            f"expected finite vectors, found {len(bad)} of {len(vectors)} that are not, the first "
            f"in row {bad[0]}"
        )
    if len(vectors) and not norms.any():
        raise ValueError(f"expected vectors with a length, found {len(vectors)} that are all 0")
    return np.divide(vectors, norms, np.zeros_like(vectors), where=norms > 0)


def nearest(sources: Vectors, targets: Vectors, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest targets of each source: cosines [N, k] float32 and rows [N, k], best first.

    Args:
      sources, targets: [N, D] and [M, D].
      k: 1 to M.

    Raises:
      ValueError: as `unit`.
    """
    sources, targets = unit(sources), unit(targets)
    if not scipy.sparse.issparse(sources):
        return exact_index.top_k(sources, targets, k)
    cosines = np.empty((sources.shape[0], k), np.float32)
    rows = np.empty((sources.shape[0], k), np.int64)
    for start in range(0, sources.shape[0], SPARSE_BLOCK):
        block = (sources[start : start + SPARSE_BLOCK] @ targets.T).toarray()
        best = np.argsort(-block, axis=1, kind="stable")[:, :k]
        rows[start : start + len(block)] = best
        cosines[start : start + len(block)] = np.take_along_axis(block, best, axis=1)
    return cosines, rows


def finds_own(
    sources: Vectors, targets: Vectors, translation_rows: np.ndarray | None = None
) -> np.ndarray:
    """Whether the target that is nearest to each source is its translation.

    Args:
      sources: [N, D].
      targets: [M, D].
      translation_rows: [N] int, the row of each source's translation; None: source n's is target n.

    Returns:
      [N] bool; of equally near targets the first counts as the nearest.

    Raises:
      ValueError: as `unit`, or sources and targets that cannot be each other's.
    """
    translation_rows = _translation_rows(sources, targets, translation_rows)
    cosines, rows = nearest(sources, targets, 1)
    return (rows[:, 0] == translation_rows) & (cosines[:, 0] != 0)


def find_each_other(sources: Vectors, targets: Vectors) -> tuple[np.ndarray, np.ndarray]:
    """`finds_own` of sources among targets and of targets among sources, from one product.

    Args:
      sources, targets: [N, D], source n and target n being translations; arrays of a few thousand
        rows, whose [N, N] cosines fit into memory, or sparse rows.
    """
    if scipy.sparse.issparse(sources) or len(sources) > DENSE_BLOCK:
        return finds_own(sources, targets), finds_own(targets, sources)
    rows = _translation_rows(sources, targets, None)
    cosines = unit(sources) @ unit(targets).T
    to_sources = np.ascontiguousarray(cosines.T)  # NumPy is slow to look for the best of a column
    near = cosines[rows, rows] != 0
    return (cosines.argmax(1) == rows) & near, (to_sources.argmax(1) == rows) & near


def documents(vectors: Vectors, document: np.ndarray) -> Vectors:
    """Vectors of documents, the means of their sentences' (of length 1): [documents, D].

    Args:
      vectors: [N, D] of sentences.
      document: [N] int, which document a sentence is of, 0 to documents - 1; none is empty.
    """
    counts = np.bincount(document)
    if not counts.all():
        raise ValueError(f"documents: {int(np.argmin(counts))} has no sentence")
    shares = (1 / counts[document], (document, np.arange(len(document))))
    return scipy.sparse.csr_matrix(shares, dtype=np.float32) @ unit(vectors)


class Mined(NamedTuple):
    """Pairs that may be translations, the best first.

    Attributes:
      pairs: [n, 2] int64, rows of sources and targets.
      scores: [n] float64.
    """

    pairs: np.ndarray
    scores: np.ndarray


def mine(
    sources: Vectors, targets: Vectors, margin: str = "ratio", k: int = 4, way: str = "max"
) -> Mined:
    """Pairs by margin (Artetxe and Schwenk 2019, arXiv:1811.01136, section 3).

    score(x, y) = margin(cos(x, y), half the sum of the mean cosines of x and of y with their k
    nearest): a sentence that is near to everything is no good translation of anything.

    Args:
      sources, targets: [N, D] and [M, D].
      margin: name in MARGINS; 'absolute' is the cosine itself.
      k: neighbours, at most as many as there are sentences on either side.
      way: 'forward' proposes for each source the best of its k nearest targets, 'backward' the
        other way round; 'intersection' keeps pairs that both propose; 'max' takes all that either
        proposes, best first, each sentence once.

    Raises:
      ValueError: as `unit`, or a setting out of range.
    """
    if way not in WAYS:
        raise ValueError(f"mine.way: expected one of {WAYS}, found {way!r}")
    score = _margin(margin)
    (forward, to_target), (backward, to_source) = _both_nearest(sources, targets, k)
    near_source, near_target = _means(forward, backward, margin)
    by_source = score(forward, (near_source[:, None] + near_target[to_target]) / 2)
    by_target = score(backward, (near_target[:, None] + near_source[to_source]) / 2)
    ahead = _best(by_source, to_target)
    back = _best(by_target, to_source)
    back = Mined(back.pairs[:, ::-1], back.scores)
    if way == "forward":
        return _sorted(ahead)
    if way == "backward":
        return _sorted(back)
    if way == "intersection":
        both = {tuple(pair) for pair in back.pairs.tolist()}
        kept = np.array([tuple(pair) in both for pair in ahead.pairs.tolist()])
        return _sorted(Mined(ahead.pairs[kept], ahead.scores[kept]))
    return _once(Mined(*(np.concatenate(parts) for parts in zip(ahead, back, strict=True))))


def own_scores(sources: Vectors, targets: Vectors, margin: str = "ratio", k: int = 4) -> np.ndarray:
    """Score of each target as a translation of its row's source: [N] float64, as `mine`.

    Args:
      sources, targets: [N, D] each.
      margin, k: see `mine`.

    Raises:
      ValueError: as `mine`, or sides of unequal length.
    """
    _translation_rows(sources, targets, None)  # as many on either side
    score = _margin(margin)
    (forward, _), (backward, _) = _both_nearest(sources, targets, k)
    near_source, near_target = _means(forward, backward, margin)
    cosine = row_cosines(sources, targets).astype(np.float64)
    return score(cosine, (near_source + near_target) / 2)


def row_cosines(left: Vectors, right: Vectors) -> np.ndarray:
    """[N] of rows that belong together, of [N, D] each; errors as `unit`."""
    left, right = unit(left), unit(right)
    if scipy.sparse.issparse(left):
        return np.asarray(left.multiply(right).sum(axis=1))[:, 0]
    return np.einsum("nd,nd->n", left, right)


def _margin(name: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    if name not in MARGINS:
        raise ValueError(f"margin: expected one of {tuple(MARGINS)}, found {name!r}")
    return MARGINS[name]


Nearest = tuple[np.ndarray, np.ndarray]  # cosines and rows, see `nearest`


def _both_nearest(sources: Vectors, targets: Vectors, k: int) -> tuple[Nearest, Nearest]:
    """The nearest targets of sources, and the nearest sources of targets."""
    smaller = min(sources.shape[0], targets.shape[0])
    if not 1 <= k <= smaller:
        raise ValueError(f"k: expected 1 to {smaller}, the size of the smaller side, found {k}")
    return nearest(sources, targets, k), nearest(targets, sources, k)


def _means(forward: np.ndarray, backward: np.ndarray, margin: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean cosines with what is near, [N] and [M] float64."""
    means = forward.mean(axis=1, dtype=np.float64), backward.mean(axis=1, dtype=np.float64)
    min_mean = min(one.min() for one in means)
    if margin == "ratio" and min_mean < 0:
        raise ValueError(
            "expected mean cosines of at least 0 for margin 'ratio', found "
            f"{min_mean:.3f}: take 'distance'"
        )
    return means


def _best(scores: np.ndarray, rows: np.ndarray) -> Mined:
    """The best of each line's k: its number, and its row."""
    lines = np.arange(len(scores))
    at = scores.argmax(axis=1)
    return Mined(np.stack([lines, rows[lines, at]], axis=1).astype(np.int64), scores[lines, at])


def _sorted(mined: Mined) -> Mined:
    order = np.argsort(-mined.scores, kind="stable")
    return Mined(mined.pairs[order], mined.scores[order])


def _once(mined: Mined) -> Mined:
    """The best pairs of which no two share a sentence."""
    mined = _sorted(mined)
    taken: tuple[set[int], set[int]] = (set(), set())
    kept = []
    for number, (source, target) in enumerate(mined.pairs.tolist()):
        if source not in taken[0] and target not in taken[1]:
            taken[0].add(source)
            taken[1].add(target)
            kept.append(number)
    return Mined(mined.pairs[kept], mined.scores[kept])


@dataclasses.dataclass(frozen=True)
class Quality:
    """Precision and recall of the pairs that score a threshold or more.

    Attributes:
      threshold: in units of the margin.
      precision, recall, f1: 0 to 1; precision of no pairs is 0.
    """

    threshold: float
    precision: float
    recall: float
    f1: float


def best_threshold(mined: Mined, gold: np.ndarray) -> float:
    """The threshold with the highest F1; for a split that is not the one that is judged.

    It lies in the middle between the last score that is taken and the first that is not.

    Args:
      mined: pairs, best first.
      gold: [G, 2] int, the pairs that are translations.

    Raises:
      ValueError: there is nothing to choose from.
    """
    right = are_right(mined, gold)
    if not right.any():
        raise ValueError(
            f"best_threshold: none of {len(right)} mined pairs is among the {len(gold)} that are "
            "translations; any threshold is as bad"
        )
    found = np.cumsum(right)
    f1 = 2 * found / (np.arange(1, len(right) + 1) + len(gold))
    # Equal scores are taken together or not at all.
    last = np.append(mined.scores[1:] < mined.scores[:-1], True)
    at = int(np.argmax(np.where(last, f1, -1.0)))
    after = mined.scores[at + 1] if at + 1 < len(mined.scores) else mined.scores[at]
    return float((mined.scores[at] + after) / 2)


def quality(mined: Mined, gold: np.ndarray, threshold: float) -> Quality:
    """Precision, recall and F1 of the pairs that score `threshold` or more; `gold` as above."""
    right = are_right(mined, gold)
    taken = mined.scores >= threshold
    hits = int((right & taken).sum())
    precision = hits / max(int(taken.sum()), 1)
    recall = hits / len(gold)
    f1 = 2 * hits / (int(taken.sum()) + len(gold))
    return Quality(threshold, precision, recall, f1)


def are_right(mined: Mined, gold: np.ndarray) -> np.ndarray:
    """[n] bool: which pairs are translations; arguments as `best_threshold`."""
    if not len(gold):
        raise ValueError("expected at least one pair that is a translation, found none")
    known = {tuple(pair) for pair in np.asarray(gold).tolist()}
    return np.array([tuple(pair) in known for pair in mined.pairs.tolist()], bool)


def _translation_rows(sources: Vectors, targets: Vectors, rows: np.ndarray | None) -> np.ndarray:
    asked, there = sources.shape[0], targets.shape[0]
    if rows is None:
        if asked != there:
            raise ValueError(
                f"expected as many sources as targets, found {asked} and {there}: say by "
                "`translation_rows` which target belongs to which source"
            )
        return np.arange(asked)
    rows = np.asarray(rows)
    if rows.shape != (asked,) or rows.min() < 0 or rows.max() >= there:
        raise ValueError(
            f"translation_rows: expected {asked} rows from 0 to {there - 1}, found {rows.shape}"
        )
    return rows
