"""Self-attention to the tokens near by: a mask, or for long rows in blocks that never hold [L, L].

Letters: B rows, L length, H heads, d head dimension, W tokens of a block, N = L / W blocks.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

BLOCK = 128  # tokens; a window reaches at most so far


class Window(NamedTuple):
    """Window: tokens see those of their segment that are at most `reach` before or after them."""

    segment_ids: jax.Array  # [B, L] int32, 0 = padding
    reach: int


def near(query_positions: jax.Array, key_positions: jax.Array, reach: int) -> jax.Array:
    """[B, Q, K] bool: whether positions [B, Q] and [B, K] of one segment are near."""
    return jnp.abs(query_positions[:, :, None] - key_positions[:, None, :]) <= reach


def windowed(query: jax.Array, key: jax.Array, value: jax.Array, window: Window) -> jax.Array:
    """softmax(QK^T / sqrt(d)) V within windows, in time and memory of L x 3 W.

    A block of queries sees its own block of keys and the two next to it. Scores are computed again
    for the gradient.

    Args:
        query, key, value: [B, L, H, d]; L is a multiple of `BLOCK`.
        window: `reach` is at most `BLOCK`.

    Returns:
        [B, L, H, d]; at padding finite and meaningless.
    """
    rows, length, heads, dimension = query.shape
    blocks = (rows, length // BLOCK, BLOCK)

    @jax.checkpoint
    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        q = query.reshape(*blocks, heads, dimension)
        k, v = (_with_neighbours(x.reshape(*blocks, heads, dimension)) for x in (key, value))
        scores = jnp.einsum("bnqhd,bnkhd->bnhqk", q, k, preferred_element_type=jnp.float32)
        scores = scores / math.sqrt(dimension)
        scores = jnp.where(_seen(window, blocks), scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        return jnp.einsum("bnhqk,bnkhd->bnqhd", weights, v).reshape(query.shape)

    return attend(query, key, value)


def _with_neighbours(x: jax.Array) -> jax.Array:
    """[B, N, 3 W, ...] of [B, N, W, ...]: the blocks before, here and after; 0 at the ends."""
    padding = [(0, 0)] * x.ndim
    padding[1] = (1, 1)
    wide = jnp.pad(x, padding)
    return jnp.concatenate([wide[:, :-2], x, wide[:, 2:]], axis=2)


def _seen(window: Window, blocks: tuple[int, int, int]) -> jax.Array:
    """[B, N, 1, W, 3 W] bool."""
    ids = window.segment_ids.reshape(blocks)
    others = _with_neighbours(ids)  # 0 at the ends, as padding
    apart = jnp.arange(3 * BLOCK)[None, :] - BLOCK - jnp.arange(BLOCK)[:, None]
    same = (ids[..., :, None] == others[..., None, :]) & (others[..., None, :] > 0)
    return (same & (jnp.abs(apart) <= window.reach))[:, :, None]
