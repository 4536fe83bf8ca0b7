"""`DeviceIndex` searched from the host: its vectors are sharded over this process's devices.

For corpora whose exact search is too slow on the host, and on CPUs that ScaNN does not run on.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_style.distributed.partitioning import BATCH_AXES, Partitioner
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.representation import Vectors
from t5x_style.retrieval import exact_index
from t5x_style.retrieval.device_index import DeviceIndex, DeviceIndexConfig
from t5x_style.retrieval.sharded_top_k import NEVER

QUERY_BLOCK = 256


@dataclasses.dataclass(frozen=True)
class Sharded(exact_index.Exact):
    """Indexes that compare every vector, on all devices of the process that opens them.

    Attributes:
      dtype: of the vectors on the devices, 'float32' or 'bfloat16'.
      chunk: rows of a device whose scores exist at a time.
      recall_target: of the approximate search on TPUs; elsewhere it is exact but for `dtype`.
    """

    dtype: str = "float32"
    chunk: int = 65_536
    recall_target: float = 0.95

    def build(self, passages: Vectors, record: index_lib.IndexRecord) -> "ShardedIndex":
        """As `index.IndexType.build`."""
        return ShardedIndex(passages, record, self)


class ShardedIndex(exact_index.ExactIndex):
    """Implements `index.SavableIndex` with a `DeviceIndex` that holds no text.

    Each process has the whole index on its local devices, so that it may search on its own.
    """

    def __init__(self, vectors: Vectors, record: index_lib.IndexRecord, settings: Sharded):
        """Args:
        vectors: [N, D] float32, finite; may be on disk, a device's rows are read at a time.
        record: of the index.
        settings: see there.
        """
        super().__init__(vectors, record.ids, record.contract, record.checkpoint)
        self.recall = record.recall
        self._partitioner = Partitioner(devices=jax.local_devices())
        config = DeviceIndexConfig(
            vectors.shape[1],
            max_staleness_steps=None,
            dtype=settings.dtype,
            exclude=(),
            multiple=self._partitioner.mesh.size,
            chunk=settings.chunk,
            recall_target=settings.recall_target,
        )
        self._graphdef, self._state = _on_devices(vectors, config, self._partitioner)
        self._run = jax.jit(self._call, static_argnames="k")

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `index.Index.search`."""
        queries = index_lib.check_queries(queries, self.contract.dimension, k)
        width = min(k, len(self.ids))
        scores, rows = [np.zeros((0, width), np.float32)], [np.zeros((0, width), np.int32)]
        for first in range(0, len(queries), QUERY_BLOCK):
            block = queries[first : first + QUERY_BLOCK]
            found = self._run(self._state, self._place(block), k=width)
            scores.append(np.asarray(found[0])[: len(block)])
            rows.append(np.asarray(found[1])[: len(block)])
        return index_lib.padded(np.concatenate(scores), np.concatenate(rows), k)

    def _place(self, block: np.ndarray) -> jax.Array:
        """[n, D] -> [B, D] with zeros, on the devices; powers of two keep recompilation rare."""
        ways = int(np.prod([self._partitioner.mesh.shape[axis] for axis in BATCH_AXES]))
        size = -(-(1 << (len(block) - 1).bit_length()) // ways) * ways
        padded = np.pad(block, ((0, size - len(block)), (0, 0)))
        return jax.device_put(padded, self._partitioner.batch_sharding)

    def _call(self, state: Any, queries: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
        source = jnp.full(queries.shape[0], index_lib.NO_ROW, jnp.int32)
        with jax.sharding.use_abstract_mesh(self._partitioner.mesh.abstract_mesh):
            index: DeviceIndex = nnx.merge(self._graphdef, state)
            return index.search(queries, k, source)


@dataclasses.dataclass
class _NoText:
    """A `device_index.Corpus` of rows without tokens."""

    rows: int
    length: int = 0
    vocabulary_size: int = 1
    fingerprint: str = ""

    def tokens(self, start: int, end: int) -> np.ndarray:
        """See `device_index.Corpus`."""
        return np.zeros((end - start, 0), np.int32)

    def column(self, name: str, start: int, end: int) -> np.ndarray:
        """See `device_index.Corpus`."""
        return np.zeros(end - start, np.int32)


def _on_devices(
    vectors: Vectors, config: DeviceIndexConfig, partitioner: Partitioner
) -> tuple[Any, Any]:
    """Graph and state of a `DeviceIndex` that holds `vectors` [N, D], read share by share."""
    count = len(vectors)
    graphdef, abstract = nnx.eval_shape(lambda: nnx.split(DeviceIndex(_NoText(count), config)))

    def embeddings(start: int, end: int) -> np.ndarray:
        found = vectors[start : min(end, count)].astype(jnp.dtype(config.dtype))
        return np.pad(found, ((0, end - start - len(found)), (0, 0)))

    def row_steps(start: int, end: int) -> np.ndarray:
        return np.where(np.arange(start, end) < count, 0, NEVER).astype(np.int32)

    read = {"embeddings": embeddings, "row_steps": row_steps}

    def placed(path: Any, leaf: jax.ShapeDtypeStruct, sharding: Any) -> jax.Array:
        rows = read.get(path[0].key)
        if rows is None:
            return jnp.zeros(leaf.shape, leaf.dtype, device=sharding)

        def share(index: Any) -> np.ndarray:
            start, end, _ = index[0].indices(leaf.shape[0])
            return rows(start, end)

        return jax.make_array_from_callback(leaf.shape, sharding, share)

    shardings = partitioner.shardings(abstract)
    return graphdef, jax.tree.map_with_path(placed, abstract, shardings)
