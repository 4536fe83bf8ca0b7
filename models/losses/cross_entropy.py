"""Softmax cross-entropy against a vocabulary table, without ever holding [N, V].

Positions are taken a chunk at a time; only one chunk of logits [chunk, V] exists. Two forms:

  cross_entropy       one loss per position. The backward pass recomputes the logits from the saved
                      log-sum-exp: four matrix products in all, where the plain form has three.
  cross_entropy_mean  sums and counts, as `Mean`s. The cotangent of a sum is one scalar for all
                      positions, so the forward pass already leaves the gradients up to that factor
                      (as in Liger kernels, arXiv:2410.10989): three products, one softmax.

The chunks are strided (position i goes to chunk i mod C), so that when the leading axis is sharded
over devices every device works on its share of every chunk and nothing is moved.

The table may be padded: rows from `vocab_size` on get a logit of -inf, and no gradient.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t5x_style.metrics import Mean

IGNORED = -100


class _Problem(NamedTuple):
    """Everything flat and cut into C chunks of n positions."""

    hidden: jax.Array  # [C, n, D] computation dtype
    table: jax.Array  # [V, D] computation dtype
    bias: jax.Array  # [V] float32, -inf on padded rows
    labels: jax.Array  # [C, n] int32


def cross_entropy(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    labels: jax.Array,
    *,
    vocab_size: int,
    chunk: int,
) -> jax.Array:
    """Cross-entropy of every position, in nats.

    Args:
      hidden: [..., D], already through the head's transform; its dtype is that of the products.
      table: [V_padded, D], usually the word embeddings.
      bias: [V_padded].
      labels: [...] int32, `IGNORED` (-100) where nothing is predicted.
      vocab_size: the true vocabulary size.
      chunk: how many positions have logits at a time, at most.

    Returns:
      [...] float32, 0 at ignored positions. Softmax and sums are float32.
    """
    _check(hidden, table, bias, labels, vocab_size, chunk)
    rows = hidden.reshape(-1, hidden.shape[-1])
    losses = _per_position(rows, table, bias, labels.reshape(-1), vocab_size, chunk)
    return losses.reshape(labels.shape)


def cross_entropy_mean(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    labels: jax.Array,
    *,
    vocab_size: int,
    chunk: int,
) -> tuple[Mean, Mean]:
    """Mean cross-entropy and accuracy over the positions with a label.

    Arguments as in `cross_entropy`. Gradients flow through the first result only.

    Returns:
      (loss in nats per predicted position, share of them whose label has the highest logit).
    """
    _check(hidden, table, bias, labels, vocab_size, chunk)
    rows = hidden.reshape(-1, hidden.shape[-1])
    total, correct = _summed(rows, table, bias, labels.reshape(-1), vocab_size, chunk)
    weight = jnp.sum(labels != IGNORED).astype(jnp.float32)[None]
    return Mean(total[None], weight), Mean(jax.lax.stop_gradient(correct)[None], weight)


def gather_predicted(
    hidden: jax.Array, labels: jax.Array, budget: int
) -> tuple[jax.Array, jax.Array]:
    """Keeps, in order, the positions of each row that have a label.

    Args:
      hidden: [B, L, D].
      labels: [B, L] int32, `IGNORED` where nothing is predicted.
      budget: how many positions a row keeps; must be a bound on how many labels a row has
        (`corruption.row_budget` proves one). A row with more labels gets NaN, not a smaller loss.

    Returns:
      (hidden [B, budget, D], labels [B, budget]), filled up with ignored positions.
    """
    predicted = labels != IGNORED
    if budget >= labels.shape[1]:
        return hidden, labels
    where = jnp.argsort(~predicted, axis=1, stable=True)[:, :budget]  # [B, budget]
    kept = jnp.take_along_axis(hidden, where[:, :, None], axis=1)
    overflow = jnp.sum(predicted, axis=1) > budget  # [B]
    kept = jnp.where(overflow[:, None, None], jnp.nan, kept)
    return kept, jnp.take_along_axis(labels, where, axis=1)


def _check(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    labels: jax.Array,
    vocab_size: int,
    chunk: int,
) -> None:
    if hidden.shape[:-1] != labels.shape:
        raise ValueError(
            f"cross_entropy: hidden {hidden.shape} must be labels' shape {labels.shape} "
            "plus one axis of features"
        )
    if table.shape != (bias.shape[0], hidden.shape[-1]):
        raise ValueError(
            f"cross_entropy: table must be {(bias.shape[0], hidden.shape[-1])} "
            f"(bias {bias.shape}, hidden {hidden.shape}), found {table.shape}"
        )
    if not 0 < vocab_size <= table.shape[0]:
        raise ValueError(
            f"cross_entropy: vocab_size {vocab_size} must be in 1..{table.shape[0]}, "
            "the number of rows of the table"
        )
    if chunk < 1:
        raise ValueError(f"cross_entropy: chunk must be at least 1 position, found {chunk}")


def number_of_chunks(positions: int, chunk: int) -> int:
    """Smallest number of chunks of at most `chunk` positions, preferably dividing `positions`.

    Padding a sharded axis moves data between devices, so a divisor is taken where there is one
    within twice the smallest number.
    """
    least = max(1, math.ceil(positions / chunk))
    divisors = (c for c in range(least, 2 * least) if positions % c == 0)
    return next(divisors, least)


def _cut(
    hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, vocab: int, chunk: int
) -> _Problem:
    chunks = number_of_chunks(hidden.shape[0], chunk)
    real = np.arange(table.shape[0]) < vocab
    return _Problem(
        _strided(hidden, chunks, 0),
        table.astype(hidden.dtype),
        jnp.where(real, bias.astype(jnp.float32), -jnp.inf),
        _strided(labels, chunks, IGNORED),
    )


def _strided(x: jax.Array, chunks: int, fill: int) -> jax.Array:
    """[N, ...] -> [C, ceil(N / C), ...]; row i of x is at [i % C, i // C]."""
    missing = -x.shape[0] % chunks
    x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)
    return x.reshape(-1, chunks, *x.shape[1:]).swapaxes(0, 1)


def _unstrided(x: jax.Array, rows: int) -> jax.Array:
    """The inverse of `_strided`."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])[:rows]


def _logits(hidden: jax.Array, problem: _Problem) -> jax.Array:
    """[n, D] -> [n, V] float32."""
    logits = jnp.einsum("nd,vd->nv", hidden, problem.table, preferred_element_type=jnp.float32)
    return logits + problem.bias


def _at_label(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """[n, V] -> [n]; whatever is at 0 for ignored labels."""
    return jnp.take_along_axis(logits, jnp.maximum(labels, 0)[:, None], axis=1)[:, 0]


def _softmax_parts(
    logits: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Loss, correctness, exp(logits - max) and its sum; ignored positions have loss 0.

    Returns:
      loss [n], correct [n], both float32; exp [n, V]; sum [n].
    """
    top = jnp.max(logits, axis=1)  # [n]
    exp = jnp.exp(logits - top[:, None])  # [n, V]
    total = jnp.sum(exp, axis=1)  # [n]
    gold = _at_label(logits, labels)
    valid = labels != IGNORED
    loss = jnp.where(valid, top + jnp.log(total) - gold, 0.0)
    return loss, (valid & (gold == top)).astype(jnp.float32), exp, total


def _error(probabilities: jax.Array, labels: jax.Array, weight: jax.Array) -> jax.Array:
    """The gradient of the logits, weight * (softmax - one-hot): [n, V]."""
    hot = jax.lax.broadcasted_iota(labels.dtype, probabilities.shape, 1) == labels[:, None]
    return weight[:, None] * (probabilities - hot)


def _products(
    error: jax.Array, hidden: jax.Array, problem: _Problem
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of hidden [n, D], table [V, D] and bias [V], accumulated in float32."""
    small = error.astype(hidden.dtype)
    to_hidden = jnp.einsum("nv,vd->nd", small, problem.table, preferred_element_type=jnp.float32)
    to_table = jnp.einsum("nv,nd->vd", small, hidden, preferred_element_type=jnp.float32)
    return to_hidden, to_table, jnp.sum(error, axis=0)


def _zeros(problem: _Problem) -> tuple[jax.Array, jax.Array]:
    return jnp.zeros(problem.table.shape, jnp.float32), jnp.zeros_like(problem.bias)


# --- one loss per position ------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _per_position(
    hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, vocab: int, chunk: int
) -> jax.Array:
    return _per_position_forward(hidden, table, bias, labels, vocab, chunk)[0]


def _per_position_forward(hidden, table, bias, labels, vocab, chunk):  # type: ignore[no-untyped-def]
    problem = _cut(hidden, table, bias, labels, vocab, chunk)

    def one(args: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits = _logits(args[0], problem)
        lse = jax.nn.logsumexp(logits, axis=1)
        return jnp.where(args[1] != IGNORED, lse - _at_label(logits, args[1]), 0.0), lse

    losses, lse = jax.lax.map(one, (problem.hidden, problem.labels))
    return _unstrided(losses, hidden.shape[0]), (hidden, table, bias, labels, lse)


def _per_position_backward(vocab, chunk, saved, cotangent):  # type: ignore[no-untyped-def]
    hidden, table, bias, labels, lse = saved
    problem = _cut(hidden, table, bias, labels, vocab, chunk)
    weights = _strided(jnp.where(labels != IGNORED, cotangent, 0.0), lse.shape[0], 0)

    def one(carry, args):  # type: ignore[no-untyped-def]
        rows, targets, row_lse, weight = args
        probabilities = jnp.exp(_logits(rows, problem) - row_lse[:, None])
        error = _error(probabilities, targets, weight)
        to_hidden, to_table, to_bias = _products(error, rows, problem)
        return (carry[0] + to_table, carry[1] + to_bias), to_hidden.astype(hidden.dtype)

    chunks = (problem.hidden, problem.labels, lse, weights)
    (to_table, to_bias), to_hidden = jax.lax.scan(one, _zeros(problem), chunks)
    to_hidden = _unstrided(to_hidden, hidden.shape[0])
    return to_hidden, to_table.astype(table.dtype), to_bias.astype(bias.dtype), None


_per_position.defvjp(_per_position_forward, _per_position_backward)


# --- sums over positions --------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _summed(
    hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, vocab: int, chunk: int
) -> tuple[jax.Array, jax.Array]:
    """(sum of losses [], number of correct positions []), float32."""
    problem = _cut(hidden, table, bias, labels, vocab, chunk)

    def one(args: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        loss, correct, _, _ = _softmax_parts(_logits(args[0], problem), args[1])
        return loss, correct

    losses, correct = jax.lax.map(one, (problem.hidden, problem.labels))
    return jnp.sum(losses), jnp.sum(correct)


def _summed_forward(hidden, table, bias, labels, vocab, chunk):  # type: ignore[no-untyped-def]
    problem = _cut(hidden, table, bias, labels, vocab, chunk)

    def one(carry, args):  # type: ignore[no-untyped-def]
        rows, targets = args
        loss, correct, exp, total = _softmax_parts(_logits(rows, problem), targets)
        weight = (targets != IGNORED).astype(jnp.float32)
        error = _error(exp / total[:, None], targets, weight)
        to_hidden, to_table, to_bias = _products(error, rows, problem)
        carry = (carry[0] + to_table, carry[1] + to_bias)
        return carry, (to_hidden.astype(hidden.dtype), loss, correct)

    carry, per_row = jax.lax.scan(one, _zeros(problem), (problem.hidden, problem.labels))
    to_hidden, losses, correct = per_row
    to_hidden = _unstrided(to_hidden, hidden.shape[0])
    # The parameters' own dtypes travel as empty arrays: residuals must be arrays.
    saved = (to_hidden, *carry, jnp.zeros(0, table.dtype), jnp.zeros(0, bias.dtype))
    return (jnp.sum(losses), jnp.sum(correct)), saved


def _summed_backward(vocab, chunk, saved, cotangents):  # type: ignore[no-untyped-def]
    to_hidden, to_table, to_bias, like_table, like_bias = saved
    scale = cotangents[0]
    return (
        (scale * to_hidden).astype(to_hidden.dtype),
        (scale * to_table).astype(like_table.dtype),
        (scale * to_bias).astype(like_bias.dtype),
        None,
    )


_summed.defvjp(_summed_forward, _summed_backward)
