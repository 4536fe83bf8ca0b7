"""Self-attention inside segments for CPUs: a few heads at a time, whose scores fit into the cache.

    forward    S = QK^T / sqrt(d), O = softmax(S) V; of S, the rows' maxima m and sums l are kept
    backward   P = exp(S - m) / l, computed again;  dV = P^T dO
               dS = P (dO V^T - sum(dO O));  dQ = dS K / sqrt(d);  dK = dS^T Q / sqrt(d)

The backward pass is FlashAttention's (Dao et al. 2022, arXiv:2205.14135, appendix B); a group has
all keys of its queries, so that no softmax is put together from parts.  docs/attention.md has
figures.

Letters: B rows, L length, H heads, d head dimension, G groups of h heads.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

SCORES = 2**18  # of a group of heads, at most, unless one head has more: 1 MiB in float32
WORTH_IT = 2**20  # scores of a device; fewer are faster at once, by `attention.plain`


class _Kept(NamedTuple):
    """For the backward pass: arguments, and by groups of heads the result and about the scores."""

    query: jax.Array  # [B, L, H, d], as key and value
    key: jax.Array
    value: jax.Array
    ids: jax.Array
    out: jax.Array  # [B, G, h, L, d]
    highest: jax.Array  # [B, G, h, L] float32
    total: jax.Array


@jax.custom_vjp
def attend(query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array) -> jax.Array:
    """softmax(QK^T / sqrt(d)) V within segments, in memory of L x d and the scores of a group.

    Args:
        query, key, value: [B, L, H, d].
        ids: [B, L] int32, the segments; 0 = padding, which sees all keys alike, as in
            `attention.plain`.

    Returns:
        [B, L, H, d] in the dtype of `value`.
    """
    return _forward(query, key, value, ids)[0]


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array
) -> tuple[jax.Array, _Kept]:
    def row(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        *heads, ids = arrays
        visible = _visible(ids)

        def group(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            q, k, v = arrays
            scores = _scores(q, k, visible)
            highest = jnp.max(scores, axis=-1)
            weights = jnp.exp(scores - highest[..., None])
            total = jnp.sum(weights, axis=-1)
            found = jnp.einsum(
                "hqk,hkd->hqd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
            )
            return (found / total[..., None]).astype(v.dtype), highest, total

        return jax.lax.map(group, tuple(heads))

    found = jax.lax.map(row, (_grouped(query), _grouped(key), _grouped(value), ids))
    return _whole(found[0]), _Kept(query, key, value, ids, *found)


def _backward(kept: _Kept, gradient: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    gradient = _grouped(gradient)
    wide = gradient.astype(jnp.float32)
    inside = jnp.sum(wide * kept.out.astype(jnp.float32), axis=-1)  # [B, G, h, L]

    def row(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        *heads, ids = arrays
        visible = _visible(ids)

        def group(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            q, k, v, g, inside, highest, total = arrays
            weights = jnp.exp(_scores(q, k, visible) - highest[..., None]) / total[..., None]
            of_weights = jnp.einsum("hqd,hkd->hqk", g, v, preferred_element_type=jnp.float32)
            of_scores = weights * (of_weights - inside[..., None])
            of_scores = jnp.where(visible, of_scores, 0.0).astype(q.dtype)
            return (
                jnp.einsum("hqk,hkd->hqd", of_scores, k),
                jnp.einsum("hqk,hqd->hkd", of_scores, q),
                jnp.einsum("hqk,hqd->hkd", weights.astype(g.dtype), g),
            )

        return jax.lax.map(group, tuple(heads))

    heads = (_grouped(kept.query), _grouped(kept.key), _grouped(kept.value))
    arrays = (*heads, gradient, inside, kept.highest, kept.total, kept.ids)
    q, k, v = (_whole(one) for one in jax.lax.map(row, arrays))
    scale = 1 / math.sqrt(kept.query.shape[-1])
    return q * scale, k * scale, v, None


attend.defvjp(_forward, _backward)


def _scores(query: jax.Array, key: jax.Array, visible: jax.Array) -> jax.Array:
    """[h, L, L] float32 of [h, L, d]; the lowest number where a key is not visible [L, L]."""
    scores = jnp.einsum("hqd,hkd->hqk", query, key, preferred_element_type=jnp.float32)
    scores = scores / math.sqrt(query.shape[-1])
    return jnp.where(visible, scores, jnp.finfo(jnp.float32).min)


def _visible(ids: jax.Array) -> jax.Array:
    """[L, L] bool of the segments [L]."""
    return (ids[:, None] == ids[None, :]) & (ids[None, :] > 0)


def _grouped(heads: jax.Array) -> jax.Array:
    """[B, G, h, L, d] of [B, L, H, d]: heads in equal groups, two at least where there are two.

    With one group XLA leaves the inner loop out, and is slower.
    """
    rows, length, count, dimension = heads.shape
    most = max(min(SCORES // length**2, count // 2), 1)
    size = next(size for size in range(most, 0, -1) if count % size == 0)
    return heads.swapaxes(1, 2).reshape(rows, count // size, size, length, dimension)


def _whole(groups: jax.Array) -> jax.Array:
    """[B, L, H, d] of [B, G, h, L, d]."""
    rows, count, size, length, dimension = groups.shape
    return groups.reshape(rows, count * size, length, dimension).swapaxes(1, 2)
