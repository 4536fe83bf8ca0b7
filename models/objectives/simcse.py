"""SimCSE without labels: a text and itself under other dropout are a pair.

Gao et al. 2021, arXiv:2104.08821, section 3. Each text of the batch is encoded twice; with z, z' of
unit length, the loss of text i is

    -log( exp(z_i . z'_i / t) / sum_j exp(z_i . z'_j / t) )

over all texts j of the global batch. A head, tanh(P . v + b), follows the vectors in training
alone, as in the paper's best setting.

Letters: B rows, S segments a row, D hidden width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import contrastive, two_views
from models.networks import heads, layers, text_embedding
from models.objectives.twice_encoded import TwiceEncoded
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape


class SimCSE(TwiceEncoded):
    """See the module's docstring.

    Args:
        config, embedding_config, vocabulary, text, contrastive_config, encode_chunks: see
            `TwiceEncoded`; the paper's temperature is 0.05.
        training_head: whether a head follows the vectors in training.
        rngs: stream `params`.
    """

    def __init__(
        self,
        config: TokenEncoderConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        text: GroupShape,
        contrastive_config: contrastive.ContrastiveConfig,
        training_head: bool = True,
        encode_chunks: int = 1,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            config, embedding_config, vocabulary, text, contrastive_config, encode_chunks, rngs=rngs
        )
        self.pooler = heads.Pooler(config, rngs=rngs) if training_head else None

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """See the module's docstring and `two_views.between_views`."""
        one, other = (self.embed(batch, view) for view in layers.split_key(key, 2))
        return two_views.between_views(
            one,
            other,
            batch["text"],
            self.embedding_config.temperature,
            self.contrastive_config,
        )

    def embed(self, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """[B * S, D] float32 of unit length, as the loss compares them; `key` for dropout."""
        vectors = self.vectors(batch, key)
        if self.pooler is not None:
            vectors = self.pooler(vectors).astype(jnp.float32)
        return text_embedding.unit(vectors)
