"""The losses of M3 (arXiv:2402.03216, section 3.3, and its official code), from sums over a batch.

Every kind of representation scores a query's positive against the other passages of the batch; so
does the weighted sum of their scores; from some step on each kind learns the sum's softmax, too.

Letters: Q queries, H kinds, G passages that come with a query, the positive first.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from models.losses import joint_scores

_NONE = jnp.finfo(jnp.float32).min / 2  # a score of nothing; twice as low is finite, too
TEACHERS = ("kl", "m3_kd")


@dataclasses.dataclass(frozen=True)
class JointLossConfig:
    """Settings: losses over the batch, over all kinds together, and from a teacher.

    Attributes:
        weights: kind -> weight of its losses; 0.1 of sparse in the official code, 1 of others.
            These kinds there are.
        in_sum: kind -> weight of its score in the sum; 0.3 of sparse there, 1 of others. Further
            kinds in it count for nothing.
        batch_negatives: whether passages of other queries are negatives, too.
        teacher: how passages' `teacher_score` counts. 'kl' adds, to each kind's loss and the
            sum's, the cross-entropy to the teacher's softmax over the query's own passages. 'm3_kd'
            replaces these losses: each own passage is the positive in turn, with the teacher's
            share as its weight, and those before it are left out. A query whose passages the
            teacher has not seen learns without it. None: there is no teacher.
    """

    weights: Mapping[str, float]
    in_sum: Mapping[str, float]
    batch_negatives: bool = True
    teacher: str | None = None

    def __post_init__(self) -> None:
        if not self.weights or not set(self.weights) <= set(self.in_sum):
            raise ValueError(
                "JointLossConfig: expected at least one kind in weights (KIND_WEIGHTS), and each "
                f"of them in in_sum (KINDS_IN_SUM), found {list(self.weights)} and "
                f"{list(self.in_sum)}"
            )
        wrong = [w for w in (*self.weights.values(), *self.in_sum.values()) if not w >= 0]
        if wrong or not any(self.weights.values()):
            raise ValueError(
                "JointLossConfig: expected weights of at least 0, and one above it, found "
                f"{dict(self.weights)} and {dict(self.in_sum)}"
            )
        if self.teacher is not None and self.teacher not in TEACHERS:
            raise ValueError(
                f"JointLossConfig.teacher: expected one of {TEACHERS} or None, "
                f"found {self.teacher!r}"
            )


class Scores(NamedTuple):
    """Of each query, all divided by the temperature; X kinds, or kinds and their sum.

    Attributes:
        own: [Q, X, G] float32, of the passages that came with it.
        kept: [Q, G] bool, which of them the loss compares: the positive, and its negatives.
        others: [Q, X] float32, log of the sum of exp(score) over the passages of other queries;
            about -1.7e38 or less where there are none.
        means: [Q, H] float32, see `joint_scores.Sums`.
        teacher: [Q, G] float32, -inf where it has not seen a passage; or None.
    """

    own: jax.Array
    kept: jax.Array
    others: jax.Array
    means: jax.Array
    teacher: jax.Array | None


class ByKind(NamedTuple):
    """Attributes:
    contrastive: [Q, X] float32, in nats, of each kind, and of their sum where there are several.
    distilled: [Q, H] float32, cross-entropy of each kind to the sum's softmax; the sum learns
        nothing from it.
    """

    contrastive: jax.Array
    distilled: jax.Array


def scores_of(
    sums: joint_scores.Sums, kept: jax.Array, teacher: jax.Array | None, in_sum: tuple[float, ...]
) -> Scores:
    """From the sums of Q queries: arrays [Q, ...] in place of [B, S, ...].

    Args:
        sums: see `joint_scores.Sums`.
        kept, teacher: see `Scores`.
        in_sum: H, the weight of each kind in the sum of all.
    """
    if len(in_sum) == 1:
        return Scores(sums.own, kept, sums.others[:, :1], sums.means, teacher)
    of_sum = jnp.einsum("h,qhg->qg", jnp.asarray(in_sum), sums.own, precision="highest")
    own = jnp.concatenate([sums.own, of_sum[:, None]], axis=1)
    return Scores(own, kept, sums.others, sums.means, teacher)


def by_kind(scores: Scores, config: JointLossConfig) -> ByKind:
    """The losses of each query.

    With s of the kind, p+ the positive and n all kept passages: contrastive is
    -log( e^s(p+) / sum_n e^s(n) ), and distilled is -sum_n P(n) log softmax(s)(n), with P the
    softmax of the sum's scores without gradient. A query without passages has none: NaN-free
    numbers that the caller leaves out.
    """
    own = jnp.where(scores.kept[:, None], scores.own, _NONE)
    others = scores.others if config.batch_negatives else jnp.full_like(scores.others, 2 * _NONE)
    alone = scores.own.shape[1] == scores.means.shape[1]
    contrastive = _contrastive(own, others, scores, config)
    distilled = jnp.zeros_like(scores.means) if alone else _distilled(own, others, scores)
    return ByKind(contrastive, distilled)


def combined(losses: ByKind, weights: jax.Array, distilling: jax.Array | bool) -> jax.Array:
    """[Q] float32: (mean of the contrastive losses + mean of the distilled ones) / 2, weighted.

    Args:
        losses: of each query.
        weights: [H], of the kinds; the sum's is 1. Means divide by the number of losses, not by
            their weights, as the official code does.
        distilling: whether the distilled ones count; else the mean of the others is not halved.
    """
    count = losses.contrastive.shape[1]
    all_weights = jnp.concatenate([weights, jnp.ones(count - len(weights))])
    plain = losses.contrastive @ all_weights / count
    if count == len(weights):
        return plain
    taught = losses.distilled @ weights / len(weights)
    return jnp.where(distilling, (plain + taught) / 2, plain)


def _contrastive(
    own: jax.Array, others: jax.Array, scores: Scores, config: JointLossConfig
) -> jax.Array:
    """[Q, X]"""
    if scores.teacher is None or config.teacher is None:
        return _first_against(own, others)
    seen = scores.kept & jnp.isfinite(scores.teacher)
    shares = _shares(scores.teacher, seen)[:, None]  # [Q, 1, G]
    if config.teacher == "kl":
        log_softmax = own - jax.nn.logsumexp(own, axis=-1, keepdims=True)
        return _first_against(own, others) - jnp.sum(_finite(shares, log_softmax), axis=-1)
    in_turn = [_first_against(own[..., g:], others) for g in range(own.shape[-1])]
    taught = jnp.sum(_finite(shares, jnp.stack(in_turn, axis=-1)), axis=-1)
    return jnp.where(jnp.any(seen, axis=-1)[:, None], taught, in_turn[0])


def _first_against(own: jax.Array, others: jax.Array) -> jax.Array:
    """[Q, X]: -log of the first own passage's share. No difference of two large numbers."""
    first = own[..., 0]
    if own.shape[-1] > 1:
        others = jnp.logaddexp(others, jax.nn.logsumexp(own[..., 1:], axis=-1))
    return jax.nn.softplus(others - first)


def _distilled(own: jax.Array, others: jax.Array, scores: Scores) -> jax.Array:
    """[Q, H]: log sum of e^s over all passages, less the mean of s under the sum's softmax."""
    log_total = jnp.logaddexp(others, jax.nn.logsumexp(own, axis=-1))  # [Q, X]
    of_sum = jax.lax.stop_gradient(log_total[:, -1])
    of_others = jnp.exp(jax.lax.stop_gradient(others[:, -1]) - of_sum)[:, None]
    shares = jnp.exp(jax.lax.stop_gradient(own[:, -1]) - of_sum[:, None])[:, None]  # [Q, 1, G]
    mean = of_others * scores.means + jnp.sum(_finite(shares, own[:, :-1]), axis=-1)
    return log_total[:, :-1] - mean


def _shares(teacher: jax.Array, seen: jax.Array) -> jax.Array:
    """[Q, G]: the teacher's softmax over the passages that it has seen, 0 of others."""
    masked = jnp.where(seen, jax.lax.stop_gradient(teacher), _NONE)
    return jnp.where(seen, jax.nn.softmax(masked, axis=-1), 0.0)


def _finite(shares: jax.Array, values: jax.Array) -> jax.Array:
    """shares x values, 0 where the share is 0, whatever the value."""
    return jnp.where(shares > 0, shares * jnp.where(shares > 0, values, 0.0), 0.0)
