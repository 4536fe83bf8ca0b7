"""Losses of a reader that answers with a span of what a retriever found, and of that retriever.

ORQA (Lee et al. 2019, arXiv:1906.00300), as REALM fine-tunes (arXiv:2002.08909, official code). The
retriever is to put blocks that hold an answer before the others of a wide beam, the reader to put
the spans that are an answer before all other spans of the best few blocks; a span's score is the
reader's and its block's relevance together, so that the retriever learns from the reader, too.

Letters: B questions, S blocks of the wide beam, K of them that are read, L tokens, W widths of a
span (1 to W tokens), A answers of a question, T tokens of an answer.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from t5x_style.interfaces.metrics import MetricSum

NO_TOKEN = -1  # after the end of an answer, and in an absent answer


def answer_spans(
    tokens: jax.Array, readable: jax.Array, answers: jax.Array, widths: int
) -> jax.Array:
    """Mask of spans equal to an answer: [..., L, W] bool, by first token and width - 1.

    Args:
        tokens: [B, ..., L] int32.
        readable: the same shape, bool: where an answer may be.
        answers: [B, A, T] int32, NO_TOKEN after each end.
        widths: W; longer answers are no spans.
    """
    width = jnp.arange(1, widths + 1)

    def add(found: jax.Array, begins: jax.Array, size: jax.Array) -> jax.Array:
        return found | (begins[..., None] & (size[..., None] == width))

    nothing = jnp.zeros((*tokens.shape, widths), jnp.bool_)
    return _over_answers(tokens, readable, answers, nothing, add)


def holds_answer(tokens: jax.Array, readable: jax.Array, answers: jax.Array) -> jax.Array:
    """[B, ...] bool: whether a block holds an answer of any length; arguments of `answer_spans`."""

    def add(found: jax.Array, begins: jax.Array, size: jax.Array) -> jax.Array:
        return found | jnp.any(begins, axis=-1)

    return _over_answers(tokens, readable, answers, jnp.zeros(tokens.shape[:-1], jnp.bool_), add)


def _over_answers(
    tokens: jax.Array,
    readable: jax.Array,
    answers: jax.Array,
    nothing: jax.Array,
    add: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """`add(found, where an answer begins [B, ..., L], its tokens [B, 1, ...])`, for each answer."""
    inner = (1,) * (tokens.ndim - 1)
    text = jnp.where(readable, tokens, NO_TOKEN - 1)  # equal to no token of an answer

    def one(found: jax.Array, answer: jax.Array) -> tuple[jax.Array, None]:  # [B, T]
        size = jnp.sum(answer != NO_TOKEN, axis=1).reshape(-1, *inner)
        begins = jnp.broadcast_to(size > 0, text.shape)
        for place in range(answer.shape[1]):
            wanted = answer[:, place].reshape(-1, *inner)
            there = jnp.pad(
                text[..., place:],
                [(0, 0)] * (text.ndim - 1) + [(0, min(place, text.shape[-1]))],
                constant_values=NO_TOKEN - 1,
            )
            begins &= (wanted == NO_TOKEN) | (there == wanted)
        return add(found, begins, size), None

    return jax.lax.scan(one, nothing, jnp.moveaxis(answers, 1, 0))[0]


def readable_spans(readable: jax.Array, widths: int) -> jax.Array:
    """[..., L, W] bool: spans whose first and last token are readable, of `readable` [..., L]."""
    length = readable.shape[-1]
    padding = [(0, 0)] * (readable.ndim - 1) + [(0, widths - 1)]
    behind = jnp.pad(readable, padding)
    last = jnp.stack([behind[..., width : width + length] for width in range(widths)], axis=-1)
    return readable[..., None] & last


def span_losses(
    relevance: jax.Array,
    holds: jax.Array,
    scores: jax.Array,
    spans: jax.Array,
    correct: jax.Array,
) -> tuple[MetricSum, dict[str, MetricSum]]:
    """Losses of reader and retriever, in nats, and their metrics.

    Each loss is -log of the share that what is correct has in a softmax over everything, and 0 for
    a question of which nothing is correct; their sum is a mean over all questions.

    Args:
        relevance: [B, S] float32, best first; -inf where fewer blocks were found.
        holds: [B, S] bool, which of them hold an answer.
        scores: [B, K, L, W] float32, of the spans of the first K blocks.
        spans: [B, K, L, W] bool, which of them are spans of a block.
        correct: [B, K, L, W] bool, which of those are an answer.

    Returns:
        the loss, and metrics over questions: `retriever_loss`; `reader_loss`; `exact_match`, of the
        best span; `found_in_beam`, questions with an answer in the wide beam; `found_in_read`, with
        one among the spans that are read; `Recall@1`, with one in the best block.
    """
    together = scores + relevance[:, : scores.shape[1], None, None]
    count = relevance.shape[0]
    spans, correct = (mask.reshape(count, -1) for mask in (spans, correct & spans))
    flat = together.reshape(count, -1)
    retriever = _share_loss(relevance, jnp.isfinite(relevance), holds)
    reader = _share_loss(flat, spans, correct)
    best = jnp.argmax(jnp.where(spans, flat, -jnp.inf), axis=1)
    metrics = {
        "retriever_loss": MetricSum.of(retriever),
        "reader_loss": MetricSum.of(reader),
        "exact_match": MetricSum.of(jnp.take_along_axis(correct, best[:, None], axis=1)),
        "found_in_beam": MetricSum.of(jnp.any(holds, axis=1)),
        "found_in_read": MetricSum.of(jnp.any(correct, axis=1)),
        "Recall@1": MetricSum.of(holds[:, 0]),
    }
    return MetricSum.of(retriever + reader), jax.lax.stop_gradient(metrics)


def _share_loss(scores: jax.Array, there: jax.Array, correct: jax.Array) -> jax.Array:
    """[B]: log sum exp of what is there, less that of what is correct, of [B, N] scores."""
    lowest = jnp.finfo(jnp.float32).min  # not -inf: where all are, the gradient would be NaN
    everything, right = (
        jax.nn.logsumexp(jnp.where(mask, scores, lowest), axis=1)
        for mask in (there, correct & there)
    )
    return jnp.where(jnp.any(correct & there, axis=1), everything - right, 0.0)
