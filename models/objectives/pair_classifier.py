"""Classify a pair of texts: paraphrase or not (PAWS-X), entailed or contradicted (XNLI).

Both texts are read in one, as BERT's fine-tuning does (Devlin et al. 2019, arXiv:1810.04805,
section 4.1), and what is said of them is

    logits = W . dropout( tanh( P . h[CLS] + p ) ) + w

BERT's pooler is always in between: BERT and other encoders of its kind were fine-tuned with it. A
published folder's can be imported (runs/initialise/published.gin); elsewhere it starts at random,
as it does in MLM checkpoints that were never asked for it.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import heads, layers, text_embedding
from t5x_style.interfaces.contract import TEXT, Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import (
    CLASSIFY,
    Batch,
    GroupShape,
    ModelFunction,
    Objective,
)

Group = Mapping[str, jax.Array]


class PairClassifier(Objective):
    """See the module's docstring. Letters: B rows, L tokens of a row, S pairs of a row, C classes.

    Args:
        config: the encoder; without token types (`type_vocab` 1) it separates the texts by [SEP]
            alone.
        vocabulary: of the tokenizer.
        pair: size of the token group of a global batch, "[CLS] first [SEP] second [SEP]" a segment.
            It carries `token_types` [B, L] int32, 0 up to the first [SEP] and 1 after it, and
            `label` [B, S] int32, the number of a class, -1 where a segment is free.
        side_length: tokens of a text at most, specials included; a pair has one [CLS].
        classes: their names, in the order of their numbers.
        rngs: stream `params`.

    Raises:
        ValueError: fewer than two classes, one twice, or an encoder too short for a pair.
    """

    def __init__(
        self,
        config: TokenEncoderConfig,
        vocabulary: Vocabulary,
        pair: GroupShape,
        side_length: int,
        classes: Sequence[str],
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_token_states(config, "PairClassifier")
        _require_fit(config, vocabulary, pair, side_length, classes)
        self.config = config
        self.vocabulary = vocabulary
        self.pair = pair
        self.side_length = side_length
        self.classes = tuple(classes)
        self.encoder = config.build(rngs)
        self.pooler = heads.Pooler(config, rngs=rngs)
        self.dropout = layers.Dropout(config.dropout)
        self.classifier = heads.score_head(config, len(classes), rngs=rngs)

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        label = jax.ShapeDtypeStruct((self.pair.rows, self.pair.segments), jnp.int32)
        return [{"pair": {**self._spec(), "label": label}}]

    def _spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        per_token = (self.pair.rows, self.pair.length)
        return {**self.pair.spec(), "token_types": jax.ShapeDtypeStruct(per_token, jnp.int32)}

    def contract(self) -> Contract:
        """It has no vectors: 'class' is its similarity, and its dimension is C."""
        return Contract(
            pooling="cls",
            normalise=False,
            similarity="class",
            temperature=1.0,
            dimension=len(self.classes),
            query_length=self.side_length,
            passage_length=self.side_length,
            query_prefix="",
            passage_prefix="",
            passage_layout=TEXT,
            vocabulary_size=self.vocabulary.size,
            tokenizer_fingerprint=self.vocabulary.fingerprint,
        )

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """Mean over pairs of -log softmax(logits)[label], in nats; metric `accuracy`."""
        pair = batch["pair"]
        logits = self.classify(pair, key)  # [B, S, C]
        label = pair["label"]
        there = pair["segment_valid"] & (label >= 0)
        log_p = jax.nn.log_softmax(logits, axis=-1)
        right = jnp.take_along_axis(log_p, jnp.maximum(label, 0)[:, :, None], axis=-1)[:, :, 0]
        accurate = jnp.argmax(logits, axis=-1) == label
        return MetricSum.of(-right, there), {"accuracy": MetricSum.of(accurate, there)}

    def classify(self, pair: Group, key: jax.Array | None = None) -> jax.Array:
        """[B, S, C] float32: logits of the classes; of a free segment they mean nothing.

        Args:
            pair: a token group with `token_types`.
            key: for dropout; None turns it off.
        """
        encoder_key, head_key = layers.split_key(key, 2)
        types = pair["token_types"] if self.config.type_vocab > 1 else None
        text = (pair["tokens"], pair["positions"], pair["segment_ids"], types, encoder_key)
        pooled = self.pooler(self.encoder.states_at(pair["cls_at"], *text))  # [B, S, D]
        return self.classifier(self.dropout(pooled, head_key)).astype(jnp.float32)

    def functions(self) -> dict[str, ModelFunction]:
        """`classify`: logits [B, S, C] of a token group of pairs, without dropout."""
        return {
            "classify": ModelFunction(self.classify, self._spec(), "[B, S, C] float32", CLASSIFY)
        }


def _require_fit(
    config: TokenEncoderConfig,
    vocabulary: Vocabulary,
    pair: GroupShape,
    side_length: int,
    classes: Sequence[str],
) -> None:
    if isinstance(classes, str) or len(classes) < 2 or len(set(classes)) < len(classes):
        raise ValueError(
            f"PairClassifier.classes: expected the names of two or more classes, each once, found "
            f"{classes!r}"
        )
    max_length = 2 * side_length - 1
    if config.vocab_size != vocabulary.size or max_length > config.max_positions:
        raise ValueError(
            f"PairClassifier: expected an encoder for the tokenizer's {vocabulary.size} tokens and "
            f"pairs of up to {max_length}, found "
            f"{type(config).__name__}.vocab_size {config.vocab_size} and "
            f"max_positions {config.max_positions}"
        )
    if side_length < 3 or max_length > pair.length:
        raise ValueError(
            f"PairClassifier.side_length: expected from 3 to {(pair.length + 1) // 2}, so that a "
            f"pair fits a row of {pair.length} tokens, found {side_length}"
        )
