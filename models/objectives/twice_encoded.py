"""Common part of objectives that encode each text twice, under different dropout.

See `simcse`. Letters: B rows, S segments a row, D hidden width.
"""

import dataclasses

import jax
from flax import nnx

from models.losses import contrastive
from models.networks import text_embedding
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.objective import Batch, GroupShape, ModelFunction, Objective


class TwiceEncoded(Objective):
    """An encoder whose batches are one token group, `text`; subclasses add `loss`.

    Args:
        config: the encoder; it has dropout, or both vectors of a text would be the same.
        embedding_config: pooling, temperature, lengths; similarity `cosine`.
        vocabulary: of the tokenizer.
        text: size of the token group of a global batch.
        contrastive_config: how devices share the loss, see `ContrastiveConfig`.
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
        encode_chunks: int = 1,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_fit(config, embedding_config, vocabulary)
        contrastive.require_both_on_one_device(contrastive_config, text, text)
        _require(config, embedding_config, encode_chunks, type(self).__name__)
        self.config = config
        self.embedding_config = embedding_config
        self.vocabulary = vocabulary
        self.text = text
        self.contrastive_config = contrastive_config
        self.encode_chunks = encode_chunks
        self.encoder = config.build(rngs)
        text_embedding.require_pooling(self.encoder, embedding_config.pooling)

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """One bucket: the group `text`."""
        return [{"text": self.text.spec()}]

    def contract(self) -> Contract:
        """See `Objective`."""
        return self.embedding_config.contract(self.config.hidden, self.vocabulary)

    def vectors(self, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """[B * S, D] float32 before head and normalisation; `key` for dropout."""
        raw = dataclasses.replace(self.embedding_config, normalise=False)
        vectors = text_embedding.embed_in_chunks(
            self.encoder, batch["text"], raw, self.encode_chunks, key
        )
        return vectors.reshape(-1, vectors.shape[-1])

    def functions(self) -> dict[str, ModelFunction]:
        """See `Objective`: of unmasked texts, without the head."""
        return text_embedding.functions(self.encoder, self.embedding_config, self.text, self.text)


def _require(
    config: TokenEncoderConfig,
    embedding: text_embedding.EmbeddingConfig,
    encode_chunks: int,
    name: str,
) -> None:
    text_embedding.require_token_states(config, name)
    if not (config.dropout or config.attention_dropout):
        raise ValueError(
            f"{name}: both vectors of a text are the same without dropout: expected a rate above 0 "
            f"in {type(config).__name__}, found none. Bind its dropout, 0.1 in the paper"
        )
    if embedding.similarity != "cosine" or encode_chunks < 1:
        raise ValueError(
            f"{name}: expected similarity 'cosine' and encode_chunks of 1 or more, found "
            f"{embedding.similarity!r} and {encode_chunks}"
        )
