"""Scores of all short spans of a text, as ORQA's and REALM's reader scores them.

    score(start, end) = w . LN(relu(S . h[start] + E . h[end])) + b

(arXiv:1906.00300, section 5; with the layer norm and the biases of the official code.)
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import heads, layers
from t5x_style.interfaces.encoder import TokenEncoderConfig


@dataclasses.dataclass(frozen=True)
class SpanConfig:
    """Attributes:
    widths: W, most tokens of a span; 10 in the official code.
    hidden: of a span's representation; 256.
    layer_norm_eps: of its layer norm; TensorFlow's default.
    """

    widths: int = 10
    hidden: int = 256
    layer_norm_eps: float = 1e-3

    def __post_init__(self) -> None:
        if self.widths < 1 or self.hidden < 1:
            raise ValueError(
                "SpanConfig: expected widths and hidden of at least 1, found "
                f"{self.widths} and {self.hidden}"
            )


class SpanHead(nnx.Module):
    """See the module's docstring.

    Args:
        config: the encoder whose states are read.
        spans: sizes.
        rngs: stream `params`.
    """

    def __init__(self, config: TokenEncoderConfig, spans: SpanConfig, *, rngs: nnx.Rngs) -> None:
        self.widths = spans.widths
        self.ends = heads.projection(config, 2 * spans.hidden, rngs)  # of starts, then of ends
        self.norm = layers.layer_norm(spans.hidden, spans.layer_norm_eps, config.dtype, rngs)
        self.output = layers.Dense(
            {"mlp": spans.hidden},
            {"score": 1},
            stddev=config.kernels,
            dtype=config.dtype,
            rngs=rngs,
        )

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """[R, L, W] float32 from states [R, L, D]: spans from each token, of 1 to W tokens.

        The scores of those that end after the row's end are meaningless.
        """
        start, end = jnp.split(self.ends(hidden), 2, axis=2)

        # A width at a time, computed again for the gradient: [R, L, W, hidden] is never held.
        @jax.checkpoint
        def one(end: jax.Array) -> jax.Array:
            return self.output(self.norm(jax.nn.relu(start + end)))[:, :, 0].astype(jnp.float32)

        scores = [one(jnp.roll(end, -width, axis=1)) for width in range(self.widths)]
        return jnp.stack(scores, axis=2)
