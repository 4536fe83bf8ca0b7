"""Answers as spans of a passage that comes with the question: SQuAD, XQuAD.

BERT's way (Devlin et al. 2019, arXiv:1810.04805, section 4.2): question and passage are read in
one, and each token gets a logit of being the answer's first and one of being its last,

    [start, end] = W . h + w        loss = mean of -log p(start), -log p(end)

p being softmaxes over the passage's tokens and [CLS], at which both point where a window of a long
passage does not hold the answer. One span is right: that of the first answer, where the file
says it is; other occurrences of its words are wrong. (REALM's head, `span_head`, scores whole spans
up to ten tokens by a network, and learns from all occurrences: its blocks come without places.)

Letters: B rows, L tokens of a row, S windows of a row, W tokens of a span at most.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import heads, text_embedding
from t5x_style.interfaces.contract import TEXT, Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape, ModelFunction, Objective

Group = Mapping[str, jax.Array]


class ExtractiveQA(Objective):
    """See the module's docstring.

    Args:
        config: the encoder; token types, where it has several, are 0 up to the first [SEP] of a
            segment and 1 after it.
        vocabulary: of the tokenizer.
        text: size of the token group of a global batch, "[CLS] question [SEP] window [SEP]" a
            segment. It carries `start` and `end` [B, S] int32, first and last token of the answer,
            counted from the segment's [CLS]; 0 where it is not there, -1 where a segment is free.
        question_length: tokens of a question at most, its [CLS] and [SEP] included.
        window: tokens of a segment at most.
        max_answer_length: W, tokens of an answer at most, when answering.
        rngs: stream `params`.

    Raises:
        ValueError: sizes that do not fit each other or the encoder.
    """

    def __init__(
        self,
        config: TokenEncoderConfig,
        vocabulary: Vocabulary,
        text: GroupShape,
        question_length: int,
        window: int,
        max_answer_length: int,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_token_states(config, "ExtractiveQA")
        _require_fit(config, vocabulary, text, question_length, window, max_answer_length)
        self.config = config
        self.vocabulary = vocabulary
        self.text = text
        self.question_length, self.window = question_length, window
        self.max_answer_length = max_answer_length
        self.encoder = config.build(rngs)
        self.span = heads.score_head(config, 2, rngs=rngs)  # start, end

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        place = jax.ShapeDtypeStruct((self.text.rows, self.text.segments), jnp.int32)
        return [{"text": {**self.text.spec(), "start": place, "end": place}}]

    def contract(self) -> Contract:
        """It has no vectors: 'span' is its similarity. A passage has what a question leaves."""
        return Contract(
            pooling="cls",
            normalise=False,
            similarity="span",
            temperature=1.0,
            dimension=2,
            query_length=self.question_length,
            passage_length=self.window - self.question_length,
            query_prefix="",
            passage_prefix="",
            passage_layout=TEXT,
            vocabulary_size=self.vocabulary.size,
            tokenizer_fingerprint=self.vocabulary.fingerprint,
        )

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """Mean over windows, see the module's docstring, in nats.

        Metrics, over windows with their answer and over those without: `exact_match`, whether the
        likeliest start and end are both right; `cls_match`, whether both are [CLS].
        """
        text = batch["text"]
        logits, _, pointed = self.logits(text, key)
        ids = jnp.arange(1, text["cls_at"].shape[1] + 1)[None, :, None]
        in_segment = pointed[:, None, :] & (text["segment_ids"][:, None, :] == ids)  # [B, S, L]
        valid = text["segment_valid"] & (text["start"] >= 0)
        losses, right = [], valid
        for number, name in enumerate(("start", "end")):
            scores = _where(in_segment, logits[:, None, :, number])  # [B, S, L]
            at = text["cls_at"] + jnp.maximum(text[name], 0)  # [B, S]
            chosen = jnp.take_along_axis(scores, at[:, :, None], axis=2)[:, :, 0]
            losses.append(jax.nn.logsumexp(scores, axis=2) - chosen)
            right &= jnp.argmax(scores, axis=2) == at
        return MetricSum.of((losses[0] + losses[1]) / 2, valid), {
            "exact_match": MetricSum.of(right, valid & (text["start"] > 0)),
            "cls_match": MetricSum.of(right, valid & (text["start"] == 0)),
        }

    def logits(
        self, text: Group, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Logits of the tokens, and a mask of those of a passage.

        Args:
            text: a token group.
            key: for dropout; None turns it off.

        Returns:
            [B, L, 2] float32, of start and end; [B, L] bool, the passages' tokens without [SEP];
            [B, L] bool, those and [CLS].
        """
        sep = text["tokens"] == self.vocabulary.sep
        behind = _behind_first(sep, text)
        types = behind.astype(jnp.int32) if self.config.type_vocab > 1 else None
        hidden = self.encoder(text["tokens"], text["positions"], text["segment_ids"], types, key)
        passage = behind & ~sep
        first = (text["segment_ids"] > 0) & (text["positions"] == 0)
        return self.span(hidden).astype(jnp.float32), passage, passage | first

    # --- what it offers ---------------------------------------------------------------------------

    def answer(self, text: Group) -> dict[str, jax.Array]:
        """The best span of each window's passage, of W tokens at most; never [CLS].

        Args:
            text: a token group.

        Returns:
            `start` and `end` [B, S] int32, first and last token, counted from the window's [CLS];
            `score` [B, S] float32, the sum of both logits, which is compared between windows;
            `log_probability` [B, S] float32, of start and end in their window. A window without a
            passage has -inf as its score.
        """
        logits, passage, pointed = self.logits(text)
        start, end = (_where(passage, logits[:, :, number]) for number in (0, 1))
        score, width = self._best_from(start, end, text["segment_ids"])  # [B, L]
        ids = jnp.arange(1, text["cls_at"].shape[1] + 1)[None, :, None]
        in_segment = text["segment_ids"][:, None, :] == ids  # [B, S, L]
        best = jnp.argmax(jnp.where(in_segment, score[:, None], -jnp.inf), axis=2)  # [B, S]
        first = jnp.take_along_axis(text["positions"], best, axis=1)
        found = jnp.take_along_axis(score, best, axis=1)
        there = jnp.any(in_segment & passage[:, None], axis=2)
        everything = sum(
            jax.nn.logsumexp(
                _where(in_segment & pointed[:, None], logits[:, None, :, number]), axis=2
            )
            for number in (0, 1)
        )
        return {
            "start": first,
            "end": first + jnp.take_along_axis(width, best, axis=1),
            "score": jnp.where(there, found, -jnp.inf),
            "log_probability": jnp.where(there, found - everything, -jnp.inf),
        }

    def _best_from(
        self, start: jax.Array, end: jax.Array, segment_ids: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Best score of a span from each token, and how many tokens follow that one: [B, L]."""
        score, width = start + end, jnp.zeros(start.shape, jnp.int32)
        for further in range(1, min(self.max_answer_length, start.shape[1])):
            shift = ((0, 0), (0, further))
            last = jnp.pad(end, shift, constant_values=LOWEST)[:, further:]
            same = jnp.pad(segment_ids, shift)[:, further:] == segment_ids
            one = start + jnp.where(same, last, LOWEST)
            width = jnp.where(one > score, further, width)
            score = jnp.maximum(one, score)
        return score, width

    def functions(self) -> dict[str, ModelFunction]:
        """`answer`: spans of a token group of questions with passages, without dropout."""
        outputs = "start, end [B, S] int32; score, log_probability [B, S] float32"
        return {"answer": ModelFunction(self.answer, self.text.spec(), outputs, "answer")}


LOWEST = -1e30  # not -inf: sums of two, and gradients where nothing is there, stay finite


def _where(there: jax.Array, logits: jax.Array) -> jax.Array:
    return jnp.where(there, logits, LOWEST)


def _behind_first(sep: jax.Array, text: Group) -> jax.Array:
    """[B, L] bool: tokens after the first [SEP] of their segment; `sep` [B, L] marks [SEP]s."""
    before = jnp.cumsum(sep, axis=1) - sep  # [SEP]s to the left, of all segments
    begun = jnp.take_along_axis(before, text["cls_at"], axis=1)  # [B, S]
    segment = jnp.maximum(text["segment_ids"] - 1, 0)
    inside = before - jnp.take_along_axis(begun, segment, axis=1)
    return (inside > 0) & (text["segment_ids"] > 0)


def _require_fit(
    config: TokenEncoderConfig,
    vocabulary: Vocabulary,
    text: GroupShape,
    question_length: int,
    window: int,
    max_answer_length: int,
) -> None:
    if config.vocab_size != vocabulary.size or window > config.max_positions:
        raise ValueError(
            f"ExtractiveQA: expected an encoder for the tokenizer's {vocabulary.size} tokens and "
            f"windows of up to {window}, found "
            f"{type(config).__name__}.vocab_size {config.vocab_size} and "
            f"max_positions {config.max_positions}"
        )
    if window > text.length or question_length < 3 or window < question_length + 2:
        raise ValueError(
            "ExtractiveQA: expected question_length of at least 3, a window that holds a question "
            f"and more, and rows that hold a window; found {question_length}, {window} and "
            f"{text.length}"
        )
    if max_answer_length < 1:
        raise ValueError(
            f"ExtractiveQA.max_answer_length: expected at least 1, found {max_answer_length}"
        )
