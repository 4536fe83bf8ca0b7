"""Softmax cross-entropy against a vocabulary table, without ever holding [N, V].

Positions are taken a chunk at a time; only one chunk of logits [chunk, V] exists. Two forms:

  cross_entropy       one loss per position. The backward pass recomputes the logits from the saved
                      log-sum-exp: four matrix products in all, where the plain form has three.
  cross_entropy_mean  sums and counts, as `MetricSum`s. The cotangent of a sum is one scalar for all
                      positions, so the forward pass already leaves the gradients up to that factor
                      (as in Liger kernels, arXiv:2410.10989): three products, one softmax.

On a mesh, the one in context (`jax.sharding.use_abstract_mesh`), each device loops over its own
positions and its own part of the vocabulary (`jax.shard_map`), one chunk at a time; the
table's gradient is added up on each device and reduced over the mesh once, after the loop. Left to
the partitioner it would be reduced in every chunk.

The table may be padded: rows from `vocab_size` on get a logit of -inf, and no gradient.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.losses import chunked
from models.losses.output_layer import Arrays, Head, Split, split_of
from t5x_style.interfaces.metrics import MetricSum

IGNORED = -100

Gradients = tuple[jax.Array, jax.Array, jax.Array, None]  # hidden, table, bias; labels have none


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
      chunk: how many positions have logits at a time, at most, on each device.

    Returns:
      [...] float32, 0 at ignored positions. Softmax and sums are float32.
    """
    _check(hidden, table, bias, labels, vocab_size, chunk)
    split = split_of(table.shape)
    losses = _per_position(*_flat(hidden, table, bias, labels, vocab_size, split), split, chunk)
    return losses[: labels.size].reshape(labels.shape)


def cross_entropy_mean(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    labels: jax.Array,
    *,
    vocab_size: int,
    chunk: int,
) -> tuple[MetricSum, MetricSum]:
    """Mean cross-entropy and accuracy over the positions with a label.

    Arguments as in `cross_entropy`. Gradients flow through the first result only.

    Returns:
      (loss in nats per predicted position, share of them whose label has the highest logit).
    """
    _check(hidden, table, bias, labels, vocab_size, chunk)
    split = split_of(table.shape)
    total, correct = _summed(*_flat(hidden, table, bias, labels, vocab_size, split), split, chunk)
    weight = jnp.sum(labels != IGNORED).astype(jnp.float32)[None]
    return MetricSum(total[None], weight), MetricSum(jax.lax.stop_gradient(correct)[None], weight)


def gather_predicted(
    hidden: jax.Array, labels: jax.Array, budget: int
) -> tuple[jax.Array, jax.Array]:
    """Keeps, in order, the positions of each row that have a label.

    Args:
      hidden: [B, L, D].
      labels: [B, L] int32, `IGNORED` where nothing is predicted.
      budget: how many positions a row keeps; must be a bound on how many labels a row has
        (`masking.row_budget` proves one). A row with more labels gets NaN, not a smaller loss.

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


def _flat(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    labels: jax.Array,
    vocab: int,
    split: Split,
) -> Arrays:
    """hidden [N, D], table [V, D], bias [V] float32, labels [N], where N divides by the devices."""
    missing = -labels.size % split.devices
    rows = jnp.pad(hidden.reshape(-1, hidden.shape[-1]), [(0, missing), (0, 0)])
    labels = jnp.pad(labels.reshape(-1), [(0, missing)], constant_values=IGNORED)
    real = np.arange(table.shape[0]) < vocab
    return rows, table, jnp.where(real, bias.astype(jnp.float32), -jnp.inf), labels


def _chunked(chunk: int, labels: jax.Array) -> Callable[..., Any]:
    """A loop over chunks of this device's [N] labels and whatever else has N rows.

    Returns:
      (body, carry, arrays [N, ...]) -> (carry, results [N, ...]), where the body takes a carry and
      a tuple of one chunk of each array. Where the last chunk is not full, labels are `IGNORED`.
    """

    def loop(body: Callable[..., Any], carry: Any, *arrays: jax.Array) -> Any:
        fills = (IGNORED, *(0 for _ in arrays))
        return chunked.scan_rows(body, carry, (labels, *arrays), chunk, fills)

    return loop


# --- one loss per position ------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _per_position(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    labels: jax.Array,
    split: Split,
    chunk: int,
) -> jax.Array:
    return _per_position_forward(hidden, table, bias, labels, split, chunk)[0]


def _per_position_forward(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    labels: jax.Array,
    split: Split,
    chunk: int,
) -> tuple[jax.Array, Arrays]:
    def local(hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array) -> Arrays:
        head = Head(split, table, bias)

        def one(_: None, chunk: Arrays) -> tuple[None, Arrays]:
            targets, rows = chunk
            top, total, gold, _ = head.softmax(head.logits(rows), targets)
            lse = top + jnp.log(total)
            return None, (jnp.where(targets != IGNORED, lse - gold, 0.0), lse)

        return _chunked(chunk, labels)(one, None, hidden)[1]

    arguments = (hidden, table.astype(hidden.dtype), bias, labels)
    losses, lse = split.run(local, arguments, ("position", "position"))
    return losses, (hidden, table, bias, labels, lse)


def _per_position_backward(
    split: Split, chunk: int, saved: Arrays, cotangent: jax.Array
) -> Gradients:
    hidden, table, bias, labels, lse = saved

    def local(
        hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, *rest: jax.Array
    ) -> Arrays:
        head = Head(split, table, bias)

        def one(carry: Arrays, chunk: Arrays) -> tuple[Arrays, Arrays]:
            targets, rows, row_lse, weight = chunk
            probability = jnp.exp(head.logits(rows) - row_lse[:, None])
            error = head.error(probability, targets, weight)
            to_hidden, *new = head.products(error, rows)
            return jax.tree.map(jnp.add, carry, tuple(new)), (to_hidden,)

        loop = _chunked(chunk, labels)
        (to_table, to_bias), (to_hidden,) = loop(one, head.zeros(), hidden, *rest)
        return head.reduced(to_hidden, to_table, to_bias)

    weight = jnp.where(labels != IGNORED, cotangent, 0.0)
    arguments = (hidden, table.astype(hidden.dtype), bias, labels, lse, weight)
    gradients = split.run(local, arguments, ("position", "table", "bias"))
    return gradients[0], gradients[1].astype(table.dtype), gradients[2], None


_per_position.defvjp(_per_position_forward, _per_position_backward)


# --- sums over positions --------------------------------------------------------------------------


def _correct(top: jax.Array, gold: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.sum((labels != IGNORED) & (gold == top), dtype=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _summed(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    labels: jax.Array,
    split: Split,
    chunk: int,
) -> tuple[jax.Array, jax.Array]:
    """(sum of losses [], number of correct positions []), float32."""

    def local(
        hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        head = Head(split, table, bias)

        def one(carry: Arrays, chunk: Arrays) -> tuple[Arrays, Arrays]:
            targets, rows = chunk
            top, total, gold, _ = head.softmax(head.logits(rows), targets)
            loss = jnp.where(targets != IGNORED, top + jnp.log(total) - gold, 0.0)
            new = (jnp.sum(loss), _correct(top, gold, targets))
            return jax.tree.map(jnp.add, carry, new), ()

        zeros = (jnp.zeros(()), jnp.zeros(()))
        sums, _ = _chunked(chunk, labels)(one, zeros, hidden)
        return jax.lax.psum(sums, split.positions)

    arguments = (hidden, table.astype(hidden.dtype), bias, labels)
    return split.run(local, arguments, ("scalar", "scalar"))


def _summed_forward(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    labels: jax.Array,
    split: Split,
    chunk: int,
) -> tuple[Arrays, Arrays]:
    def local(hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array) -> Arrays:
        head = Head(split, table, bias)

        def one(carry: Arrays, chunk: Arrays) -> tuple[Arrays, Arrays]:
            targets, rows = chunk
            top, total, gold, exp = head.softmax(head.logits(rows), targets)
            weight = (targets != IGNORED).astype(jnp.float32)
            error = head.error(exp / total[:, None], targets, weight)
            to_hidden, *new = head.products(error, rows)
            loss = jnp.sum(jnp.where(weight > 0, top + jnp.log(total) - gold, 0.0))
            new = (loss, _correct(top, gold, targets), *new)
            return jax.tree.map(jnp.add, carry, new), (to_hidden,)

        zeros = (jnp.zeros(()), jnp.zeros(()), *head.zeros())
        carry, (to_hidden,) = _chunked(chunk, labels)(one, zeros, hidden)
        sums = jax.lax.psum(carry[:2], split.positions)
        return (*sums, *head.reduced(to_hidden, *carry[2:]))

    arguments = (hidden, table.astype(hidden.dtype), bias, labels)
    outputs = ("scalar", "scalar", "position", "table", "bias")
    loss, correct, *gradients = split.run(local, arguments, outputs)
    # The table's own dtype travels as an empty array: residuals must be arrays.
    return (loss, correct), (*gradients, jnp.zeros(0, table.dtype))


def _summed_backward(split: Split, chunk: int, saved: Arrays, cotangents: Arrays) -> Gradients:
    to_hidden, to_table, to_bias, like_table = saved
    scale = cotangents[0]
    return (
        (scale * to_hidden).astype(to_hidden.dtype),
        (scale * to_table).astype(like_table.dtype),
        scale * to_bias,
        None,
    )


_summed.defvjp(_summed_forward, _summed_backward)
