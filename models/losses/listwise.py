"""Losses of a re-ranker, which reads each passage together with its query.

Letters: Q queries, G passages that come with a query, the first of which answers it.
"""

import jax
import jax.numpy as jnp

from models.losses import distillation
from t5x_style.interfaces.metrics import MetricSum


def cross_entropy(scores: jax.Array, valid: jax.Array) -> MetricSum:
    """Mean over queries of -log softmax(scores)[0], in nats.

    Args:
        scores: [Q, G] float32.
        valid: [Q, G] bool; queries without their positive, or without a negative, count nothing.
    """
    lowest = jnp.finfo(jnp.float32).min
    rest = jax.nn.logsumexp(jnp.where(valid, scores, lowest)[:, 1:], axis=1)
    # softplus(rest - s) is the loss without subtracting two nearly equal numbers.
    return MetricSum.of(jax.nn.softplus(rest - scores[:, 0]), counts(valid))


def counts(valid: jax.Array) -> jax.Array:
    """[Q] bool: which queries have their positive and a negative."""
    return valid[:, 0] & jnp.any(valid[:, 1:], axis=1)


def hardest(scores: jax.Array, valid: jax.Array, keep: int) -> jax.Array:
    """The positive and the `keep` - 1 negatives that score highest: [Q, keep] int32.

    SimLM's re-ranker scores many passages without gradient and learns from these
    (`rerank_forward_factor`).

    Args:
        scores: [Q, G] float32.
        valid: [Q, G] bool; what is not valid comes last.
        keep: 2 or more, at most G.
    """
    others = jnp.where(valid, scores, -jnp.inf)[:, 1:]
    _, order = jax.lax.top_k(jax.lax.stop_gradient(others), keep - 1)
    return jnp.concatenate([jnp.zeros((scores.shape[0], 1), order.dtype), order + 1], axis=1)


def r_drop(one: jax.Array, other: jax.Array, valid: jax.Array) -> MetricSum:
    """The loss of two passes with different dropout, which are drawn together.

    Mean over queries of (KL(other || one) + KL(one || other)) / 2 + (CE(one) + CE(other)) / 2
    (arXiv:2106.14448, as in SimLM's code). Gradients flow through both sides of each divergence.

    Args:
        one, other: [Q, G] float32, scores of the two passes.
        valid: [Q, G] bool, as in `cross_entropy`.
    """
    both = (cross_entropy(one, valid), cross_entropy(other, valid))
    divergence = distillation.symmetric_kl(one, other, valid & counts(valid)[:, None])
    return MetricSum((both[0].total + both[1].total) / 2, both[0].weight) + divergence
