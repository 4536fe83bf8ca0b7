"""An encoder with BERT's pooler behind its [CLS]: tanh(P . h[CLS] + b), as LaBSE's vectors are."""

from typing import Any

import jax
from flax import nnx

from models.networks import bert, heads


class PooledEncoder(nnx.Module):
    """See the module's docstring.

    Args:
        config: the encoder.
        rngs: stream `params`.
    """

    def __init__(self, config: bert.BertConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = bert.Encoder(config, rngs=rngs)
        self.pooler = heads.Pooler(config, rngs=rngs)

    def states_at(self, *text: Any) -> jax.Array:
        """[B, S, D], pooled; arguments as of `bert.Encoder.states_at`."""
        pooled: jax.Array = self.pooler(self.encoder.states_at(*text))
        return pooled
