"""Search rows that are sharded over all devices: the best k for queries of all devices.

The corpus lies on all axes of the mesh; queries on the data axes, with copies along the others. One
device, or none in context, is a mesh of one.

Letters: N rows, D vector size, B queries, k hits.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from t5x_style.distributed.partitioning import AXES, BATCH_AXES
from t5x_style.interfaces.index import NO_ROW

NEVER = -1  # the step of a row that has not been embedded, and is not found


def shards() -> int:
    """Devices of the mesh in context, each of which has a share of the rows."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else math.prod(mesh.shape[axis] for axis in AXES)


@dataclasses.dataclass(frozen=True)
class Place:
    """Place of a device's share of the corpus, and how results are combined.

    Attributes:
      first: [] int32, its first row.
      alone: whether there is one share only.
    """

    first: jax.Array | int
    alone: bool

    def rows(self, table: jax.Array) -> jax.Array:
        """[n] int32: which rows of the corpus this device's [n, ...] of a table are."""
        return jnp.arange(table.shape[0], dtype=jnp.int32) + self.first

    def gathered(self, queries: Any) -> Any:
        """Every device's queries, on every device."""
        if self.alone:
            return queries
        return jax.tree.map(lambda x: jax.lax.all_gather(x, BATCH_AXES, tiled=True), queries)

    def stacked(self, results: jax.Array) -> jax.Array:
        """[B, ...] of each share -> [shares, B, ...], in the order of rows."""
        return results[None] if self.alone else jax.lax.all_gather(results, AXES)

    def added(self, results: jax.Array) -> jax.Array:
        """The sum over shares of [B, ...], for this device's own queries."""
        if self.alone:
            return results
        summed = jax.lax.psum(results, "tensor")
        return jax.lax.psum_scatter(summed, BATCH_AXES, scatter_dimension=0, tiled=True)

    def local_part(self, results: jax.Array) -> jax.Array:
        """The part of [B, ...] that is about the queries of this device."""
        if self.alone:
            return results
        shares = jax.lax.axis_size(BATCH_AXES)
        size = results.shape[0] // shares
        start = jax.lax.axis_index(BATCH_AXES) * size
        return jax.lax.dynamic_slice_in_dim(results, start, size)


def over_shares(local: Callable[..., Any], queries: tuple[Any, ...], tables: Any) -> Any:
    """`local(place, *queries, *tables)` on each device's share of the tables.

    Args:
      local: gets its own queries, and its own rows of the tables.
      queries: pytrees of [B, ...], cut over the data axes, as is what comes back.
      tables: pytrees of [N, ...], cut over all axes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return local(Place(0, True), *queries, *tables)

    def on_device(queries: Any, tables: Any) -> Any:
        rows = jax.tree.leaves(tables)[0].shape[0]
        return local(Place(jax.lax.axis_index(AXES) * rows, False), *queries, *tables)

    cut_queries, cut_tables = PartitionSpec(BATCH_AXES), PartitionSpec(AXES)
    # The axes that hold copies of the queries compute alike, which the check cannot see.
    return jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(cut_queries, cut_tables),
        out_specs=cut_queries,
        check_vma=False,
    )(queries, tables)


def local_rows(table: jax.Array, local: jax.Array) -> jax.Array:
    """Rows of each device's own share: [shards * R, ...], cut over all devices.

    Args:
      table: [N, ...].
      local: [shards, R] int32, rows of each share; one beyond its end gives some other row.
    """

    def take_rows(table: jax.Array, local: jax.Array) -> jax.Array:
        return table[jnp.clip(local[0], 0, table.shape[0] - 1)]

    return _on_shares(take_rows)(table, local)


def with_local_rows(table: jax.Array, local: jax.Array, rows: jax.Array) -> jax.Array:
    """`table` with `rows` [shards * R, ...] at `local`, see `local_rows`; none beyond the end."""

    def set_rows(table: jax.Array, local: jax.Array, rows: jax.Array) -> jax.Array:
        return table.at[local[0]].set(rows, mode="drop")

    return _on_shares(set_rows)(table, local, rows)


def _on_shares(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`function` on each device, of arrays that are cut over all devices, as is what it gives."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function
    shares = PartitionSpec(AXES)
    mapped: Callable[..., jax.Array] = jax.shard_map(
        lambda *arrays: function(*arrays), mesh=mesh, in_specs=shares, out_specs=shares
    )
    return mapped


def take(
    table: jax.Array, rows: jax.Array, otherwise: int, dtype: DTypeLike = jnp.int32
) -> jax.Array:
    """[B, ...] of `dtype`: `table` [N, ...] at `rows` [B]; `otherwise` where a row is NO_ROW."""
    found = over_shares(functools.partial(_take_local, dtype), (rows,), (table,))
    there = (rows != NO_ROW).reshape(-1, *(1,) * (found.ndim - 1))
    return jnp.where(there, found, otherwise)


def _take_local(dtype: DTypeLike, place: Place, rows: jax.Array, table: jax.Array) -> jax.Array:
    """`table`[rows] in `dtype`; 0 for a row that is on no device."""
    at = place.gathered(rows) - place.first
    inside = (at >= 0) & (at < table.shape[0])
    found = table[jnp.clip(at, 0, table.shape[0] - 1)].astype(dtype)
    return place.added(jnp.where(inside.reshape(-1, *(1,) * (found.ndim - 1)), found, 0))


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Result of `judge` for rows, a few of each query's at a time; see `DeviceIndex.judge`."""

    judge: Callable[[jax.Array, jax.Array, Any], jax.Array]
    at_once: int

    def __call__(
        self, place: Place, rows: jax.Array, about: Any, tokens: jax.Array, lengths: jax.Array
    ) -> jax.Array:
        rows, about = place.gathered((rows, about))
        count, hits = rows.shape
        turns = -(-hits // self.at_once)
        padded = jnp.pad(rows, ((0, 0), (0, turns * self.at_once - hits)), constant_values=NO_ROW)

        def turn(rows: jax.Array) -> jax.Array:
            at = rows - place.first
            inside = (rows != NO_ROW) & (at >= 0) & (at < tokens.shape[0])
            at = jnp.clip(at, 0, tokens.shape[0] - 1)
            return inside & self.judge(tokens[at].astype(jnp.int32), lengths[at], about)

        parts = jnp.moveaxis(padded.reshape(count, turns, self.at_once), 1, 0)
        judged = jnp.moveaxis(jax.lax.map(turn, parts), 0, 1).reshape(count, -1)[:, :hits]
        return place.added(judged.astype(jnp.int32)) > 0


@dataclasses.dataclass(frozen=True)
class Scan:
    """Scores of a device's rows, a chunk of them at a time.

    Attributes:
      queries: [B, D].
      barred_values: [B] int32 each; a query does not see the rows whose column of that name says
        the same.
      embeddings: [n, D], this device's.
      row_steps: [n] int32; NEVER hides a row.
      columns: [n] int32 each, 'row' among them: the numbers of the rows in the whole corpus.
      chunk: rows whose scores [B, chunk] exist at a time.
    """

    queries: jax.Array
    barred_values: Mapping[str, jax.Array]
    embeddings: jax.Array
    row_steps: jax.Array
    columns: Mapping[str, jax.Array]
    chunk: int

    def fold(self, take: Callable[[Any, jax.Array, jax.Array], Any], start: Any) -> Any:
        """`start` after `take(it, scores [B, c] float32, rows [c])` of each chunk of c rows.

        A row that a query does not see, and a row that was in a chunk before, scores -inf.
        """
        count = self.embeddings.shape[0]
        size = min(self.chunk, count)

        def one(number: jax.Array, so_far: Any) -> Any:
            first = jnp.minimum(number * size, count - size)

            def part(table: jax.Array) -> jax.Array:
                return jax.lax.dynamic_slice_in_dim(table, first, size)

            scores = jnp.einsum(
                "bd,nd->bn",
                self.queries,
                part(self.embeddings),
                preferred_element_type=jnp.float32,
                precision="highest",
            )
            # The last chunk begins early enough to be full: what it shares was seen before.
            seen = first + jnp.arange(size) < number * size
            barred = jnp.broadcast_to(((part(self.row_steps) == NEVER) | seen)[None], scores.shape)
            for name, value in self.barred_values.items():
                same = value[:, None] == part(self.columns[name])[None]
                barred |= same & (value != NO_ROW)[:, None]
            return take(so_far, jnp.where(barred, -jnp.inf, scores), part(self.columns["row"]))

        return jax.lax.fori_loop(0, -(-count // size), one, start)


@dataclasses.dataclass(frozen=True)
class Search:
    """The best k of all rows."""

    k: int
    chunk: int
    recall_target: float

    def __call__(
        self,
        place: Place,
        queries: jax.Array,
        barred_values: Mapping[str, jax.Array],
        embeddings: jax.Array,
        row_steps: jax.Array,
        columns: Mapping[str, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        queries, barred_values = place.gathered((queries, barred_values))
        columns = {**columns, "row": place.rows(embeddings)}

        def better(best: Any, scores: jax.Array, numbers: jax.Array) -> Any:
            found, at = self._top(scores, min(self.k, len(numbers)))
            return self._best(
                jnp.concatenate([best[0], found], axis=1),
                jnp.concatenate([best[1], jnp.take(numbers, at)], axis=1),
            )

        nothing = (
            jnp.full((queries.shape[0], self.k), -jnp.inf, jnp.float32),
            jnp.full((queries.shape[0], self.k), NO_ROW, jnp.int32),
        )
        scan = Scan(queries, barred_values, embeddings, row_steps, columns, self.chunk)
        scores, rows = scan.fold(better, nothing)
        if not place.alone:
            scores, rows = self._best(
                *(jnp.concatenate(list(place.stacked(x)), axis=1) for x in (scores, rows))
            )
        rows = jnp.where(jnp.isfinite(scores), rows, NO_ROW)
        return place.local_part(scores), place.local_part(rows)

    def _top(self, scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
        def approximate(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = jax.lax.approx_max_k(scores, k, recall_target=self.recall_target)
            return found[0], found[1]

        def exact(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = jax.lax.top_k(scores, k)
            return found[0], found[1]

        return jax.lax.platform_dependent(scores, tpu=approximate, default=exact)

    def _best(self, scores: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The best k of [B, more]; ties by place, which is by row."""
        scores, at = jax.lax.top_k(scores, self.k)
        return scores, jnp.take_along_axis(rows, at, axis=1)


@dataclasses.dataclass(frozen=True)
class Overlooked:
    """[B, k] int32: how many rows that a search did not find are better than each that it did.

    Counts instead of sorting, so that it is exact wherever the search is approximate.
    """

    chunk: int

    def __call__(
        self,
        place: Place,
        queries: jax.Array,
        found: tuple[jax.Array, jax.Array],
        barred_values: Mapping[str, jax.Array],
        embeddings: jax.Array,
        row_steps: jax.Array,
        columns: Mapping[str, jax.Array],
    ) -> jax.Array:
        queries, (best, rows), barred_values = place.gathered((queries, found, barred_values))
        columns = {**columns, "row": place.rows(embeddings)}

        def count(counts: jax.Array, scores: jax.Array, numbers: jax.Array) -> jax.Array:
            missed = ~jnp.any(rows[:, :, None] == numbers, axis=1)
            better = (scores[:, None] > best[:, :, None]) & missed[:, None]
            return counts + jnp.sum(better, axis=2, dtype=jnp.int32)

        scan = Scan(queries, barred_values, embeddings, row_steps, columns, self.chunk)
        return place.added(scan.fold(count, jnp.zeros(best.shape, jnp.int32)))
