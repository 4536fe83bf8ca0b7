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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from t5x_style.metrics import Mean

IGNORED = -100

Arrays = tuple[jax.Array, ...]
Gradients = tuple[jax.Array, jax.Array, jax.Array, None]  # hidden, table, bias; labels have none


class _Problem(NamedTuple):
    """Everything flat and cut into C chunks of n positions."""

    hidden: jax.Array  # [n, C, D] computation dtype
    table: jax.Array  # [V, D] computation dtype
    bias: jax.Array  # [V] float32, -inf on padded rows
    labels: jax.Array  # [n, C] int32


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
    chunks = number_of_chunks(labels.size, labels.shape[-1], chunk)
    losses = _per_position(rows, table, bias, labels.reshape(-1), vocab_size, chunks)
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
    chunks = number_of_chunks(labels.size, labels.shape[-1], chunk)
    total, correct = _summed(rows, table, bias, labels.reshape(-1), vocab_size, chunks)
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


def number_of_chunks(positions: int, inner: int, chunk: int) -> int:
    """Smallest number of chunks of at most `chunk` positions, preferably one that divides evenly.

    The leading axis is the sharded one. A divisor of `inner`, the last axis of the labels, leaves
    it alone; a divisor of all positions needs no padding. Either is taken where there is one within
    twice the smallest number.
    """
    least = max(1, math.ceil(positions / chunk))
    for size in (inner, positions):
        for count in range(least, 2 * least):
            if size % count == 0:
                return count
    return least


def _cut(
    hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, vocab: int, chunks: int
) -> _Problem:
    real = np.arange(table.shape[0]) < vocab
    return _Problem(
        _strided(hidden, chunks, 0),
        _whole_rows(table.astype(hidden.dtype)),
        jnp.where(real, bias.astype(jnp.float32), -jnp.inf),
        _strided(labels, chunks, IGNORED),
    )


def _whole_rows(table: jax.Array) -> jax.Array:
    """The table with its features gathered, once for all chunks, if a mesh is in context.

    Left sharded over the axis that also shards the positions ('fsdp'), the product with the logits'
    gradient inside a loop comes back in a wrong order on a mesh of three axes (jax 0.10.2; a plain
    `lax.scan` over `jax.checkpoint` shows the same). Hence the engine traces losses under
    `jax.sharding.use_abstract_mesh`.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return table
    return jax.lax.with_sharding_constraint(table, P(P.UNCONSTRAINED, None))


def _strided(x: jax.Array, chunks: int, fill: int) -> jax.Array:
    """[N, ...] -> [ceil(N / C), C, ...]; chunk c is [:, c]."""
    missing = -x.shape[0] % chunks
    if missing:
        x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)
    return x.reshape(-1, chunks, *x.shape[1:])


def _unstrided(x: jax.Array, rows: int) -> jax.Array:
    """The inverse of `_strided`."""
    return x.reshape(-1, *x.shape[2:])[:rows]


def _loop(
    body: Callable[[Any, Arrays], tuple[Any, Arrays]], carry: Any, inputs: Arrays, outputs: Arrays
) -> tuple[Any, Arrays]:
    """A scan over the chunks, which are on axis 1.

    `jax.lax.scan` wants them on axis 0, which would transpose every array twice.

    Args:
      body: (carry, one chunk [n, ...] of each input) -> (carry, one chunk of each output).
      carry: of any structure.
      inputs: [n, C, ...] each.
      outputs: arrays of the outputs' shapes [n, C, ...] and dtypes; all of it is written.
    """

    def step(c: jax.Array, state: tuple[Any, Arrays]) -> tuple[Any, Arrays]:
        carry, written = state
        chunk = tuple(jax.lax.dynamic_index_in_dim(x, c, 1, keepdims=False) for x in inputs)
        carry, new = body(carry, chunk)
        pairs = zip(written, new, strict=True)
        return carry, tuple(jax.lax.dynamic_update_index_in_dim(w, x, c, 1) for w, x in pairs)

    return jax.lax.fori_loop(0, inputs[0].shape[1], step, (carry, outputs))


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
    hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, vocab: int, chunks: int
) -> jax.Array:
    return _per_position_forward(hidden, table, bias, labels, vocab, chunks)[0]


def _per_position_forward(
    hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, vocab: int, chunks: int
) -> tuple[jax.Array, Arrays]:
    problem = _cut(hidden, table, bias, labels, vocab, chunks)

    def one(_: None, chunk: Arrays) -> tuple[None, Arrays]:
        logits = _logits(chunk[0], problem)
        lse = jax.nn.logsumexp(logits, axis=1)
        gold = _at_label(logits, chunk[1])
        return None, (jnp.where(chunk[1] != IGNORED, lse - gold, 0.0), lse)

    zeros = jnp.zeros(problem.labels.shape, jnp.float32)
    inputs = (problem.hidden, problem.labels)
    _, (losses, lse) = _loop(one, None, inputs, (zeros, zeros))
    return _unstrided(losses, hidden.shape[0]), (hidden, table, bias, labels, lse)


def _per_position_backward(
    vocab: int, chunks: int, saved: Arrays, cotangent: jax.Array
) -> Gradients:
    hidden, table, bias, labels, lse = saved
    problem = _cut(hidden, table, bias, labels, vocab, chunks)
    weights = _strided(jnp.where(labels != IGNORED, cotangent, 0.0), chunks, 0)

    def one(carry: Arrays, chunk: Arrays) -> tuple[Arrays, Arrays]:
        rows, targets, row_lse, weight = chunk
        probabilities = jnp.exp(_logits(rows, problem) - row_lse[:, None])
        error = _error(probabilities, targets, weight)
        to_hidden, to_table, to_bias = _products(error, rows, problem)
        return (carry[0] + to_table, carry[1] + to_bias), (to_hidden.astype(hidden.dtype),)

    inputs = (problem.hidden, problem.labels, lse, weights)
    outputs = (jnp.zeros_like(problem.hidden),)
    (to_table, to_bias), (to_hidden,) = _loop(one, _zeros(problem), inputs, outputs)
    to_hidden = _unstrided(to_hidden, hidden.shape[0])
    return to_hidden, to_table.astype(table.dtype), to_bias.astype(bias.dtype), None


_per_position.defvjp(_per_position_forward, _per_position_backward)


# --- sums over positions --------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _summed(
    hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, vocab: int, chunks: int
) -> tuple[jax.Array, jax.Array]:
    """(sum of losses [], number of correct positions []), float32."""
    problem = _cut(hidden, table, bias, labels, vocab, chunks)

    def one(carry: Arrays, chunk: Arrays) -> tuple[Arrays, Arrays]:
        loss, correct, _, _ = _softmax_parts(_logits(chunk[0], problem), chunk[1])
        return (carry[0] + jnp.sum(loss), carry[1] + jnp.sum(correct)), ()

    zeros = (jnp.zeros(()), jnp.zeros(()))
    return _loop(one, zeros, (problem.hidden, problem.labels), ())[0]


def _summed_forward(
    hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, vocab: int, chunks: int
) -> tuple[Arrays, Arrays]:
    problem = _cut(hidden, table, bias, labels, vocab, chunks)

    def one(carry: Arrays, chunk: Arrays) -> tuple[Arrays, Arrays]:
        rows, targets = chunk
        loss, correct, exp, total = _softmax_parts(_logits(rows, problem), targets)
        weight = (targets != IGNORED).astype(jnp.float32)
        error = _error(exp / total[:, None], targets, weight)
        to_hidden, *to_rest = _products(error, rows, problem)
        new = (*to_rest, jnp.sum(loss), jnp.sum(correct))
        carry = tuple(old + more for old, more in zip(carry, new, strict=True))
        return carry, (to_hidden.astype(hidden.dtype),)

    zeros = (*_zeros(problem), jnp.zeros(()), jnp.zeros(()))
    inputs, outputs = (problem.hidden, problem.labels), (jnp.zeros_like(problem.hidden),)
    (to_table, to_bias, loss, correct), (to_hidden,) = _loop(one, zeros, inputs, outputs)
    # The parameters' own dtypes travel as empty arrays: residuals must be arrays.
    dtypes = (jnp.zeros(0, table.dtype), jnp.zeros(0, bias.dtype))
    saved = (_unstrided(to_hidden, hidden.shape[0]), to_table, to_bias, *dtypes)
    return (loss, correct), saved


def _summed_backward(vocab: int, chunks: int, saved: Arrays, cotangents: Arrays) -> Gradients:
    to_hidden, to_table, to_bias, like_table, like_bias = saved
    scale = cotangents[0]
    return (
        (scale * to_hidden).astype(to_hidden.dtype),
        (scale * to_table).astype(like_table.dtype),
        (scale * to_bias).astype(like_bias.dtype),
        None,
    )


_summed.defvjp(_summed_forward, _summed_backward)
