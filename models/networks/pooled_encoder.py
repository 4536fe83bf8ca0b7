"""An encoder with BERT's pooler after its [CLS]: tanh(P . h[CLS] + b), as in LaBSE."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import heads
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.objective import Group


class PooledEncoder(nnx.Module):
    """See the module's docstring.

    Args:
        config: the encoder.
        rngs: stream `params`.
    """

    def __init__(self, config: TokenEncoderConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = config.build(rngs)
        self.pooler = heads.Pooler(config, rngs=rngs)

    @property
    def poolings(self) -> tuple[str, ...]:
        """See `Encoder`."""
        return ("pooler",)

    def pool(self, group: Group, pooling: str, key: jax.Array | None = None) -> jax.Array:
        """See `Encoder`."""
        text = (group["tokens"], group["positions"], group["segment_ids"], group.get("token_types"))
        states = self.encoder.states_at(group["cls_at"], *text, key)
        return self.pooler(states).astype(jnp.float32)
