"""SimCSE without labels: a text and itself under other dropout are a pair.

Gao et al. 2021, arXiv:2104.08821, section 3. Each text of the batch is encoded twice; with z, z' of
unit length, the loss of text i is

    -log( exp(z_i . z'_i / t) / sum_j exp(z_i . z'_j / t) )

over all texts j of the global batch. A head, tanh(P . v + b), follows the vectors in training
alone, as in the paper's best setting.

Letters: B rows, S segments a row, D hidden width.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import contrastive, two_views
from models.networks import heads, layers, text_embedding
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape, ModelFunction, Objective


class SimCSE(Objective):
    """See the module's docstring.

    Args:
        config: the encoder; it has dropout, or both vectors of a text would be the same.
        embedding_config: pooling, temperature (0.05 in the paper), lengths; similarity `cosine`.
        vocabulary: of the tokenizer.
        text: size of the token group of a global batch.
        contrastive_config: how devices share the loss, see `ContrastiveConfig`.
        training_head: whether a head follows the vectors in training.
        encode_chunks: pieces in which a batch is encoded, one after another, to save memory.
        rngs: stream `params`.

    Raises:
        ValueError: an encoder without dropout, another similarity, or lengths that do not fit.
    """

    requires_full_batch = True

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
        text_embedding.require_fit(config, embedding_config, vocabulary)
        contrastive.require_both_on_one_device(contrastive_config, text, text)
        _require_simcse(config, embedding_config, encode_chunks)
        self.config = config
        self.embedding_config = embedding_config
        self.vocabulary = vocabulary
        self.text = text
        self.contrastive_config = contrastive_config
        self.encode_chunks = encode_chunks
        self.encoder = config.build(rngs)
        text_embedding.require_pooling(self.encoder, embedding_config.pooling)
        self.pooler = heads.Pooler(config, rngs=rngs) if training_head else None

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """One bucket: the group `text`."""
        return [{"text": self.text.spec()}]

    def contract(self) -> Contract:
        """See `Objective`."""
        return self.embedding_config.contract(self.config.hidden, self.vocabulary)

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

    def vectors(self, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """[B * S, D] float32 before head and normalisation; `key` for dropout."""
        raw = dataclasses.replace(self.embedding_config, normalise=False)
        vectors = text_embedding.embed_in_chunks(
            self.encoder, batch["text"], raw, self.encode_chunks, key
        )
        return vectors.reshape(-1, vectors.shape[-1])

    def functions(self) -> dict[str, ModelFunction]:
        """See `Objective`: of texts as they are, without the head."""
        return text_embedding.functions(self.encoder, self.embedding_config, self.text, self.text)


def _require_simcse(
    config: TokenEncoderConfig, embedding: text_embedding.EmbeddingConfig, encode_chunks: int
) -> None:
    text_embedding.require_token_states(config, "SimCSE")
    if not (config.dropout or config.attention_dropout):
        raise ValueError(
            "SimCSE: both vectors of a text are the same without dropout: expected a rate above 0 "
            f"in {type(config).__name__}, found none. Bind its dropout, 0.1 in the paper"
        )
    if embedding.similarity != "cosine" or encode_chunks < 1:
        raise ValueError(
            "SimCSE: expected similarity 'cosine' and encode_chunks of 1 or more, found "
            f"{embedding.similarity!r} and {encode_chunks}"
        )
