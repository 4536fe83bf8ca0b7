"""Pool the states of tokens to one state per segment, and spread it back to tokens.

Letters: B rows, L row length, S segments per row, D hidden width.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from t5x_style.interfaces.contract import MCLS
from t5x_style.interfaces.encoder import TokenEncoder

POOLINGS = ("cls", "mean", MCLS)  # what `pooled` gives


def pooled(
    encoder: TokenEncoder,
    group: Mapping[str, jax.Array],
    pooling: str,
    key: jax.Array | None = None,
) -> jax.Array:
    """[B, S, D] float32 of an encoder with a state for each token, see `Encoder.pool`."""
    text = (group["tokens"], group["positions"], group["segment_ids"], group.get("token_types"))
    if pooling != "cls":
        return of_states(encoder(*text, key), group, pooling)
    return encoder.states_at(group["cls_at"], *text, key).astype(jnp.float32)


def of_states(hidden: jax.Array, group: Mapping[str, jax.Array], pooling: str) -> jax.Array:
    """[B, S, D] float32 from the states [B, L, D]; `pooling` is one of POOLINGS."""
    segments = group["cls_at"].shape[1]
    if pooling == "mean":
        return pool_mean(hidden, group["segment_ids"], segments)
    if pooling == MCLS:
        return pool_mean(hidden, jnp.where(_is_cls(group), group["segment_ids"], 0), segments)
    return pool_cls(hidden, group["cls_at"]).astype(jnp.float32)


def _is_cls(group: Mapping[str, jax.Array]) -> jax.Array:
    """[B, L]: whether a token is the one that its segment begins with, [CLS]."""
    first = jnp.take_along_axis(group["tokens"], group["cls_at"], axis=1)  # [B, S]
    segment = jnp.maximum(group["segment_ids"] - 1, 0)
    return group["tokens"] == jnp.take_along_axis(first, segment, axis=1)


def pool_cls(hidden: jax.Array, cls_at: jax.Array) -> jax.Array:
    """The state at each segment's [CLS]: [B, S, D] from `hidden` [B, L, D] and `cls_at` [B, S]."""
    return jnp.take_along_axis(hidden, cls_at[:, :, None], axis=1)


def own_cls(hidden: jax.Array, group: Mapping[str, jax.Array]) -> jax.Array:
    """[B, L, D]: for each token the state at its own segment's [CLS]; at padding the first's.

    Args:
        hidden: [B, L, D].
        group: `cls_at` [B, S] and `segment_ids` [B, L] count.
    """
    segment = jnp.maximum(group["segment_ids"] - 1, 0)
    return jnp.take_along_axis(pool_cls(hidden, group["cls_at"]), segment[:, :, None], axis=1)


def behind_cls(hidden: jax.Array, others: jax.Array, group: Mapping[str, jax.Array]) -> jax.Array:
    """[B, L, D]: each segment's [CLS] of `hidden` at its first place, `others` elsewhere.

    Args:
        hidden, others: [B, L, D].
        group: `positions` and `segment_ids` [B, L] and `cls_at` [B, S] count.
    """
    first = (group["positions"] == 0)[:, :, None]
    return jnp.where(first, own_cls(hidden, group), others)


def pool_mean(hidden: jax.Array, segment_ids: jax.Array, segments: int) -> jax.Array:
    """The mean state of each segment, [CLS] and [SEP] included.

    Args:
        hidden: [B, L, D].
        segment_ids: [B, L] int32, 0 = padding, s + 1 = segment s.
        segments: S.

    Returns:
        [B, S, D] float32; zeros for a segment without tokens.
    """
    ids = jnp.arange(1, segments + 1, dtype=segment_ids.dtype)
    member = (segment_ids[:, None, :] == ids[None, :, None]).astype(jnp.float32)  # [B, S, L]
    total = jnp.einsum("bsl,bld->bsd", member, hidden.astype(jnp.float32))
    return total / jnp.maximum(member.sum(-1, keepdims=True), 1.0)
