"""Scores against the negatives of the whole batch, without ever holding them all.

A row (a query, or its positive) is compared with columns (passages, queries, positives) that are
cut over the same devices. Each device keeps a running log-sum-exp of its own rows while the columns
of all devices pass, a tile [chunk, columns] at a time, and the backward pass makes the tiles again:
as in FlashAttention (arXiv:2205.14135), with devices in a ring as in arXiv:2310.01889.

Letters: R rows, C columns, D dimension, K documents that are no negatives of a row.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from models.losses import chunked
from t5x_style.distributed import collectives

NOBODY = -1  # an owner that no row has, a document that no column has

LOWEST = jnp.finfo(jnp.float32).min  # finite: a row without negatives has loss 0, not NaN


class Rows(NamedTuple):
    """Rows: queries, or positives, that are compared with columns.

    Attributes:
        vectors: [R, D] float32.
        owner: [R] int32, the example id of the query.
        excluded: [R, K] int32, documents that are none of its negatives; NOBODY where there are
            fewer.
        valid: [R] bool.
    """

    vectors: jax.Array
    owner: jax.Array
    excluded: jax.Array
    valid: jax.Array


class Columns(NamedTuple):
    """Columns: candidates that rows are compared with.

    Attributes:
        vectors: [C, D] float32.
        owner: [C] int32, the query whose rows do not count it as a negative; or NOBODY.
        document: [C] int32, the passage's, or that of the query's positive.
        valid: [C] bool.
    """

    vectors: jax.Array
    owner: jax.Array
    document: jax.Array
    valid: jax.Array


class Tiles(NamedTuple):
    """Settings of the score computation; hashable, so that it may be static.

    Attributes:
        rows: the devices.
        exchange: 'gather', 'ring' or 'local', see `collectives`.
        chunk: rows of a tile, at most.
        scale: what inner products are multiplied with.
    """

    rows: collectives.RowMesh
    exchange: str
    chunk: int
    scale: float


def log_sum_exp(
    rows: Rows, columns: Sequence[Columns], threshold: jax.Array, *, scale: float, exchange: str,
    chunk: int,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Over each row's negatives: valid columns of another owner and of no excluded document.

    Args:
        rows: of the global batch.
        columns: of the global batch; a row is compared with all of them.
        threshold: [R] float32, a score.
        scale: what inner products are multiplied with, to give scores.
        exchange: 'gather', 'ring' or 'local', see `collectives`.
        chunk: rows whose scores exist at a time on a device.

    Returns:
        (log of the sum of exp(score) [R] float32, about -3.4e38 where there is no negative;
        number of negatives that score `threshold` or more [R] int32, without gradient).

    Raises:
        ValueError: an unknown exchange.
    """
    collectives.require_exchange(exchange, "log_sum_exp: exchange")
    tiles = Tiles(collectives.row_mesh(), exchange, chunk, scale)
    return _log_sum_exp(rows, tuple(columns), threshold, tiles)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _log_sum_exp(
    rows: Rows, columns: tuple[Columns, ...], threshold: jax.Array, tiles: Tiles
) -> tuple[jax.Array, jax.Array]:
    def local(rows: Rows, columns: tuple[Columns, ...], threshold: jax.Array) -> Any:
        def step(carry: Any, shown: Columns) -> tuple[Any, tuple[()]]:
            def one(_: None, part: Any) -> tuple[None, Any]:
                rows, threshold, running = part
                return None, _merged(running, *_scores(rows, shown, tiles.scale), threshold)

            return chunked.scan_rows(one, None, (rows, threshold, carry), tiles.chunk)[1], ()

        count = rows.owner.shape
        nothing = (jnp.full(count, LOWEST), jnp.zeros(count), jnp.zeros(count, jnp.int32))
        (top, total, above), _ = tiles.rows.visit(tiles.exchange, step, nothing, _joined(columns))
        return top + jnp.log(total), above

    return tiles.rows.run(local, rows, columns, threshold)


def _forward(
    rows: Rows, columns: tuple[Columns, ...], threshold: jax.Array, tiles: Tiles
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    result = _log_sum_exp(rows, columns, threshold, tiles)
    return result, (rows, columns, result[0])


def _backward(tiles: Tiles, saved: Any, cotangents: tuple[jax.Array, Any]) -> Any:
    rows, columns, lse = saved

    def local(rows: Rows, columns: tuple[Columns, ...], lse: Any, weight: Any) -> Any:
        def step(to_rows: jax.Array, shown: Columns) -> tuple[jax.Array, jax.Array]:
            def one(to_columns: jax.Array, part: Any) -> tuple[jax.Array, jax.Array]:
                rows, lse, weight, to_rows = part
                scores, negative = _scores(rows, shown, tiles.scale)
                share = jnp.where(negative, jnp.exp(scores - lse[:, None]), 0.0)
                error = share * (weight * tiles.scale)[:, None]
                to_columns += _product("rc,rd->cd", error, rows.vectors)
                return to_columns, to_rows + _product("rc,cd->rd", error, shown.vectors)

            arrays = (rows, lse, weight, to_rows)
            to_columns, to_rows = chunked.scan_rows(
                one, jnp.zeros_like(shown.vectors), arrays, tiles.chunk
            )
            return to_rows, to_columns

        shown = _joined(columns)
        to_rows = jnp.zeros_like(rows.vectors)
        zeros = jnp.zeros_like(shown.vectors)
        to_rows, to_columns = tiles.rows.visit(tiles.exchange, step, to_rows, shown, zeros)
        ends = [sum(c.owner.shape[0] for c in columns[: i + 1]) for i in range(len(columns))]
        return to_rows, tuple(jnp.split(to_columns, ends[:-1]))

    to_rows, to_columns = tiles.rows.run(local, rows, columns, lse, cotangents[0])
    return (
        Rows(to_rows, None, None, None),
        tuple(Columns(one, None, None, None) for one in to_columns),
        None,
    )


_log_sum_exp.defvjp(_forward, _backward)


def _scores(rows: Rows, columns: Columns, scale: float) -> tuple[jax.Array, jax.Array]:
    """(scores, which are of negatives), [r, C]."""
    scores = scale * _product("rd,cd->rc", rows.vectors, columns.vectors)
    known = jnp.any(rows.excluded[:, None, :] == columns.document[None, :, None], axis=-1)
    same_owner = rows.owner[:, None] == columns.owner[None]
    return scores, rows.valid[:, None] & columns.valid[None] & ~same_owner & ~known


def _merged(
    running: Any, scores: jax.Array, negative: jax.Array, threshold: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The running (largest score, sum of exponentials below it, number above the threshold)."""
    top, total, above = running
    kept = jnp.where(negative, scores, LOWEST)
    new_top = jnp.maximum(top, jnp.max(kept, axis=1))
    added = jnp.sum(jnp.exp(kept - new_top[:, None]), axis=1)
    higher = jnp.sum(negative & (scores >= threshold[:, None]), axis=1, dtype=jnp.int32)
    return new_top, total * jnp.exp(top - new_top) + added, above + higher


def _product(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """In full float32: at a temperature of 0.01 a bfloat16 product would be off by half a nat."""
    return jnp.einsum(spec, a, b, precision="highest", preferred_element_type=jnp.float32)


def _joined(columns: tuple[Columns, ...]) -> Columns:
    return Columns(*(jnp.concatenate(fields) for fields in zip(*columns, strict=True)))
