"""Rotary positions: queries and keys are turned by angles that grow with their position.

    turned(x, p) = x cos(p w) + half(x) sin(p w),    w_i = theta^(-2i / d),  i = 0 .. d/2 - 1

with half(x) = (-x[d/2:], x[:d/2]), so that a product of query and key depends on how far apart they
are (Su et al. 2021, arXiv:2104.09864; halves as in GPT-NeoX).

Letters: B rows, L length, Q query length, K key length, D hidden width, H heads, d head dimension.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.networks import attention, layers, window_attention
from models.networks.attention import Visible


class Angles(NamedTuple):
    """Of each token; cos and sin are [B, L, d/2] float32."""

    cos: jax.Array
    sin: jax.Array


class Either(NamedTuple):
    """Visible positions of long rows, for a layer that sees its whole segment or a window of it."""

    whole: jax.Array  # [] bool
    segments: attention.Segments
    window: window_attention.Window


class View(NamedTuple):
    """Inputs of a layer with rotary positions."""

    visible: Any  # `attention.Visible`, `Either`, or a `Window` that becomes one
    query: Angles
    memory: Angles


def angles(positions: jax.Array, dimension: int, theta: float) -> Angles:
    """Of tokens at `positions` [B, L] int32, for heads of `dimension` d."""
    frequencies = 1.0 / np.float32(theta) ** (
        np.arange(0, dimension, 2).astype(np.float32) / dimension
    )
    turns = positions[..., None].astype(jnp.float32) * frequencies.astype(np.float32)
    return Angles(jnp.cos(turns), jnp.sin(turns))


def turned(x: jax.Array, by: Angles) -> jax.Array:
    """[B, L, H, d] in x's dtype; computed in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = by.cos[:, :, None], by.sin[:, :, None]
    both = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(both, axis=-1).astype(x.dtype)


class RotaryAttention(layers.Attention):
    """Multi-head attention whose queries and keys are turned."""

    def __call__(
        self, query: jax.Array, memory: jax.Array, visible: Any, key: jax.Array | None = None
    ) -> jax.Array:
        """[B, Q, D] from `query` [B, Q, D] and `memory` [B, K, D]; `visible` is a `View`."""
        view: View = visible
        k, v = self.keys_and_values(memory)
        q, k = turned(self.query(query), view.query), turned(k, view.memory)
        return self.out(self._attended(q, k, v, view.visible, key))

    def _attended(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        visible: Visible | Either,
        key: jax.Array | None,
    ) -> jax.Array:
        if not isinstance(visible, Either):
            return attention.attend(q, k, v, visible, self.kind, self.drop(key))
        return jax.lax.cond(
            visible.whole,
            lambda q, k, v: attention.fused(q, k, v, visible.segments, self.kind),
            lambda q, k, v: window_attention.windowed(q, k, v, visible.window),
            q, k, v,
        )  # fmt: skip
