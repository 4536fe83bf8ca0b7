"""Exchange between the devices that share a batch's rows; exact, and with gradients.

A loss over the whole batch compares the rows of each device with those of all others. `gather` and
`ring` bring them there: `gather` holds the rows of all devices at a time, `ring` those of one,
which are passed on while it works on them. `local` stays with its own rows: another loss. One
device, or none in context, is a mesh of one.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from t5x_style.distributed.partitioning import BATCH_AXES

EXCHANGES = ("gather", "ring")  # that show every device all rows
LOCAL = "local"

Step = Callable[[Any, Any], tuple[Any, Any]]


class RowMesh(NamedTuple):
    """The devices over which rows are cut; hashable, so that it may be static.

    Attributes:
      mesh: None on one device.
      axes: those of `mesh` that cut rows; other axes hold copies.
    """

    mesh: jax.sharding.AbstractMesh | None
    axes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of shares."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes) if self.mesh else 1

    def run(self, local: Callable[..., Any], *rows: Any, whole: tuple[Any, ...] = ()) -> Any:
        """`local` on each device's share of rows; its results are such shares, too.

        Gradients do not pass: to be called inside `jax.custom_vjp`, or where none are wanted.

        Args:
          local: function of `rows` and `whole`.
          rows: pytrees of arrays [rows, ...], which are cut.
          whole: pytrees of arrays that every device has.
        """
        if self.mesh is None:
            return local(*rows, *whole)
        cut, copied = PartitionSpec(self.axes), PartitionSpec()
        # Axes that hold copies compute alike, which the check of replication cannot see.
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(*(cut for _ in rows), *(copied for _ in whole)),
            out_specs=cut,
            check_vma=False,
        )(*rows, *whole)

    def visit(self, exchange: str, step: Step, carry: Any, shown: Any, zeros: Any = ()) -> Any:
        """Inside `run`: shows every device the rows of all.

        Args:
          exchange: 'gather', one step with the rows of all devices in their order; 'ring', a step
            for each device's; 'local', one step with this device's own.
          step: (carry, rows) -> (carry, something to add up for these rows, shaped like `zeros`).
          carry: what this device keeps.
          shown: pytree of this device's [rows, ...].
          zeros: pytree of this device's [rows, ...]: where the sums begin.

        Returns:
          (carry, zeros plus what all devices added for this device's rows).
        """
        if self.mesh is None or exchange == LOCAL:
            carry, added = step(carry, shown)
            return carry, jax.tree.map(jnp.add, zeros, added)
        if exchange == "gather":
            whole = functools.partial(jax.lax.all_gather, axis_name=self.axes, tiled=True)
            share = functools.partial(jax.lax.psum_scatter, axis_name=self.axes, tiled=True)
            carry, added = step(carry, jax.tree.map(whole, shown))
            return carry, jax.tree.map(lambda a, b: a + share(b), zeros, added)
        onwards = [(one, (one + 1) % self.size) for one in range(self.size)]
        send = functools.partial(jax.lax.ppermute, axis_name=self.axes, perm=onwards)

        def turn(state: Any, _: None) -> tuple[Any, None]:
            carry, shown, sums = state
            carry, added = step(carry, shown)
            sums = jax.tree.map(jnp.add, sums, added)
            return (carry, *jax.tree.map(send, (shown, sums))), None

        (carry, _, sums), _ = jax.lax.scan(turn, (carry, shown, zeros), length=self.size)
        return carry, sums


def row_mesh() -> RowMesh:
    """Of the mesh in context (`jax.sharding.use_abstract_mesh`)."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in BATCH_AXES if not mesh.empty and mesh.shape[axis] > 1)
    return RowMesh(mesh, axes) if axes else RowMesh(None)


def strided(rows: jax.Array, pieces: int, together: int = 1) -> jax.Array:
    """Cuts [R, ...] into [pieces, R / pieces, ...] so that every device works on each piece.

    Piece c takes rows c, c + pieces, ..., or as many groups of `together` rows. Consecutive rows
    would put a whole piece on a few devices.

    Raises:
      ValueError: R does not divide by pieces x together, or a piece's rows not by the devices.
    """
    count, ways = rows.shape[0], row_mesh().size
    if count % (pieces * together) or count // pieces % ways:
        raise ValueError(
            f"expected rows that divide into {pieces} pieces of a multiple of "
            f"{math.lcm(together, ways)} rows ({together} stay together, {ways} devices share a "
            f"piece), found {count} rows"
        )
    cut = rows.reshape(-1, pieces, together, *rows.shape[1:]).swapaxes(0, 1)
    return _on_all_devices(cut.reshape(pieces, -1, *rows.shape[1:]))


def joined(pieces: jax.Array) -> jax.Array:
    """[R, ...] from [pieces, R / pieces, ...]: the inverse of `strided`, for `together` = 1."""
    return pieces.swapaxes(0, 1).reshape(-1, *pieces.shape[2:])


def _on_all_devices(pieces: jax.Array) -> jax.Array:
    """Each piece's rows, the second axis, cut over the devices of the mesh in context."""
    if row_mesh().mesh is None:
        return pieces
    return jax.lax.with_sharding_constraint(pieces, PartitionSpec(None, BATCH_AXES))


def require_exchange(exchange: str, where: str) -> None:
    """Raises ValueError unless `exchange` is one of EXCHANGES or LOCAL."""
    if exchange not in (*EXCHANGES, LOCAL):
        raise ValueError(f"{where}: expected one of {(*EXCHANGES, LOCAL)}, found {exchange!r}")


def take_rows(source: jax.Array, index: jax.Array, exchange: str) -> jax.Array:
    """source[index] where both are cut over devices; the gradient reaches every share.

    Args:
      source: [N, ...] float.
      index: [M] int32, rows of `source`; zeros come for a row outside of it.
      exchange: one of EXCHANGES, or LOCAL, which gives zeros for rows of other devices, too.

    Returns:
      [M, ...].

    Raises:
      ValueError: an unknown exchange; N or M that the devices do not divide.
    """
    require_exchange(exchange, "take_rows: exchange")
    return _take_rows(source, index, exchange, row_mesh())


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _take_rows(source: jax.Array, index: jax.Array, exchange: str, rows: RowMesh) -> jax.Array:
    def local(source: jax.Array, numbers: jax.Array, index: jax.Array) -> jax.Array:
        def step(taken: jax.Array, shown: Any) -> tuple[jax.Array, tuple[()]]:
            part, numbers = shown
            at = index - numbers[0]  # a device's rows, and all of them, are consecutive
            inside = (at >= 0) & (at < part.shape[0])
            found = part[jnp.clip(at, 0, part.shape[0] - 1)]
            return jnp.where(_like(inside, found), found, taken), ()

        empty = jnp.zeros((*index.shape, *source.shape[1:]), source.dtype)
        return rows.visit(exchange, step, empty, (source, numbers))[0]

    return rows.run(local, source, jnp.arange(source.shape[0]), index)


def _take_rows_forward(
    source: jax.Array, index: jax.Array, exchange: str, rows: RowMesh
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    # The number of rows travels as an array without features: residuals must be arrays.
    return _take_rows(source, index, exchange, rows), (jnp.zeros((source.shape[0], 0)), index)


def _take_rows_backward(
    exchange: str, rows: RowMesh, saved: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, None]:
    like, index = saved

    def local(numbers: jax.Array, index: jax.Array, cotangent: jax.Array) -> jax.Array:
        def step(_: None, numbers: jax.Array) -> tuple[None, jax.Array]:
            at = index - numbers[0]
            inside = (at >= 0) & (at < numbers.shape[0])
            beyond = numbers.shape[0]  # where `drop` forgets what is added
            to = jnp.where(inside, at, beyond)
            return None, zeros_for(numbers).at[to].add(cotangent, mode="drop")

        def zeros_for(numbers: jax.Array) -> jax.Array:
            return jnp.zeros((*numbers.shape, *cotangent.shape[1:]), cotangent.dtype)

        return rows.visit(exchange, step, None, numbers, zeros_for(numbers))[1]

    return rows.run(local, jnp.arange(like.shape[0]), index, cotangent), None


def _like(mask: jax.Array, other: jax.Array) -> jax.Array:
    """[M] as [M, 1, ...], to broadcast against `other` [M, ...]."""
    return mask.reshape(-1, *(1,) * (other.ndim - 1))


_take_rows.defvjp(_take_rows_forward, _take_rows_backward)
