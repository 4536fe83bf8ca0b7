"""Masked language modelling with whole-word masks, as BERT's later releases were trained.

The loss is the mean cross-entropy over the masked positions of the whole batch.
"""

import jax
from flax import nnx

from models import bert, corruption, embedding
from models.pretraining import TextObjective
from t5x_style.contract import Vocabulary
from t5x_style.metrics import Mean
from t5x_style.objective import Batch, GroupShape


class Mlm(TextObjective):
    """BERT encoder and MLM head over the token group `text`.

    Args:
        config, embedding_config, vocabulary, text, chunk: see `TextObjective`.
        mask_rate: share of each segment's tokens that is predicted (BERT: 0.15).
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
        super().__init__(config, embedding_config, vocabulary, text, chunk, rngs=rngs)
        self.mask = corruption.WholeWordMask(mask_rate, (vocabulary.cls, vocabulary.sep))

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Replaces selected tokens; adds `labels` [B, L], the original id there and else -100."""
        text = corruption.mask_and_label(batch["text"], self.mask, self.vocabulary, key)
        return {**batch, "text": text}

    def loss(self, batch: Batch, key: jax.Array) -> tuple[Mean, dict[str, Mean]]:
        """Mean cross-entropy in nats at `labels` != -100; metric `accuracy`."""
        text = batch["text"]
        hidden = self.encoder(
            text["tokens"], text["positions"], text["segment_ids"], text.get("token_types"), key
        )
        budget = self.mask.row_budget(hidden.shape[1], text["example_id"].shape[1])
        loss, accuracy = self.predict(hidden, text["labels"], budget)
        return loss, {"accuracy": accuracy}
