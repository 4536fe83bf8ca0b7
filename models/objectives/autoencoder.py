"""The auto-encoder: a decoder too weak to guess a passage must write it out from one vector.

Lu et al. 2021, arXiv:2102.09206 (SEED-Encoder), with the facts of the official code. The encoder
is trained as a masked language model. A decoder of a few layers writes the clean passage token by
token, left to right, and knows of what was written only the last tokens: the rest has to come from
the encoder's [CLS] state, which comes first and is always visible. What differs from the official
decoder is in docs/autoencoder.md.

Per segment of a packed row. Letters: B rows, L row length, D hidden width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.corruption import masking
from models.networks import attention, layers, pooling, stacks, text_embedding
from models.objectives.text_objective import TextObjective
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape


class AutoEncoder(TextObjective):
    """See the module's docstring.

    Args:
        config, embedding_config, vocabulary, text, chunk: see `TextObjective`; pooling is `cls`.
        mask_rate: share of each segment's tokens that the encoder predicts; 0.15 in BERT.
        decoder_layers: 3 in the paper.
        attention_span: how many of the latest tokens each layer sees, with [CLS]: 2 in the paper.
            Its cost is proportional to this.
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
        decoder_layers: int = 3,
        attention_span: int = 2,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_cls(embedding_config, "AutoEncoder")
        if decoder_layers < 1 or attention_span < 1:
            raise ValueError(
                "AutoEncoder: expected decoder_layers and attention_span of at least 1, found "
                f"{decoder_layers} and {attention_span}"
            )
        super().__init__(config, embedding_config, vocabulary, text, chunk, rngs=rngs)
        self.mask = masking.WholeWordMask(mask_rate, (vocabulary.cls, vocabulary.sep))
        self.decoder_layers = decoder_layers
        self.attention_span = attention_span
        self.decoder = config.stack(decoder_layers, rngs)

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Adds to the group `text`, whose `tokens` stay clean for the decoder, all [B, L] int32:

        encoder_tokens, encoder_labels, as masked language models have them; decoder_labels, see
        `next_tokens`.
        """
        text = batch["text"]
        masked = masking.mask_and_label(text, self.mask, self.vocabulary, key)
        added = {
            "encoder_tokens": masked["tokens"],
            "encoder_labels": masked["labels"],
            "decoder_labels": next_tokens(text),
        }
        return {**batch, "text": {**text, **added}}

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """The encoder's mean cross-entropy plus the decoder's, in nats per predicted token."""
        text = batch["text"]
        encoder_key, decoder_key = layers.split_key(key, 2)
        hidden = self.encode(text, encoder_key)
        decoded = self.decode(text, hidden, decoder_key)
        budget = self.mask.row_budget(hidden.shape[1], text["example_id"].shape[1])
        encoder_loss, encoder_accuracy = self.predict(hidden, text["encoder_labels"], budget)
        decoder_loss, decoder_accuracy = self.predict(decoded, text["decoder_labels"])
        metrics = {
            "encoder_loss": encoder_loss,
            "encoder_accuracy": encoder_accuracy,
            "decoder_loss": decoder_loss,
            "decoder_accuracy": decoder_accuracy,
        }
        return encoder_loss + decoder_loss, metrics

    def decode(
        self, text: dict[str, jax.Array], hidden: jax.Array, key: jax.Array | None = None
    ) -> jax.Array:
        """[B, L, D]: the decoder's states, each of which predicts the next token.

        Args:
            text: clean tokens, `positions`, `segment_ids` and `cls_at` count.
            hidden: [B, L, D], the encoder's states, of which those at [CLS] count.
            key: for dropout; None turns it off.
        """
        embedding_key, layers_key = layers.split_key(key, 2)
        positions = text["positions"]
        embedded = self.encoder.embed(text["tokens"], positions, key=embedding_key)
        return stacks.run_stack(
            self.decoder,
            self.decoder_layers,
            pooling.behind_cls(hidden, embedded, text),
            self.decoder.view(attention.Local(positions, self.attention_span), positions),
            key=layers_key,
            remat=self.config.remat,
            unroll=self.decoder_layers,
        )


def next_tokens(text: dict[str, jax.Array]) -> jax.Array:
    """[B, L] int32: the next token of each one in its segment, -100 at the last and at padding.

    So every token but [CLS] is predicted, special ones too: the last, [SEP], ends the passage.
    """
    tokens, segment_ids = text["tokens"], text["segment_ids"]
    behind, whose = (jnp.pad(x[:, 1:], ((0, 0), (0, 1))) for x in (tokens, segment_ids))
    return jnp.where((segment_ids > 0) & (whose == segment_ids), behind, masking.IGNORED)
