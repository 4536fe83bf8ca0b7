"""Fingerprints of what each device holds, to find replicas that should be equal and are not.

Each device sums the bits of its own shard of every array, weighted by position: no device waits for
another, and nothing is copied. A changed bit always changes the sum, as does a swap of two values;
several changes may cancel, with a chance of about 1 in 2^32. Arrays of which every device has
another part have no replicas, and cannot be compared.
"""

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """A replica of an array that differs from most others.

    Attributes:
      array: path in the tree.
      device: place in `mesh.devices.flat`.
      usual: place of a device that holds what most replicas hold.
      tied: as many replicas hold the one as the other.
    """

    array: str
    device: int
    usual: int
    tied: bool


class ReplicaFingerprints:
    """A program that fingerprints a tree on all devices of a mesh; and what its results mean."""

    def __init__(self, tree: Any, mesh: Mesh):
        """Compiles the program.

        Args:
          tree: arrays, or shapes, with `NamedSharding`s on the mesh.
          mesh: of all devices.
        """
        self._mesh = mesh
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        groups = [replicas(mesh, leaf.sharding.spec) for _, leaf in leaves]
        self._compared = [n for n, group in enumerate(groups) if group.shape[1] > 1]
        self.arrays = [
            jax.tree_util.keystr(leaves[n][0], simple=True, separator="/") for n in self._compared
        ]
        self._groups: dict[Any, tuple[np.ndarray, list[int]]] = {}  # [G, R], columns
        for column, n in enumerate(self._compared):
            key = groups[n].shape, groups[n].tobytes()
            self._groups.setdefault(key, (groups[n], []))[1].append(column)
        compared = [leaves[n][1] for n in self._compared]
        mapped = jax.shard_map(
            _of_shards,
            mesh=mesh,
            in_specs=([leaf.sharding.spec for leaf in compared],),
            out_specs=PartitionSpec(mesh.axis_names),
            check_vma=False,
        )
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in compared]
        self.program = jax.jit(mapped).lower(shapes).compile()

    def start(self, tree: Any) -> jax.Array:
        """Fingerprints of the tree, [devices, arrays] uint32, which the devices still compute."""
        leaves = jax.tree.leaves(tree)
        found: jax.Array = self.program([leaves[n] for n in self._compared])
        return found

    def disagreements(self, rows: np.ndarray) -> list[Disagreement]:
        """Replicas that differ from the majority; of equally many the first is taken for usual.

        Args:
          rows: of all devices, [devices, arrays] uint32.
        """
        found: list[Disagreement] = []
        for groups, columns in self._groups.values():
            values = rows[groups][:, :, columns]  # [G, R, C]
            for group, column in np.argwhere((values != values[:, :1]).any(1)):
                array = self.arrays[columns[column]]
                found += _odd(array, groups[group].tolist(), values[group, :, column].tolist())
        return found


def replicas(mesh: Mesh, spec: PartitionSpec) -> np.ndarray:
    """Places of the devices that hold the same part of an array: [groups, replicas] int64."""
    cut = {axis for axes in spec for axis in (axes if isinstance(axes, tuple) else (axes,))}
    order = sorted(range(len(mesh.axis_names)), key=lambda n: mesh.axis_names[n] not in cut)
    places = np.arange(mesh.size).reshape(mesh.devices.shape).transpose(order)
    ways = [mesh.shape[axis] for axis in mesh.axis_names if axis not in cut]
    return places.reshape(-1, int(np.prod(ways)))


def local_rows(fingerprints: jax.Array) -> dict[int, np.ndarray]:
    """Place of each device of this process -> its row; waits until they are computed."""
    return {
        shard.index[0].start or 0: np.asarray(shard.data)[0]
        for shard in fingerprints.addressable_shards
    }


def _odd(array: str, places: list[int], values: list[int]) -> Iterable[Disagreement]:
    counts = collections.Counter(values).most_common()
    usual, most = counts[0]
    tied = len(counts) > 1 and counts[1][1] == most
    holder = places[values.index(usual)]
    return [
        Disagreement(array, place, holder, tied)
        for place, value in zip(places, values, strict=True)
        if value != usual
    ]


def _of_shards(shards: list[jax.Array]) -> jax.Array:
    """Fingerprints of the shards of one device, [1, arrays] uint32."""
    return jnp.stack([_of_shard(shard) for shard in shards])[None]


def _of_shard(shard: jax.Array) -> jax.Array:
    words = _words(shard)
    place, stride = jnp.zeros(words.shape, jnp.uint32), 1
    for axis in reversed(range(words.ndim)):  # no reshape: that copies on a TPU
        place += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride)
        stride = stride * words.shape[axis] % 2**32
    # an odd weight: times it, a changed bit does not vanish modulo 2^32
    return jnp.sum(words * (2 * place + 1), dtype=jnp.uint32)


def _words(array: jax.Array) -> jax.Array:
    """The bits of each element as uint32; of 8 bytes as two of them, on one more axis."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint32)
    bits = min(array.dtype.itemsize * 8, 32)
    return jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{bits}")).astype(jnp.uint32)
