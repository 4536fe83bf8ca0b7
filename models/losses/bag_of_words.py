"""DupMAE's bag-of-words loss: the words of a passage from the highest logits that its tokens give.

Liu et al. 2022, arXiv:2211.08769, with the weights of the official code. For a passage with tokens
0..n+1, of which the first and last are special, and MLM logits z,

    m_v = max over tokens 1..n+1 of z_v
    loss = -(1/n) sum over distinct words v of log_softmax(m)_v

The maxima [B, S, V] are held, the logits [B, L, V] never are: columns are taken a few at a time,
with a running maximum. The backward pass needs no logits either: it knows which column gave each
maximum. So there are three matrix products in all.

On a mesh, the one in context (`jax.sharding.use_abstract_mesh`), each device has its own rows and
its own part of the vocabulary (`jax.shard_map`), so that gradients cross devices once.

Letters: B rows, L row length, S segments a row, n columns at a time, D width, V padded vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from models.losses import cross_entropy
from t5x_style.distributed.partitioning import BATCH_AXES
from t5x_style.interfaces.metrics import MetricSum

_VOCABULARY_AXIS = "tensor"
_COLUMNS = 32  # of a chunk, where nobody knows how many rows a batch will have


def largest_logits(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    segment_ids: jax.Array,
    *,
    segments: int,
    vocab_size: int,
    chunk: int,
) -> jax.Array:
    """The largest logit of each vocabulary entry among the tokens of each segment.

    The gradient goes to the token that gave the maximum, the first of equals, as in `torch.max`.

    Args:
        hidden: [B, L, D], through the head's transform; its dtype is that of the products.
        table: [V, D], the word embeddings.
        bias: [V].
        segment_ids: [B, L] int32, s + 1 for the tokens of segment s that count, 0 for others.
        segments: S.
        vocab_size: true size; padded entries get -inf.
        chunk: positions whose logits exist at a time on a device, at most (but one column of all
            its rows).

    Returns:
        [B, S, V] float32; a segment without tokens gets the bias alone.
    """
    best = _on_mesh(hidden, table.astype(hidden.dtype), segment_ids, segments, chunk)
    best = jnp.where(_member(segment_ids, segments).any(2)[:, :, None], best, 0.0)
    real = np.arange(table.shape[0]) < vocab_size
    return best + jnp.where(real, bias.astype(jnp.float32), -jnp.inf)


def bag_of_words(maxima: jax.Array, labels: jax.Array, segment_ids: jax.Array) -> MetricSum:
    """Cross-entropy of a segment's distinct words, in nats; its mean is over segments.

    Args:
        maxima: [B, S, V] float32, from `largest_logits`.
        labels: [B, L] int32, the words; `cross_entropy.IGNORED` at special tokens and padding.
        segment_ids: [B, L] int32.

    Returns:
        Segments without words count nothing.
    """
    segment = jnp.maximum(segment_ids - 1, 0)
    row = jnp.arange(labels.shape[0])[:, None]
    total = jax.nn.logsumexp(maxima, axis=2)  # [B, S]
    picked = maxima[row, segment, jnp.maximum(labels, 0)] - total[row, segment]  # [B, L]
    weights = word_weights(labels, segment_ids, maxima.shape[1])
    member = _member(segment_ids, maxima.shape[1])
    loss = -jnp.sum(jnp.where(member, (weights * picked)[:, None], 0.0), axis=2)  # [B, S]
    return MetricSum.of(loss, (member & (labels != cross_entropy.IGNORED)[:, None]).any(2))


def word_weights(labels: jax.Array, segment_ids: jax.Array, segments: int) -> jax.Array:
    """[B, L] float32: 1/n at the first occurrence of each of a segment's n words, else 0.

    labels    -100  7  5  7  -100      n = 3, so 7 and 5 weigh a third each;
    weights     0  1/3 1/3 0   0       repeats add nothing
    """
    valid = labels != cross_entropy.IGNORED
    same = (segment_ids[:, :, None] == segment_ids[:, None, :]) & valid[:, None, :]
    earlier = np.tri(labels.shape[1], k=-1, dtype=bool)  # [L, L], column before row
    again = jnp.any(same & earlier & (labels[:, :, None] == labels[:, None, :]), axis=2)
    count = jnp.sum(_member(segment_ids, segments) & valid[:, None], axis=2)  # [B, S]
    count = jnp.take_along_axis(count, jnp.maximum(segment_ids - 1, 0), axis=1)  # [B, L]
    return jnp.where(valid & ~again, 1.0 / jnp.maximum(count, 1), 0.0)


def _member(segment_ids: jax.Array, segments: int) -> jax.Array:
    """[B, S, L] bool from [B, L]."""
    return segment_ids[:, None, :] == jnp.arange(1, segments + 1)[None, :, None]


def _on_mesh(
    hidden: jax.Array, table: jax.Array, segment_ids: jax.Array, segments: int, chunk: int
) -> jax.Array:
    """`_largest` on each device of the mesh in context."""

    def largest(hidden: jax.Array, table: jax.Array, segment_ids: jax.Array) -> jax.Array:
        rows, length = hidden.shape[:2]
        if isinstance(rows, int) and isinstance(length, int):
            columns = max(1, min(chunk // rows, length))
        else:  # of a program for batches of any size
            columns = _COLUMNS
        return _largest(hidden, table, segment_ids, segments, columns)

    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return largest(hidden, table, segment_ids)
    divides = table.shape[0] % mesh.shape[_VOCABULARY_AXIS] == 0
    vocabulary = _VOCABULARY_AXIS if divides else None
    return jax.shard_map(
        largest,
        mesh=mesh,
        in_specs=(P(BATCH_AXES), P(vocabulary), P(BATCH_AXES)),
        out_specs=P(BATCH_AXES, None, vocabulary),
        check_vma=False,  # the rule inside would have to state what varies over which axis
    )(hidden, table, segment_ids)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _largest(
    hidden: jax.Array, table: jax.Array, segment_ids: jax.Array, segments: int, columns: int
) -> jax.Array:
    """[B, S, V] float32, -inf in a segment without tokens."""
    return _forward(hidden, table, segment_ids, segments, columns)[0]


def _forward(
    hidden: jax.Array, table: jax.Array, segment_ids: jax.Array, segments: int, columns: int
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    rows, length, _ = hidden.shape
    end = jnp.asarray(length, jnp.int32)  # an exported program knows it when it runs

    def one(number: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        best, found = state
        at = _columns(number, columns, length)
        states, ids = _take(hidden, at), _take(segment_ids, at)
        logits = jnp.einsum("bnd,vd->bnv", states, table, preferred_element_type=jnp.float32)

        def of_segment(segment: jax.Array) -> tuple[jax.Array, jax.Array]:
            mine = jnp.where((ids == segment)[:, :, None], logits, -jnp.inf)
            top = jnp.max(mine, axis=1)  # [B, V]
            # The first column with the maximum; a variadic argmax is slow on CPUs.
            return top, jnp.min(jnp.where(mine == top[:, None], at[:, None], end), axis=1)

        # One segment at a time: all at once would be [B, S, n, V].
        top, where = jax.lax.map(of_segment, jnp.arange(1, segments + 1))
        top, where = jnp.moveaxis(top, 0, 1), jnp.moveaxis(where, 0, 1)  # [B, S, V]
        return jnp.maximum(best, top), jnp.where(top > best, where, found)

    shape = (rows, segments, table.shape[0])
    start = (jnp.full(shape, -jnp.inf), jnp.broadcast_to(end, shape))
    best, found = jax.lax.fori_loop(0, -(-length // columns), one, start)
    return best, (hidden, table, segment_ids, found)


def _backward(
    segments: int, columns: int, saved: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    hidden, table, segment_ids, found = saved
    length = hidden.shape[1]

    def one(number: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        to_hidden, to_table = state
        at = _columns(number, columns, length)
        segment = jnp.maximum(_take(segment_ids, at) - 1, 0)[:, :, None]  # [B, n, 1]
        mine = jnp.take_along_axis(found, segment, axis=1) == at[:, None]  # [B, n, V]
        error = jnp.where(mine, jnp.take_along_axis(cotangent, segment, axis=1), 0.0)
        error = error.astype(hidden.dtype)
        product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        part = product("bnv,vd->bnd", error, table).astype(hidden.dtype)
        to_hidden = to_hidden.at[:, at].set(part, mode="drop", unique_indices=True)
        return to_hidden, to_table + product("bnv,bnd->vd", error, _take(hidden, at))

    start = (jnp.zeros_like(hidden), jnp.zeros(table.shape, jnp.float32))
    to_hidden, to_table = jax.lax.fori_loop(0, -(-length // columns), one, start)
    return to_hidden, to_table.astype(table.dtype), None


_largest.defvjp(_forward, _backward)


def _columns(number: jax.Array | int, columns: int, length: int) -> jax.Array:
    """[n] int32: the columns of a chunk, by its number; those past the end are `length` and up."""
    return number * columns + jnp.arange(columns, dtype=jnp.int32)


def _take(array: jax.Array, at: jax.Array) -> jax.Array:
    """[B, n, ...]: zeros, so segment 0, where a column is past the end."""
    return jnp.take(array, at, axis=1, mode="fill", fill_value=0)
