"""Detect replaced tokens of a text: an encoder that also reads a vector of the original text.

The conditional discriminator of DiffCSE (Chuang et al. 2022, arXiv:2204.10298, section 3).

Letters: B rows, L row length, S segments a row, D hidden width.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import heads, layers, token_encoder
from t5x_style.interfaces.encoder import TokenEncoderConfig


class Discriminator(nnx.Module):
    """An encoder of the sizes of `config`, and a classifier of each token.

    Args:
        config: sizes.
        rngs: stream `params`.
    """

    def __init__(self, config: TokenEncoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        encoder = config.build(rngs)
        assert isinstance(encoder, token_encoder.TokenEncoder)  # all that have states of tokens
        self.encoder = encoder
        self.head = heads.score_head(config, 2, rngs=rngs)

    def __call__(
        self,
        tokens: jax.Array,
        vectors: jax.Array,
        group: Mapping[str, jax.Array],
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, 2] float32, logits of 'kept' and 'replaced'.

        Args:
            tokens: [B, L] int32, some of them replaced.
            vectors: [B, S, D], of the original texts; the first layer reads them in place of what
                is embedded of [CLS].
            group: `positions` and `segment_ids` [B, L] count, and `token_types`, if any.
            key: for dropout; None turns it off.
        """
        embedding_key, layers_key = layers.split_key(key, 2)
        positions, segments = group["positions"], group["segment_ids"]
        embedded = self.encoder.embed(tokens, positions, group.get("token_types"), embedding_key)
        segment = jnp.maximum(segments - 1, 0)
        own = jnp.take_along_axis(vectors, segment[:, :, None], axis=1).astype(embedded.dtype)
        first = ((positions == 0) & (segments > 0))[:, :, None]
        view = self.encoder.view(positions, segments, layers_key)
        hidden = jnp.where(first, own, embedded)
        hidden = self.encoder.run(hidden, view, 0, self.config.layers, layers_key)
        return self.head(self.encoder.finish(hidden)).astype(jnp.float32)
