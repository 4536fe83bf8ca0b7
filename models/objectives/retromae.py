"""RetroMAE: pre-training an encoder whose [CLS] vector must let a weak decoder rebuild the passage.

Xiao et al. 2022, arXiv:2205.12035, with the enhanced decoder of the official code. The encoder
reads a lightly masked passage (30 %) and has the usual MLM loss. A one-layer decoder sees the [CLS]
vector and, for each position, another random half of the clean passage; it predicts every token.
DupMAE (Liu et al. 2022, arXiv:2211.08769) is this with two options set: the other form of the
decoder's query, and a loss on the passage's bag of words. Facts and pitfalls are in
docs/retromae.md.

Per segment of a packed row, so that packed and unpacked passages have the same loss.
Letters: B rows, L row length, S segments a row, D hidden width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.corruption import masking
from models.losses import bag_of_words, cross_entropy
from models.networks import layers, pooling, text_embedding
from models.objectives.text_objective import TextObjective
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape

QUERIES = ("position", "embedded")


class RetroMAE(TextObjective):
    """See the module's docstring.

    Args:
        config, embedding_config, vocabulary, text, chunk: see `TextObjective`; pooling is `cls`.
            The decoder is one layer of the encoder's sizes, and is never exported.
        encoder_mask_rate, decoder_mask_rate: 0.3 and 0.5 in the paper.
        base_masks: whole-word masks drawn for a passage; each decoder row picks one.
        max_predictions: cap on the tokens of one mask. The default is the official code's, which
            lowers both rates for passages longer than 512 / rate.
        encoder_weight, decoder_weight: of the two losses.
        decoder_query: `position`, the raw position row plus [CLS] (RetroMAE); or `embedded`, the
            whole embedding block around [CLS] (DupMAE, and FlagEmbedding's copy of RetroMAE).
        bow_weight: of the loss on the bag of words: 0.1 in DupMAE; 0, where it is not computed.
        rngs: stream `params`.
    """

    requires_full_batch = False

    def __init__(
        self,
        config: TokenEncoderConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        text: GroupShape,
        encoder_mask_rate: float,
        decoder_mask_rate: float,
        chunk: int,
        base_masks: int = masking.BASE_MASKS,
        max_predictions: int = masking.MAX_PREDICTIONS,
        encoder_weight: float = 1.0,
        decoder_weight: float = 1.0,
        decoder_query: str = "position",
        bow_weight: float = 0.0,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_cls(embedding_config, "RetroMAE")
        _require_decoder(config, base_masks, decoder_query)
        super().__init__(config, embedding_config, vocabulary, text, chunk, rngs=rngs)
        outside = (vocabulary.cls, vocabulary.sep)
        self.encoder_mask = masking.WholeWordMask(encoder_mask_rate, outside, max_predictions)
        self.decoder_mask = masking.WholeWordMask(decoder_mask_rate, outside, max_predictions)
        self.base_masks = base_masks
        self.encoder_weight = encoder_weight
        self.decoder_weight = decoder_weight
        self.decoder_query = decoder_query
        self.bow_weight = bow_weight
        self.decoder = config.layer(rngs)

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Adds to the group `text`, whose `tokens` stay clean for the decoder:

        encoder_tokens, encoder_labels [B, L] int32; decoder_labels [B, L] int32, all tokens but the
        first and last of each segment; decoder_visible [B, L, L] bool, row = query.
        """
        text = batch["text"]
        selected = masking.whole_word_mask(text, self.encoder_mask, key)
        tokens, labels = masking.replace_selected(text, selected, self.vocabulary, key)
        added = {
            "encoder_tokens": tokens,
            "encoder_labels": labels,
            "decoder_labels": masking.inner_labels(text),
            "decoder_visible": masking.decoder_visibility(
                text, self.decoder_mask, self.base_masks, key
            ),
        }
        return {**batch, "text": {**text, **added}}

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """The encoder's mean cross-entropy plus the decoder's, in nats per predicted token.

        With `bow_weight` also that of the bag of words, in nats per passage.
        """
        text = batch["text"]
        encoder_key, decoder_key = layers.split_key(key, 2)
        hidden = self.encode(text, encoder_key)
        _, decoded = self.decode(text, hidden, decoder_key)
        budget = self.encoder_mask.row_budget(hidden.shape[1], text["example_id"].shape[1])
        encoder_loss, encoder_accuracy = self.predict(hidden, text["encoder_labels"], budget)
        decoder_loss, decoder_accuracy = self.predict(decoded, text["decoder_labels"])
        metrics = {
            "encoder_loss": encoder_loss,
            "encoder_accuracy": encoder_accuracy,
            "decoder_loss": decoder_loss,
            "decoder_accuracy": decoder_accuracy,
            **_shares(text),
        }
        loss = self.encoder_weight * encoder_loss + self.decoder_weight * decoder_loss
        if self.bow_weight:
            metrics["bow_loss"] = bag_of_words.bag_of_words(
                self.largest_logits(text, hidden), text["decoder_labels"], text["segment_ids"]
            )
            loss = loss + self.bow_weight * metrics["bow_loss"]
        return loss, metrics

    def decode(
        self, text: dict[str, jax.Array], hidden: jax.Array, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """The decoder's queries and states.

        Args:
            text: corrupted group.
            hidden: [B, L, D], the encoder's states.
            key: for dropout; None turns it off.

        Returns:
            (queries, decoded), both [B, L, D]; see `_queries`, where cls is that of the position's
            own segment.
        """
        embedding_key, layer_key, query_key = layers.split_key(key, 3)
        positions = text["positions"]
        cls = pooling.own_cls(hidden, text)
        clean = self.encoder.embed(text["tokens"], positions, key=embedding_key)
        # The first key of each segment is the passage's vector, not the embedding of [CLS].
        memory = jnp.where((positions == 0)[:, :, None], cls, clean)
        query = self._queries(positions, cls, query_key)
        view = self.decoder.view(text["decoder_visible"], positions)
        return query, self.decoder(query, memory, view, layer_key)

    def largest_logits(self, text: dict[str, jax.Array], hidden: jax.Array) -> jax.Array:
        """[B, S, V] float32: over each segment's tokens but the first, from states [B, L, D]."""
        return bag_of_words.largest_logits(
            self.head.transform(hidden),
            self.encoder.word_table,
            self.head.bias[...],
            jnp.where(text["positions"] > 0, text["segment_ids"], 0),
            segments=text["example_id"].shape[1],
            vocab_size=self.config.vocab_size,
            chunk=self.chunk,
        )

    def _queries(self, positions: jax.Array, cls: jax.Array, key: jax.Array | None) -> jax.Array:
        """[B, L, D]: the raw position row plus the vector, without LayerNorm, type or dropout; or,
        `embedded`, LN(cls + position + type 0) with dropout.
        """
        if self.decoder_query == "embedded":
            return self.encoder.embed_vectors(cls, positions, key)
        return self.encoder.position_rows(positions) + cls


def _require_decoder(config: TokenEncoderConfig, base_masks: int, query: str) -> None:
    if base_masks < 1:
        raise ValueError(f"RetroMAE.base_masks: expected at least 1, found {base_masks}")
    if query not in QUERIES:
        raise ValueError(f"RetroMAE.decoder_query: expected one of {QUERIES}, found {query!r}")
    if query == "embedded" and config.table_width != config.hidden:
        raise ValueError(
            "RetroMAE.decoder_query 'embedded' adds [CLS] to rows of the tables: expected tables "
            f"as wide as the layers, {config.hidden}, so embedding_size None, found "
            f"{config.table_width}. Use 'position'"
        )


def _shares(text: dict[str, jax.Array]) -> dict[str, MetricSum]:
    """Share of tokens the encoder predicts, and of a segment's keys that a decoder row sees."""
    segment_ids, visible = text["segment_ids"], text["decoder_visible"]
    lengths = masking.segment_lengths(segment_ids, text["example_id"].shape[1])
    pairs = jnp.sum(jnp.square(lengths.astype(jnp.float32)))
    seen = jnp.sum(visible, dtype=jnp.float32)
    masked = text["encoder_labels"] != cross_entropy.IGNORED
    return {
        "masked_share": MetricSum.of(masked, segment_ids > 0),
        "visible_share": MetricSum(seen[None], pairs[None]),
    }
