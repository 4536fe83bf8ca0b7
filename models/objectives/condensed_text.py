"""Common part of Condenser's objectives: a head over early states and the last [CLS] state.

See `condenser`. Letters: B rows, L row length, D hidden width.
"""

import jax
from flax import nnx

from models.corruption import masking
from models.networks import pooling, text_embedding
from models.objectives.text_objective import TextObjective
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.objective import Batch, GroupShape


class CondensedText(TextObjective):
    """Masks text, and reads it with encoder and head; subclasses add `loss`.

    Args:
        config, embedding_config, vocabulary, text, chunk: see `TextObjective`; pooling is `cls`.
        mask_rate: share of each segment's tokens that is predicted; 0.15 in the paper.
        skip_from: the early layer, 0 being the embeddings; half of the layers in the paper.
        head_layers: 2 in the paper.
        late_mlm: whether the last states predict the masked tokens, too.
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
        skip_from: int,
        head_layers: int = 2,
        late_mlm: bool = True,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_token_states(config, type(self).__name__)
        text_embedding.require_cls(embedding_config, type(self).__name__)
        if not (0 <= skip_from < config.layers and head_layers >= 1):
            raise ValueError(
                f"{type(self).__name__}: expected skip_from from 0 to {config.layers - 1}, below "
                "the last layer, and head_layers of at least 1, found "
                f"{skip_from} and {head_layers}"
            )
        super().__init__(config, embedding_config, vocabulary, text, chunk, rngs=rngs)
        self.mask = masking.WholeWordMask(mask_rate, (vocabulary.cls, vocabulary.sep))
        self.skip_from = skip_from
        self.head_layers = head_layers
        self.late_mlm = late_mlm
        self.decoder = config.stack(head_layers, rngs)

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Replaces selected tokens; adds `labels` [B, L], the original id there and else -100."""
        text = masking.mask_and_label(batch["text"], self.mask, self.vocabulary, key)
        return {**batch, "text": text}

    def early_and_late(
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
        """Input of the head, and its states, both [B, L, D].

        Args:
            text: corrupted group.
            early, late: [B, L, D], from `early_and_late`.
            key: for dropout; None turns it off.
        """
        memory = pooling.behind_cls(late, early, text)
        return memory, self.read(self.decoder, self.head_layers, memory, text, key)
