"""Masked language modelling with whole-word masks, as BERT's later releases were trained.

The loss is the mean cross-entropy over the masked positions of the whole batch. Where a segment is
a sentence and its translation, "[CLS] a [SEP] b [SEP]", this is TLM (Conneau and Lample 2019,
arXiv:1901.07291): what is hidden in one language can be read in the other.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.corruption import masking
from models.networks import text_embedding
from models.objectives.text_objective import TextObjective
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape


class Mlm(TextObjective):
    """BERT encoder and MLM head over the token group `text`.

    Args:
        config, embedding_config, vocabulary, text, chunk: see `TextObjective`.
        mask_rate: share of each segment's tokens that is predicted (BERT: 0.15; LaBSE: 0.2).
        max_predictions: tokens of a segment that are, at most (LaBSE: 80).
        restart_positions: whether positions restart at 1 after a segment's first [SEP], so
            that both sentences of a translation have those that they have alone after [CLS].
        rngs: stream `params`.
    """

    def __init__(
        self,
        config: TokenEncoderConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        text: GroupShape,
        mask_rate: float,
        chunk: int,
        max_predictions: int = masking.MAX_PREDICTIONS,
        restart_positions: bool = False,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(config, embedding_config, vocabulary, text, chunk, rngs=rngs)
        outside = (vocabulary.cls, vocabulary.sep)
        self.mask = masking.WholeWordMask(mask_rate, outside, max_predictions)
        self.restart_positions = restart_positions

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Replaces selected tokens; adds `labels` [B, L], the original id there and else -100."""
        text = masking.mask_and_label(batch["text"], self.mask, self.vocabulary, key)
        if self.restart_positions:
            text["positions"] = restarted(batch["text"], self.vocabulary.sep)
        return {**batch, "text": text}

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """Mean cross-entropy in nats at `labels` != -100; metric `accuracy`."""
        text = batch["text"]
        hidden = self.encoder(
            text["tokens"], text["positions"], text["segment_ids"], text.get("token_types"), key
        )
        budget = self.mask.row_budget(hidden.shape[1], text["example_id"].shape[1])
        loss, accuracy = self.predict(hidden, text["labels"], budget)
        return loss, {"accuracy": accuracy}


def restarted(text: Mapping[str, jax.Array], sep: int) -> jax.Array:
    """[B, L] int32: positions that restart after each segment's first [SEP].

    Args:
        text: a token group, not corrupted.
        sep: id of [SEP].
    """
    column = jnp.arange(text["tokens"].shape[1], dtype=jnp.int32)[None]
    ends = jnp.where(text["tokens"] == sep, column, -1)
    before = jax.lax.cummax(jnp.pad(ends, ((0, 0), (1, 0)), constant_values=-1)[:, :-1], axis=1)
    behind = column - before  # from the last [SEP] on; it is where [CLS] would be
    return jnp.where(behind < text["positions"], behind, text["positions"])
