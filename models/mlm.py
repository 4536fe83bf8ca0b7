"""Masked language modelling with whole-word masks, as BERT's later releases were trained.

The loss is the mean cross-entropy over the masked positions of the whole batch.
"""

import jax
from flax import nnx

from models import bert, corruption, embedding, heads
from models.losses import cross_entropy
from t5x_style.contract import Contract, Vocabulary
from t5x_style.metrics import Mean
from t5x_style.objective import Batch, Fn, GroupShape, Objective


class Mlm(Objective):
    """BERT encoder and MLM head over the token group `text`.

    Args:
        config: the encoder.
        embedding_config: how its states become vectors, for evaluation in the loop.
        vocabulary: of the tokenizer.
        text: size of the token group of a global batch.
        mask_rate: share of each segment's tokens that is predicted (BERT: 0.15).
        chunk: positions whose logits exist at a time on a device.
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
        *,
        rngs: nnx.Rngs,
    ) -> None:
        embedding.require_fit(config, embedding_config, vocabulary)
        self.config = config
        self.embedding_config = embedding_config
        self.text = text
        self.vocabulary = vocabulary
        self.mask = corruption.WholeWordMask(mask_rate, (vocabulary.cls, vocabulary.sep))
        self.chunk = chunk
        self.encoder = bert.Encoder(config, rngs=rngs)
        self.head = heads.MlmHead(config, rngs=rngs)

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        return [{"text": self.text.spec()}]

    def contract(self) -> Contract:
        """See `Objective`."""
        return self.embedding_config.contract(self.config.hidden, self.vocabulary)

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Replaces selected tokens; adds `labels` [B, L], the original id there and else -100."""
        text = batch["text"]
        selected = corruption.whole_word_mask(text, self.mask, key)
        tokens, labels = corruption.replace_selected(text, selected, self.vocabulary, key)
        return {**batch, "text": {**text, "tokens": tokens, "labels": labels}}

    def loss(self, batch: Batch, key: jax.Array) -> tuple[Mean, dict[str, Mean]]:
        """Mean cross-entropy in nats at `labels` != -100; metric `accuracy`."""
        text = batch["text"]
        hidden = self.encoder(
            text["tokens"], text["positions"], text["segment_ids"], text.get("token_types"), key
        )
        segments = text["example_id"].shape[1]
        budget = self.mask.row_budget(hidden.shape[1], segments)
        picked, labels = cross_entropy.gather_predicted(hidden, text["labels"], budget)
        loss, accuracy = cross_entropy.cross_entropy_mean(
            self.head.transform(picked),
            self.encoder.word_table,
            self.head.bias[...],
            labels,
            vocab_size=self.config.vocab_size,
            chunk=self.chunk,
        )
        return loss, {"accuracy": accuracy}

    def functions(self) -> dict[str, Fn]:
        """See `Objective`."""
        return embedding.functions(self.encoder, self.embedding_config, self.text, self.text)
