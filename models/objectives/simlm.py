"""SimLM: pre-training by predicting what a generator has replaced, through one vector.

Wang et al. 2022, arXiv:2207.02578, with the facts of the official code. A generator fills masked
tokens with samples, in two copies of a passage: lightly for the encoder, more heavily (a superset
of the positions, other samples) for a decoder of two layers that sees the rest of the passage
only through the encoder's [CLS] state. Both predict every original token, replaced or not. Facts
and pitfalls are in docs/simlm.md.

Without a generator it is the paper's Enc-Dec MLM: [MASK] stays, and only masked tokens count.

Per segment of a packed row. Letters: B rows, L row length, D hidden width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.corruption import masking
from models.networks import electra, layers, pooling, text_embedding
from models.objectives.text_objective import TextObjective
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape

Group = dict[str, jax.Array]


class SimLM(TextObjective):
    """See the module's docstring.

    Args:
        config, embedding_config, vocabulary, text, chunk: see `TextObjective`; pooling is `cls`,
            and the generator shares the vocabulary.
        encoder_mask_rate, decoder_mask_rate: 0.3 and 0.5 in the paper; the second is larger.
        generator_config: sizes of the generator; None: there is none (Enc-Dec MLM).
        generator_weight: of the generator's own loss: 0.2 in the official code where it is
            trained; with 0 it is not computed, and the generator stays unchanged.
        decoder_layers: 2 in the paper; initialised from the encoder's last ones.
        max_predictions: cap on the tokens of one mask.
        rngs: stream `params`.
    """

    def __init__(
        self,
        config: TokenEncoderConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        text: GroupShape,
        encoder_mask_rate: float,
        decoder_mask_rate: float,
        chunk: int,
        generator_config: TokenEncoderConfig | None,
        generator_weight: float = 0.0,
        decoder_layers: int = 2,
        max_predictions: int = masking.MAX_PREDICTIONS,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_cls(embedding_config, "SimLM")
        _require_generator(config, generator_config, generator_weight)
        super().__init__(config, embedding_config, vocabulary, text, chunk, rngs=rngs)
        outside = (vocabulary.cls, vocabulary.sep)
        extra = extra_rate(encoder_mask_rate, decoder_mask_rate)
        self.encoder_mask = masking.WholeWordMask(encoder_mask_rate, outside, max_predictions)
        self.extra_mask = masking.WholeWordMask(extra, outside, max_predictions)
        if decoder_layers < 1:
            raise ValueError(f"SimLM.decoder_layers: expected at least 1, found {decoder_layers}")
        self.generator_weight = generator_weight
        self.decoder_layers = decoder_layers
        self.decoder = config.stack(decoder_layers, rngs)
        self.generator = (
            electra.Generator(generator_config, chunk, rngs=rngs) if generator_config else None
        )

    @property
    def frozen_paths(self) -> tuple[str, ...]:
        """See `Objective`."""
        trains = self.generator is None or bool(self.generator_weight)
        return () if trains else ("^generator/",)

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Adds to the group `text`, all [B, L] int32:

        encoder_tokens, decoder_tokens, what each reads; encoder_labels, decoder_labels, what each
        predicts; with a generator that is trained generator_tokens and generator_labels.
        """
        text = batch["text"]
        keys = jax.random.split(key, 4)
        lightly = masking.whole_word_mask(text, self.encoder_mask, keys[0])
        heavily = lightly | masking.whole_word_mask(text, self.extra_mask, keys[1])
        masked = [masking.mask_selected(text, m, self.vocabulary) for m in (lightly, heavily)]
        (encoder_tokens, encoder_labels), (decoder_tokens, decoder_labels) = masked
        added = {}
        if self.generator is not None:
            if self.generator_weight:
                added = {"generator_tokens": encoder_tokens, "generator_labels": encoder_labels}
            light, heavy = self._budgets(text)
            encoder_tokens = self.generator.replace(
                text, encoder_tokens, encoder_labels, light, keys[2]
            )
            decoder_tokens = self.generator.replace(
                text, decoder_tokens, decoder_labels, heavy, keys[3]
            )
            encoder_labels = decoder_labels = labels_of(text, self.vocabulary)
        added |= {"encoder_tokens": encoder_tokens, "encoder_labels": encoder_labels}
        added |= {"decoder_tokens": decoder_tokens, "decoder_labels": decoder_labels}
        return {**batch, "text": {**text, **added}}

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """The encoder's mean cross-entropy plus the decoder's, in nats per predicted token.

        With `generator_weight` also the generator's, per masked token.
        """
        text = batch["text"]
        encoder_key, decoder_key, generator_key = layers.split_key(key, 3)
        hidden = self.encode(text, encoder_key)
        _, decoded = self.decode(text, hidden, decoder_key)
        encoder_loss, encoder_accuracy = self.predict(hidden, text["encoder_labels"])
        decoder_loss, decoder_accuracy = self.predict(decoded, text["decoder_labels"])
        real = text["segment_ids"] > 0
        predicted = text["encoder_labels"] != masking.IGNORED
        metrics = {
            "encoder_loss": encoder_loss,
            "encoder_accuracy": encoder_accuracy,
            "decoder_loss": decoder_loss,
            "decoder_accuracy": decoder_accuracy,
            "replaced_share": MetricSum.of(
                predicted & (text["encoder_tokens"] != text["encoder_labels"]), real
            ),
        }
        loss = encoder_loss + decoder_loss
        if self.generator is not None and self.generator_weight:
            metrics["generator_loss"] = self.generator.loss(
                text,
                text["generator_tokens"],
                text["generator_labels"],
                self._budgets(text)[0],
                generator_key,
            )
            loss = loss + self.generator_weight * metrics["generator_loss"]
        return loss, metrics

    def decode(
        self, text: Group, hidden: jax.Array, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Input of the decoder, and its states, both [B, L, D].

        Args:
            text: corrupted group.
            hidden: [B, L, D], the encoder's states.
            key: for dropout; None turns it off.
        """
        embedding_key, layers_key = layers.split_key(key, 2)
        # Token types are all 0 here, whatever the encoder had: so it is in the official code.
        embedded = self.encoder.embed(text["decoder_tokens"], text["positions"], key=embedding_key)
        memory = pooling.behind_cls(hidden, embedded, text)
        return memory, self.read(self.decoder, self.decoder_layers, memory, text, layers_key)

    def _budgets(self, text: Group) -> tuple[int, int]:
        """The most tokens of a row that the encoder's and the decoder's mask can select."""
        length, segments = text["tokens"].shape[1], text["example_id"].shape[1]
        light = self.encoder_mask.row_budget(length, segments)
        return light, min(length, light + self.extra_mask.row_budget(length, segments))


def extra_rate(encoder: float, decoder: float) -> float:
    """The rate of a second mask, so that both together have the decoder's rate.

    Raises:
        ValueError: the rates are not 0 < encoder < decoder <= 1.
    """
    if not 0 < encoder < decoder <= 1:
        raise ValueError(
            "SimLM: expected 0 < encoder_mask_rate < decoder_mask_rate <= 1, found "
            f"{encoder} and {decoder}"
        )
    return (decoder - encoder) / (1 - encoder)


def labels_of(text: Group, vocabulary: Vocabulary) -> jax.Array:
    """[B, L] int32: every clean token but special ones and padding, which are -100."""
    counts = (text["segment_ids"] > 0) & ~masking.is_any(text["tokens"], vocabulary.special_ids)
    return jnp.where(counts, text["tokens"], masking.IGNORED)


def _require_generator(
    config: TokenEncoderConfig, generator: TokenEncoderConfig | None, weight: float
) -> None:
    if generator is None:
        if weight:
            raise ValueError(f"SimLM.generator_weight: expected 0 without one, found {weight}")
        return
    electra.require_fit(generator, config, "SimLM")
