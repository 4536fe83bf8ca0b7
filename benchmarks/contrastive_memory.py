"""Memory of a contrastive loss over a pod's global batch: vectors gathered, or passed in a ring.

    TPU_SKIP_MDS_QUERY=1 JAX_PLATFORMS=cpu python -m benchmarks.contrastive_memory

Compiles the loss and its gradients ahead of time for a slice that need not be there, from vectors
(encoding is not part of it), and prints what the compiler allocates on one device. "written out" is
the usual form of the loss, one matrix of scores that is left to the partitioner.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks import code_hash
from models.losses import contrastive
from models.losses.contrastive import BLOCKS, ContrastiveConfig, Passages, Queries
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.preflight import topology

_TOPOLOGY = flags.DEFINE_string("topology", "v5e:8x8", "A slice, see docs/tpu.md.")
_PAIRS = flags.DEFINE_list("pairs", ["4096", "16384", "65536"], "Queries of the global batch.")
_DIMENSION = flags.DEFINE_integer("dimension", 768, "Of a vector.")
_CHUNK = flags.DEFINE_integer("chunk", 1024, "Queries whose scores exist at a time on a device.")

TEMPERATURE = 0.02

Loss = Callable[[Queries, Passages], jax.Array]


def written_out(queries: Queries, passages: Passages) -> jax.Array:
    """In-batch negatives by one [Q, P] matrix; every query's positive has its own number."""
    products = jnp.einsum("qd,pd->qp", queries.vectors, passages.vectors, precision="highest")
    scores = products / TEMPERATURE
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - jnp.diagonal(scores))


def ours(exchange: str, blocks: Sequence[str], chunk: int) -> Loss:
    """The loss as objectives call it."""
    config = ContrastiveConfig(blocks=tuple(blocks), exchange=exchange, chunk=chunk)
    return lambda q, p: contrastive.info_nce(q, p, TEMPERATURE, config)[0].value()


def temporaries(loss: Loss, pairs: int, dimension: int, partitioner: Partitioner) -> int:
    """Bytes between arguments and results, on one device.

    Args:
        loss: over vectors [pairs, dimension] of queries and passages.
        partitioner: the devices, which need not be attached.
    """

    def array(dtype: object, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=partitioner.batch_sharding)

    vectors, number = array(jnp.float32, pairs, dimension), array(jnp.int32, pairs)
    true = array(jnp.bool_, pairs)
    queries = Queries(vectors, number, true, array(jnp.int32, pairs, 0))
    passages = Passages(vectors, number, number, true, true)

    def gradients(q: Queries, p: Passages) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        def total(vectors: tuple[jax.Array, jax.Array]) -> jax.Array:
            return loss(q._replace(vectors=vectors[0]), p._replace(vectors=vectors[1]))

        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            return jax.value_and_grad(total)((q.vectors, p.vectors))

    compiled = jax.jit(gradients).lower(queries, passages).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def main(_: list[str]) -> None:
    partitioner = Partitioner(devices=topology.devices(_TOPOLOGY.value))
    losses: dict[str, Loss] = {"written out": written_out}
    for exchange in ("gather", "ring"):
        losses[exchange] = ours(exchange, BLOCKS[:1], _CHUNK.value)
    for exchange in ("gather", "ring"):
        losses[f"{exchange}, four blocks"] = ours(exchange, BLOCKS, _CHUNK.value)
    devices = partitioner.mesh.size
    print(
        f"{_TOPOLOGY.value}: MiB of temporaries on each of {devices} devices, "
        f"{_DIMENSION.value} dimensions, float32"
    )
    print(f"{'pairs':<22}" + "".join(f"{int(pairs):>12,}" for pairs in _PAIRS.value))
    for name, loss in losses.items():
        sizes = []
        for pairs in map(int, _PAIRS.value):
            try:
                size = temporaries(loss, pairs, _DIMENSION.value, partitioner)
                sizes.append(f"{size / 2**20:,.1f}")
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                sizes.append("too large")
        print(f"{name:<22}" + "".join(f"{size:>12}" for size in sizes), flush=True)


if __name__ == "__main__":
    code_hash.announce("contrastive_memory")
    app.run(main)
