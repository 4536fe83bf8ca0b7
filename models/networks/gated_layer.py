"""ModernBERT's layer: norms before each part, rotary positions, a gated feed-forward part.

Letters: B rows, L length, Q query length, K key length, D hidden width.
"""

import jax
from flax import nnx

from models.networks import layers, rotary


class GatedFeedForward(layers.FeedForward):
    """Wo . (activation(Wi . x) * (Wg . x)), GeGLU (arXiv:2002.05202)."""

    def __init__(self, config: layers.BlockConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        self.gate = layers.Dense(
            {"embed": config.hidden}, {"mlp": config.mlp}, **config.projections, rngs=rngs
        )
        self.dropout = layers.Dropout(config.dropout)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """[..., D] -> [..., D]; `key` for dropout."""
        gated = layers.ACTIVATIONS[self.activation](self.wi(x)) * self.gate(x)
        return self.wo(self.dropout(gated, key))


class ModernBertLayer(nnx.Module):
    """One pre-norm layer: a = query + O(attention(LN(query), LN(memory))), y = a + FFN(LN(a)).

    Args:
        config: its sizes.
        theta: base of the rotary angles of `view`.
        first: whether it is an encoder's first, whose states have been through a norm already.
        rngs: stream `params`.
    """

    def __init__(
        self, config: layers.BlockConfig, theta: float, first: bool = False, *, rngs: nnx.Rngs
    ) -> None:
        self.dimension, self.theta = config.hidden // config.heads, theta
        self.attention_norm = None if first else config.norm(rngs)
        self.attention = rotary.RotaryAttention(config, rngs=rngs)
        self.mlp_norm = config.norm(rngs)
        self.mlp = GatedFeedForward(config, rngs=rngs)
        self.dropout = layers.Dropout(config.attention_dropout)

    def __call__(
        self, query: jax.Array, memory: jax.Array, view: rotary.View, key: jax.Array | None = None
    ) -> jax.Array:
        """See `Layer`."""
        inside, after, in_mlp = layers.split_key(key, 3)
        normed = self._normed(query)
        read = normed if memory is query else self._normed(memory)
        a = query + self.dropout(self.attention(normed, read, view, inside), after)
        return a + self.mlp(self.mlp_norm(a), in_mlp)

    def _normed(self, x: jax.Array) -> jax.Array:
        return x if self.attention_norm is None else self.attention_norm(x)

    def segment_mask(self, segment_ids: jax.Array, key: jax.Array | None) -> layers.Visible:
        """See `Layer`."""
        return self.attention.segment_mask(segment_ids, key)

    def view(self, visible: layers.Visible, positions: jax.Array) -> rotary.View:
        """See `Layer`: angles of a layer that sees its whole segment."""
        angles = rotary.angles(positions, self.dimension, self.theta)
        return rotary.View(visible, angles, angles)
