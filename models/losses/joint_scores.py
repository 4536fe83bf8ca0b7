"""Softmaxes of several scores at once over the passages of the whole batch, tile by tile.

A text has several representations (a vector, weights of tokens, a vector for each token), each of
which gives a score, and their weighted sum is one more. A loss over all of them needs, of a query,
its scores of the passages that came with it, and of those of all others a few sums. Here a tile
[queries, passages] exists at a time, as in `negative_masks`; the backward pass makes it again, and
`collectives` brings the passages of all devices, gathered or in a ring.

Letters: Q queries of B rows with S each, P passages, H kinds of representations, G passages that
come with a query, K documents that are no negatives of it.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from models.losses import chunked, tile_scores
from models.losses.negative_masks import LOWEST, NOBODY
from t5x_style.distributed import collectives
from t5x_style.interfaces.representation import Representations


class Rows(NamedTuple):
    """Queries.

    Attributes:
        representations: by kind, of the global batch.
        owner: [B, S] int32, example ids.
        excluded: [B, S, K] int32, documents that are none of its negatives, or NOBODY.
        own: [B, S, G] int32, numbers of the passages that came with it; P where there are fewer.
        valid: [B, S] bool.
    """

    representations: Representations
    owner: jax.Array
    excluded: jax.Array
    own: jax.Array
    valid: jax.Array


class Columns(NamedTuple):
    """Passages.

    Attributes:
        representations: by kind, of the global batch.
        owner: [B, S] int32, the id of the query that it came with.
        document: [B, S] int32, its row in its store.
        number: [B, S] int32, row x S + segment.
        valid: [B, S] bool.
    """

    representations: Representations
    owner: jax.Array
    document: jax.Array
    number: jax.Array
    valid: jax.Array


class Sums(NamedTuple):
    """Of each query. `others` are valid passages of other queries, but for excluded documents.

    Attributes:
        others: [B, S, H + 1] float32, log of the sum of exp(score) over the others, by kind; the
            last is that of the weighted sum of all kinds. About -3.4e38 where there are none.
        means: [B, S, H] float32, the mean of each kind's scores over the others under the softmax
            of the weighted sum. No gradient passes through that softmax.
        own: [B, S, H, G] float32, scores of the passages that came with it; 0 where there is none.
    """

    others: jax.Array
    means: jax.Array
    own: jax.Array


class Tiles(NamedTuple):
    """Settings of the score computation; hashable, so that it may be static.

    Attributes:
        kinds: of representations, with the weight of each in the sum.
        scale: what all scores are multiplied with.
        segments: texts of a row, of queries and of passages.
        mesh: the devices.
        exchange: 'gather' or 'ring', see `collectives`.
        cells: numbers of a tile, at most, of the kind that has most.
    """

    kinds: tuple[tuple[str, float], ...]
    scale: float
    segments: tuple[int, int]
    mesh: collectives.RowMesh
    exchange: str
    cells: int


def sums(
    rows: Rows, columns: Columns, weights: Mapping[str, float], *, scale: float, exchange: str,
    cells: int,
) -> Sums:  # fmt: skip
    """See `Sums`.

    Args:
        rows, columns: of the global batch.
        weights: kind -> its weight in the sum; these kinds are compared, in this order.
        scale: what all scores are multiplied with, 1 / temperature.
        exchange: 'gather' or 'ring'.
        cells: numbers that exist at a time on a device, of the kind that has most of them.
    """
    kinds = tuple(weights.items())
    segments = (rows.owner.shape[1], columns.owner.shape[1])
    tiles = Tiles(kinds, scale, segments, collectives.row_mesh(), exchange, cells)
    row_floats, row_facts = _parted(rows._replace(representations=_only(rows, weights)))
    column_floats, column_facts = _parted(columns._replace(representations=_only(columns, weights)))
    return _sums(row_floats, column_floats, row_facts, column_facts, tiles)


def _only(side: Rows | Columns, weights: Mapping[str, float]) -> Representations:
    return {kind: side.representations[kind] for kind in weights}


# What has a gradient and what has none are apart: each is the side with None for the other.


def _parted(side: Any) -> tuple[Any, Any]:
    def is_float(leaf: jax.Array) -> bool:
        return jnp.issubdtype(leaf.dtype, jnp.floating)

    floats = jax.tree.map(lambda leaf: leaf if is_float(leaf) else None, side)
    facts = jax.tree.map(lambda leaf: None if is_float(leaf) else leaf, side)
    return floats, facts


def _whole(floats: Any, facts: Any) -> Any:
    return jax.tree.map(
        lambda a, b: b if a is None else a, floats, facts, is_leaf=lambda leaf: leaf is None
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _sums(
    row_floats: Any, column_floats: Any, row_facts: Any, column_facts: Any, tiles: Tiles
) -> Sums:
    def local(rows: Rows, columns: Columns) -> Sums:
        def step(carry: Any, shown: Columns) -> tuple[Any, tuple[()]]:
            sizes = _sizes(rows, shown, tiles)

            def one(_: None, part: Any) -> tuple[None, Any]:
                rows, running = part

                def meet(running: Any, columns: Columns) -> tuple[Any, tuple[()]]:
                    return _merged(running, rows, columns, tiles), ()

                return None, chunked.scan_rows(meet, running, shown, sizes[1])[0]

            return chunked.scan_rows(one, None, (rows, carry), sizes[0])[1], ()

        count, kinds = rows.owner.shape, len(tiles.kinds)
        nothing = (
            jnp.full((*count, kinds + 1), LOWEST),
            jnp.zeros((*count, kinds + 1)),
            jnp.zeros((*count, kinds)),
            jnp.zeros((*count, kinds, rows.own.shape[-1])),
        )
        (top, total, weighted, own), _ = tiles.mesh.visit(tiles.exchange, step, nothing, columns)
        total = jnp.maximum(total, jnp.finfo(jnp.float32).tiny)
        return Sums(top + jnp.log(total), weighted / total[..., -1:], own)

    rows, columns = _whole(row_floats, row_facts), _whole(column_floats, column_facts)
    return tiles.mesh.run(local, rows, columns)


def _forward(
    row_floats: Any, column_floats: Any, row_facts: Any, column_facts: Any, tiles: Tiles
) -> tuple[Sums, Any]:
    found = _sums(row_floats, column_floats, row_facts, column_facts, tiles)
    return found, (row_floats, column_floats, row_facts, column_facts, found.others)


def _backward(tiles: Tiles, saved: Any, cotangents: Sums) -> Any:
    *sides, others = saved

    def local(row_floats: Any, column_floats: Any, row_facts: Any, column_facts: Any,
              others: jax.Array, cotangents: Sums) -> Any:  # fmt: skip
        def step(to_rows: Any, shown: Any) -> tuple[Any, Any]:
            sizes = _sizes(_whole(row_floats, row_facts), _whole(*shown), tiles)

            def one(to_columns: Any, part: Any) -> tuple[Any, Any]:
                row, facts, others, cotangents, to_row = part

                def meet(to_row: Any, column: Any) -> tuple[Any, Any]:
                    def scored(row: Any, column_floats: Any) -> jax.Array:
                        return _scores(_whole(row, facts), _whole(column_floats, column[1]), tiles)

                    made, pull = jax.vjp(scored, row, column[0])
                    error = _error(
                        made, _whole(row, facts), _whole(*column), others, cotangents, tiles
                    )
                    more, to_column = pull(error)
                    return jax.tree.map(jnp.add, to_row, more), to_column

                to_row, added = chunked.scan_rows(meet, to_row, shown, sizes[1])
                return jax.tree.map(jnp.add, to_columns, added), to_row

            zeros = jax.tree.map(jnp.zeros_like, shown[0])
            arrays = (row_floats, row_facts, others, cotangents, to_rows)
            to_columns, to_rows = chunked.scan_rows(one, zeros, arrays, sizes[0])
            return to_rows, to_columns

        to_rows, zeros = (jax.tree.map(jnp.zeros_like, x) for x in (row_floats, column_floats))
        shown = (column_floats, column_facts)
        return tiles.mesh.visit(tiles.exchange, step, to_rows, shown, zeros)

    return *tiles.mesh.run(local, *sides, others, cotangents), None, None


_sums.defvjp(_forward, _backward)


def _scores(rows: Rows, columns: Columns, tiles: Tiles) -> jax.Array:
    """[H, r, s, c, t]"""
    return tiles.scale * jnp.stack(
        [
            tile_scores.scores(
                kind, rows.representations[kind], columns.representations[kind], tiles.segments
            )
            for kind, _ in tiles.kinds
        ]
    )


def _masks(rows: Rows, columns: Columns) -> tuple[jax.Array, jax.Array]:
    """(which are others [r, s, c, t], which is number g of the own ones [r, s, c, t, G])."""
    known = jnp.any(rows.excluded[:, :, None, None] == columns.document[:, :, None], axis=-1)
    same_owner = rows.owner[:, :, None, None] == columns.owner
    both = rows.valid[:, :, None, None] & columns.valid
    own = rows.own[:, :, None, None] == columns.number[:, :, None]
    return both & ~same_owner & ~known, own & both[..., None]


def _with_sum(scores: jax.Array, tiles: Tiles) -> jax.Array:
    """[H + 1, ...]: the kinds' scores, followed by their weighted sum."""
    weights = jnp.asarray([weight for _, weight in tiles.kinds])
    return jnp.concatenate([scores, jnp.tensordot(weights, scores, axes=1)[None]])


def _merged(running: Any, rows: Rows, columns: Columns, tiles: Tiles) -> Any:
    """The running (largest score, sum of exponentials below it, ...), see `_sums`."""
    top, total, weighted, own = running
    scores = _scores(rows, columns, tiles)
    others, mine = _masks(rows, columns)
    kept = jnp.where(others, _with_sum(scores, tiles), LOWEST)
    new_top = jnp.maximum(top, jnp.moveaxis(jnp.max(kept, axis=(3, 4)), 0, -1))
    below = jnp.exp(kept - jnp.moveaxis(new_top, -1, 0)[..., None, None])
    below = jnp.where(others, below, 0.0)
    shrink = jnp.exp(top - new_top)
    total = total * shrink + jnp.einsum("xrsct->rsx", below)
    added = jnp.einsum("rsct,hrsct->rsh", below[-1], scores, precision="highest")
    own += jnp.einsum("hrsct,rsctg->rshg", scores, mine.astype(scores.dtype), precision="highest")
    return new_top, total, weighted * shrink[..., -1:] + added, own


def _error(
    scores: jax.Array, rows: Rows, columns: Columns, lse: jax.Array, to: Sums, tiles: Tiles
) -> jax.Array:
    """[H, r, s, c, t], the gradient of the scores; `to` is that of the sums."""
    others, mine = _masks(rows, columns)
    log_shares = _with_sum(scores, tiles) - jnp.moveaxis(lse, -1, 0)[..., None, None]
    shares = jnp.where(others, jnp.exp(jnp.where(others, log_shares, 0.0)), 0.0)
    by_kind = jnp.moveaxis(to.others, -1, 0)[..., None, None] * shares
    weights = jnp.asarray([weight for _, weight in tiles.kinds])[:, None, None, None, None]
    mean = jnp.moveaxis(to.means, -1, 0)[..., None, None] * shares[-1]
    own = jnp.einsum("rshg,rsctg->hrsct", to.own, mine.astype(scores.dtype), precision="highest")
    return by_kind[:-1] + weights * by_kind[-1] + mean + own


def _sizes(rows: Rows, columns: Columns, tiles: Tiles) -> tuple[int, int]:
    """Rows and columns of a tile: about as many of both, as many as its cells allow."""
    most = max(
        tile_scores.cells(kind, rows.representations[kind], columns.representations[kind])
        for kind, _ in tiles.kinds
    )
    pairs = max(1, tiles.cells // most)
    across = min(columns.owner.shape[0], max(1, math.isqrt(pairs)))
    down = min(rows.owner.shape[0], max(1, pairs // across))
    return down, min(columns.owner.shape[0], max(1, pairs // down))


def numbers(valid: jax.Array) -> jax.Array:
    """[B, S] int32: row x S + segment, of a mask [B, S]."""
    return jnp.arange(valid.size, dtype=jnp.int32).reshape(valid.shape)


def excluded(rows_own: jax.Array, columns: Columns, known: jax.Array | None) -> jax.Array:
    """[B, S, K] int32: the document of a query's first passage, and those known to answer it.

    Args:
        rows_own: [B, S, G], see `Rows.own`.
        columns: the passages.
        known: [B, S, K - 1] int32, or None.
    """
    first = jnp.take(
        columns.document.reshape(-1), rows_own[..., 0], mode="fill", fill_value=NOBODY
    )[..., None]
    return first if known is None else jnp.concatenate([first, known], axis=-1)
