"""Condenser: MLM pre-training in which the last [CLS] state must inform a head on early states.

Gao and Callan 2021, arXiv:2104.08253, with the facts of the official code. The head, a few layers,
reads the encoder's last [CLS] state beside the states of an early layer for all other tokens, and
predicts the masked tokens by the encoder's own MLM head. The early states lack what late layers
found out; it must come through [CLS].

Per segment of a packed row. Letters: B rows, L row length, D hidden width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models import bert, corruption, embedding, heads, layers
from models.losses import cross_entropy
from t5x_style.contract import Contract, Vocabulary
from t5x_style.metrics import Mean
from t5x_style.objective import Batch, Fn, GroupShape, Objective


class Condenser(Objective):
    """See the module's docstring.

    Args:
        config: the encoder.
        embedding_config: what the trained encoder offers; pooling must be `cls`.
        vocabulary: of the tokenizer.
        text: size of the token group `text` of a global batch.
        mask_rate: share of each segment's tokens that is predicted; 0.15 in the paper.
        chunk: positions whose logits exist at a time on a device.
        skip_from: the early layer, 0 being the embeddings; half of the layers in the paper.
        head_layers: 2 in the paper.
        late_mlm: whether the last states predict the masked tokens, too.
        rngs: stream `params`.
    """

    def __init__(
        self,
        config: bert.BertConfig,
        embedding_config: embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        text: GroupShape,
        mask_rate: float,
        chunk: int,
        skip_from: int,
        head_layers: int = 2,
        late_mlm: bool = True,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        embedding.require_fit(config, embedding_config, vocabulary)
        embedding.require_cls(embedding_config, "Condenser")
        if not (0 <= skip_from < config.layers and head_layers >= 1):
            raise ValueError(
                f"Condenser: expected skip_from from 0 to {config.layers - 1}, below the last "
                f"layer, and head_layers of at least 1, found {skip_from} and {head_layers}"
            )
        self.config = config
        self.embedding_config = embedding_config
        self.vocabulary = vocabulary
        self.text = text
        self.mask = corruption.WholeWordMask(mask_rate, (vocabulary.cls, vocabulary.sep))
        self.chunk = chunk
        self.skip_from = skip_from
        self.head_layers = head_layers
        self.late_mlm = late_mlm
        self.encoder = bert.Encoder(config, rngs=rngs)
        self.head = heads.MlmHead(config, rngs=rngs)
        self.decoder = layers.stack(config.block, head_layers, rngs)

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """One bucket: the group `text`."""
        return [{"text": self.text.spec()}]

    def contract(self) -> Contract:
        """See `EmbeddingConfig`."""
        return self.embedding_config.contract(self.config.hidden, self.vocabulary)

    def functions(self) -> dict[str, Fn]:
        """`embed_query` and `embed_passage`: the last [CLS] state of unmasked text."""
        return embedding.functions(self.encoder, self.embedding_config, self.text, self.text)

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Replaces selected tokens; adds `labels` [B, L], the original id there and else -100."""
        text = batch["text"]
        selected = corruption.whole_word_mask(text, self.mask, key)
        tokens, labels = corruption.replace_selected(text, selected, self.vocabulary, key)
        return {**batch, "text": {**text, "tokens": tokens, "labels": labels}}

    def loss(self, batch: Batch, key: jax.Array) -> tuple[Mean, dict[str, Mean]]:
        """The head's mean cross-entropy at `labels` != -100, plus the encoder's if `late_mlm`."""
        text = batch["text"]
        encoder_key, head_key = layers.split_key(key, 2)
        early, late = self.encode(text, encoder_key)
        _, condensed = self.condense(text, early, late, head_key)
        loss, accuracy = self._predict(condensed, text)
        metrics = {"head_loss": loss, "head_accuracy": accuracy}
        if self.late_mlm:
            metrics["late_loss"], metrics["late_accuracy"] = self._predict(late, text)
            loss = loss + metrics["late_loss"]
        return loss, metrics

    def encode(
        self, text: dict[str, jax.Array], key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """The states of the early layer and the last ones, both [B, L, D]."""
        return self.encoder.early_and_late(
            text["tokens"],
            text["positions"],
            text["segment_ids"],
            self.skip_from,
            text.get("token_types"),
            key,
        )

    def condense(
        self,
        text: dict[str, jax.Array],
        early: jax.Array,
        late: jax.Array,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """What the head reads, and its states, both [B, L, D].

        Args:
            text: corrupted group.
            early, late: [B, L, D], from `encode`.
            key: for dropout; None turns it off.
        """
        first = (text["positions"] == 0)[:, :, None]
        memory = jnp.where(first, heads.own_cls(late, text), early)
        visible = self.decoder.attention.within(text["segment_ids"], key)
        return memory, layers.run_stack(
            self.decoder,
            self.head_layers,
            memory,
            visible,
            key=key,
            remat=self.config.remat,
            unroll=self.head_layers,
        )

    def _predict(self, hidden: jax.Array, text: dict[str, jax.Array]) -> tuple[Mean, Mean]:
        """Loss and accuracy through the shared, tied MLM head."""
        budget = self.mask.row_budget(hidden.shape[1], text["example_id"].shape[1])
        picked, labels = cross_entropy.gather_predicted(hidden, text["labels"], budget)
        return cross_entropy.cross_entropy_mean(
            self.head.transform(picked),
            self.encoder.word_table,
            self.head.bias[...],
            labels,
            vocab_size=self.config.vocab_size,
            chunk=self.chunk,
        )
