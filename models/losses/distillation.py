"""Learning from a teacher's scores of the passages that came with a query.

Letters: Q queries, G passages that come with a query.
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_style.interfaces.metrics import MetricSum


@dataclasses.dataclass(frozen=True)
class DistillationConfig:
    """A loss of KL(teacher || student) + contrastive_weight x the contrastive loss.

    Attributes:
        contrastive_weight: 0.2 in SimLM; 0 leaves the teacher alone.
        group_size: G, the most passages that come with a query, 2 or more.
    """

    contrastive_weight: float
    group_size: int

    def __post_init__(self) -> None:
        if not self.contrastive_weight >= 0 or self.group_size < 2:
            raise ValueError(
                "DistillationConfig: expected a contrastive_weight of at least 0, and a group_size "
                "of 2 or more (of one passage alone the loss would be 0); found "
                f"{self.contrastive_weight} and {self.group_size}"
            )


def kl_divergence(teacher: jax.Array, student: jax.Array, valid: jax.Array) -> MetricSum:
    """Mean over queries of KL(teacher || student) between softmaxes over a query's passages.

    Args:
        teacher: [Q, G] float32, unscaled scores; no gradient flows to them.
        student: [Q, G] float32, scores divided by the temperature.
        valid: [Q, G] bool; a query with fewer than two passages has nothing to learn: it counts
            nothing.

    Returns:
        In nats.
    """
    log_teacher = _log_softmax(jax.lax.stop_gradient(teacher), valid)
    log_student = _log_softmax(student, valid)
    terms = jnp.where(valid, jnp.exp(log_teacher) * (log_teacher - log_student), 0.0)
    return MetricSum.of(jnp.sum(terms, axis=1), jnp.sum(valid, axis=1) > 1)


def symmetric_kl(one: jax.Array, other: jax.Array, valid: jax.Array) -> MetricSum:
    """Mean over queries of (KL(one || other) + KL(other || one)) / 2; gradients flow to both.

    Args:
        one, other: [Q, G] float32, scores.
        valid: [Q, G] bool, as in `kl_divergence`.
    """
    a, b = _log_softmax(one, valid), _log_softmax(other, valid)
    terms = jnp.where(valid, (jnp.exp(a) - jnp.exp(b)) * (a - b), 0.0)
    return MetricSum.of(jnp.sum(terms, axis=1) / 2, jnp.sum(valid, axis=1) > 1)


def _log_softmax(scores: jax.Array, valid: jax.Array) -> jax.Array:
    """Along the last axis; finite where not valid."""
    return jax.nn.log_softmax(jnp.where(valid, scores, jnp.finfo(jnp.float32).min / 2), axis=1)
