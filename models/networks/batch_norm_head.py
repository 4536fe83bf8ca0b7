"""A head for contrastive training whose batch normalisation sees the whole batch.

Letters: N vectors of a batch, D hidden width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import layers
from t5x_style.interfaces.encoder import TokenEncoderConfig

_EPSILON = 1e-5


class BatchNormHead(nnx.Module):
    """norm(W2 . relu(scale * norm(W1 . v) + shift)), W1 [D, 2D] and W2 [2D, D] without biases.

    `norm` takes the mean away and divides by the standard deviation, feature by feature, over all
    vectors of the call. The head of Barlow Twins and DiffCSE (arXiv:2204.10298, official code). It
    keeps no running averages: the head is used in training alone, where no such average is read.
    """

    def __init__(self, config: TokenEncoderConfig, *, rngs: nnx.Rngs) -> None:
        narrow, wide = {"embed": config.hidden}, {"mlp": 2 * config.hidden}
        options = {"stddev": config.kernels, "dtype": config.dtype, "rngs": rngs, "bias": False}
        self.first = layers.Dense(narrow, wide, **options)
        self.second = layers.Dense(wide, narrow, **options)
        self.scale = _features(nnx.initializers.ones_init(), 2 * config.hidden, rngs)
        self.shift = _features(nnx.initializers.zeros_init(), 2 * config.hidden, rngs)

    def __call__(self, vectors: jax.Array, valid: jax.Array) -> jax.Array:
        """[N, D] float32.

        Args:
            vectors: [N, D].
            valid: [N] bool, which of them count in means and deviations.
        """
        wide = normalised(self.first(vectors), valid) * self.scale[...] + self.shift[...]
        return normalised(self.second(jax.nn.relu(wide)), valid)


def normalised(features: jax.Array, valid: jax.Array) -> jax.Array:
    """(x - mean) / sqrt(biased variance + 1e-5) of each feature over the valid rows.

    Args:
        features: [N, F].
        valid: [N] bool.

    Returns:
        [N, F] float32; 0 in rows that are not valid.
    """
    count = jnp.maximum(jnp.sum(valid), 1)

    def mean(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(valid[:, None], x, 0.0), axis=0) / count

    # What is not valid may be anything: it becomes 0 before it is used, so that its gradient is 0.
    features = jnp.where(valid[:, None], features.astype(jnp.float32), 0.0)
    centred = features - mean(features)
    scaled = centred * jax.lax.rsqrt(mean(jnp.square(centred)) + _EPSILON)
    return jnp.where(valid[:, None], scaled, 0.0)


def _features(initializer: nnx.Initializer, size: int, rngs: nnx.Rngs) -> nnx.Param:
    values = nnx.with_partitioning(initializer, ("norm",))(rngs.params(), (size,), jnp.float32)
    return nnx.Param(values)
