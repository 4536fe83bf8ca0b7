"""Metrics of whether vectors of different texts differ, and a loss can distinguish them.

All are of a sample of at most `MOST_TEXTS` different texts, computed in float64 on the host. Scores
are compared as the contract says; the other figures are of directions (vectors at unit length).

The bound below which a contrastive loss has almost no gradient. A query has scores s_1 .. s_N of N
candidates, over temperature, with mean m and standard deviation sigma, and s+ is its positive's.

1. log(sum_j exp s_j) >= log N + m by Jensen, so that for every choice of the positive

       loss = log(sum_j exp s_j) - s+  >=  log N - (s+ - m)  >=  log N - (max_j s_j - m).

   log N is the loss where all candidates look alike. What any order of the candidates can gain over
   it, at the present spread, is at most max_j s_j - m: on average at most sigma sqrt(2 ln N) for
   N scores with Gaussian tails, and never more than sigma sqrt(N - 1) (Samuelson 1968).

2. The gradient is as small. With p the softmax of the scores and y the positive's indicator,
   d loss = sum_j (p_j - y_j) ds_j for any change of parameters. Since sum_j (p_j - y_j) = 0, a
   change that all candidates share counts nothing, and sum_j |p_j - y_j| <= 2:

       |d loss| <= 2 max_j |ds_j - mean_k ds_k|.

   What differs between candidates changes in proportion to what differs between their vectors: a
   change of parameters that scales the differences by 1 + e changes the loss by at most about
   e sigma sqrt(2 ln N).

So G = sigma sqrt(2 ln N) nats bounds both, the second up to a factor that depends on the network.
`LEAST_GAIN` is the G below which a start is reported; docs/contrastive.md has measured values.
"""

import math

import numpy as np

MOST_TEXTS = 512
LEAST_GAIN = 0.01  # nats
# From this mean cosine on, vectors count as nearly equal.
NEARLY_EQUAL = 0.99
_SMALLEST = 1e-12  # the length from which on a vector has a direction


def unit(vectors: np.ndarray) -> np.ndarray:
    """`vectors` [N, D] at unit length, float64; vectors of (almost) no length become zero."""
    vectors = vectors.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(lengths > _SMALLEST, vectors / np.maximum(lengths, _SMALLEST), 0.0)


def mean_cosine(vectors: np.ndarray) -> float:
    """The mean cosine of two different rows of `vectors` [N, D], N >= 2: 1 where all are equal."""
    directions = unit(vectors)
    count = len(directions)
    self_cosines = np.square(directions).sum()
    return float((np.square(directions.sum(axis=0)).sum() - self_cosines) / (count * (count - 1)))


def effective_rank(vectors: np.ndarray) -> float:
    """exp of the entropy of the normalised singular values of [N, D] (Roy and Vetterli 2007).

    Of directions, not centred: 1 where all are equal, min(N, D) where they are orthogonal; 0 where
    all vectors are zero.
    """
    values = np.linalg.svd(unit(vectors), compute_uv=False)
    if values.sum() <= _SMALLEST:
        return 0.0
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def alignment(queries: np.ndarray, positives: np.ndarray) -> float:
    """Mean squared distance of directions, row by row of [M, D]; 0 is best (arXiv:2005.10242)."""
    return float(np.square(unit(queries) - unit(positives)).sum(axis=1).mean())


def uniformity(vectors: np.ndarray) -> float:
    """log of the mean of exp(-2 d^2) over pairs of different rows of [N, D], N >= 2, with d the
    distance of directions: 0 where all are equal, -4 where they are orthogonal (arXiv:2005.10242).
    """
    directions = unit(vectors)
    square = np.square(directions).sum(axis=1)
    distances = square[:, None] + square[None, :] - 2 * directions @ directions.T  # [N, N]
    kernel = np.exp(-2 * np.maximum(distances, 0.0))
    count = len(directions)
    return float(np.log((kernel.sum() - np.trace(kernel)) / (count * (count - 1))))


def score_std(
    queries: np.ndarray,
    texts: np.ndarray,
    same: np.ndarray,
    temperature: float,
    similarity: str,
) -> float:
    """Standard deviation of score / temperature over the texts that a query is compared with.

    Deviations are from each query's mean: a softmax over candidates sees nothing else. What is
    averaged over queries is the variance.

    Args:
      queries: [Q, D].
      texts: [N, D], N >= 2.
      same: [Q] int, the row of `texts` that is left out for a query, such as itself or its
        positive; -1 leaves out none.
      temperature: of the contract.
      similarity: 'cosine' compares directions, everything else inner products.
    """
    if similarity == "cosine":
        queries, texts = unit(queries), unit(texts)
    # Without the common part, which all scores of a query share: small deviations keep digits.
    texts = texts.astype(np.float64) - texts.mean(axis=0, dtype=np.float64)
    scores = queries.astype(np.float64) @ texts.T / temperature  # [Q, N]
    counts = np.arange(len(texts))[None, :] != same[:, None]
    size = counts.sum(axis=1)
    mean = np.where(counts, scores, 0.0).sum(axis=1) / size
    variance = np.where(counts, np.square(scores - mean[:, None]), 0.0).sum(axis=1) / size
    return float(np.sqrt(variance.mean()))


def possible_gain(sigma: float, candidates: int) -> float:
    """sigma sqrt(2 ln N): nats that the best order of N candidates gains over log N.

    The bound is derived in the module's docstring.

    Args:
      sigma: standard deviation of a query's scores over temperature.
      candidates: N, at least 1.
    """
    return sigma * math.sqrt(2 * math.log(candidates))
