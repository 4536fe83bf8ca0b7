"""Number of pairs of each kind in a batch: shares by weight, limited by the examples."""

from collections.abc import Mapping

import numpy as np
from absl import logging


def counts_of(
    sizes: Mapping[str, int],
    found: Mapping[str, str],
    weights: Mapping[str, float],
    batch: int,
) -> dict[str, int]:
    """Pairs of each kind in a batch, in the order of `weights`; kinds without any are left out.

    A batch shows no example twice, so that a kind gives at most as many pairs as it has examples;
    what it lacks goes to the others by their weights. Whatever differs from what was asked for is a
    warning.

    Args:
      sizes: examples of each kind.
      found: what there is of each kind, in words, for messages.
      weights: above 0, of each kind.
      batch: pairs that are wanted.

    Raises:
      ValueError: no kind has an example.
    """
    usable = {name: weight for name, weight in weights.items() if sizes[name]}
    if not usable:
        listed = "; ".join(f"{name}: {found[name]}" for name in weights)
        raise ValueError(
            f"pairs: expected examples of one kind at least, found {listed}. Give PairMixture."
            "weights another kind, a store of longer passages, or labelled pairs"
        )
    for name in weights:
        if name not in usable:
            logging.warning("pairs: no %s, the others get its share: %s", name, found[name])
    total = min(batch, sum(sizes[name] for name in usable))
    if total < batch:
        logging.warning(
            "pairs: a batch has %d pairs instead of %d, since there are no more different ones: %s",
            *(total, batch, "; ".join(f"{name}: {found[name]}" for name in usable)),
        )
    names = list(usable)
    limits = np.array([sizes[name] for name in names])
    counts = _filled(np.array([usable[name] for name in names], float), limits, total)
    asked = _rounded(np.array([usable[name] for name in names], float), total)
    for name, count, share, size in zip(names, counts, asked, limits, strict=True):
        if count < share:
            logging.warning(
                "pairs: a batch has %d pairs of %s instead of %d, all that there are; the others "
                "have more", *(count, name, share),
            )  # fmt: skip
        elif not count:
            logging.warning(
                "pairs: the weight of %s is too small for one of %d pairs: it has none of its %d "
                "examples", *(name, total, size),
            )  # fmt: skip
    return {name: int(count) for name, count in zip(names, counts, strict=True) if count}


def _filled(weights: np.ndarray, limits: np.ndarray, total: int) -> np.ndarray:
    """`total` in shares by weight, none above its limit: int64 [n]."""
    counts = np.zeros(len(weights), np.int64)
    open_ones = np.ones(len(weights), np.bool_)
    while True:
        counts[open_ones] = _rounded(weights[open_ones], total - int(counts[~open_ones].sum()))
        over = open_ones & (counts > limits)
        if not over.any():
            return counts
        counts[over] = limits[over]
        open_ones &= ~over


def _rounded(weights: np.ndarray, total: int) -> np.ndarray:
    """`total` in shares by weight, whole numbers by largest remainders: int64 [n]."""
    exact = total * weights / weights.sum()
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - int(counts.sum())]] += 1
    return counts
