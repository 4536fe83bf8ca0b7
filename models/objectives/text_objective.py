"""Common part of objectives over packed text: an encoder and its tied MLM head."""

from collections.abc import Mapping

import jax
from flax import nnx

from models.networks import heads, stacks, text_embedding
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import Layer, TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import GroupShape, ModelFunction, Objective


class TextObjective(Objective):
    """An objective whose batches are one token group, `text`; subclasses add `corrupt` and `loss`.

    Args:
        config: the encoder.
        embedding_config: how its states become vectors.
        vocabulary: of the tokenizer.
        text: size of the token group of a global batch.
        chunk: positions whose logits exist at a time on a device; memory is chunk x vocabulary x
            4 bytes.
        rngs: stream `params`.
    """

    def __init__(
        self,
        config: TokenEncoderConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        text: GroupShape,
        chunk: int,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_token_states(config, type(self).__name__)
        text_embedding.require_fit(config, embedding_config, vocabulary)
        self.config = config
        self.embedding_config = embedding_config
        self.vocabulary = vocabulary
        self.text = text
        self.chunk = chunk
        self.encoder = config.build(rngs)
        self.head = heads.MlmHead(config, rngs=rngs)

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """One bucket: the group `text`."""
        return [{"text": self.text.spec()}]

    def contract(self) -> Contract:
        """See `EmbeddingConfig`."""
        return self.embedding_config.contract(self.config.hidden, self.vocabulary)

    def functions(self) -> dict[str, ModelFunction]:
        """`embed_query` and `embed_passage`: of unmasked text."""
        return text_embedding.functions(self.encoder, self.embedding_config, self.text, self.text)

    def encode(self, text: Mapping[str, jax.Array], key: jax.Array | None = None) -> jax.Array:
        """[B, L, D]: the encoder's states of `encoder_tokens`, its own copy of the text.

        Args:
            text: corrupted group, in which `tokens` stayed clean.
            key: for dropout; None turns it off.
        """
        return self.encoder(
            text["encoder_tokens"],
            text["positions"],
            text["segment_ids"],
            text.get("token_types"),
            key,
        )

    def predict(
        self, hidden: jax.Array, labels: jax.Array, budget: int | None = None
    ) -> tuple[MetricSum, MetricSum]:
        """`heads.predict` with the own encoder's table and head."""
        return heads.predict(self.encoder, self.head, hidden, labels, budget, self.chunk)

    def read(
        self,
        stack: Layer,
        count: int,
        memory: jax.Array,
        text: Mapping[str, jax.Array],
        key: jax.Array | None,
    ) -> jax.Array:
        """[B, L, D]: `memory` [B, L, D] through a few layers, all of a segment visible to itself.

        Args:
            stack: `count` layers, see `TokenEncoderConfig.stack`.
            memory: what they read.
            text: the group, whose `segment_ids` [B, L] count.
            key: for dropout; None turns it off.
        """
        visible = stack.segment_mask(text["segment_ids"], key)
        view = stack.view(visible, text["positions"])
        return stacks.run_stack(
            stack, count, memory, view, key=key, remat=self.config.remat, unroll=count
        )
