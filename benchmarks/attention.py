"""Memory of plain and fused attention by row length, compiled for a TPU slice that is not at hand.

    JAX_PLATFORMS=cpu python -m benchmarks.attention

One layer of BERT-base, forward and backward with remat, bfloat16, on v5e:4x4 as data=4, tensor=4,
with the same number of tokens at every length. Needs libtpu; prints the table of docs/attention.md.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks import code_hash
from models.networks import bert
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.preflight import topology

LENGTHS = (128, 256, 384, 512, 1024, 2048)
TOKENS = 32_768  # for each share of the batch
MESH = MeshShape(data=4, fsdp=1, tensor=4)


def compile_layer(devices: list[jax.Device], kind: str, length: int) -> jax.stages.Compiled:
    """The gradient of one layer for rows of `length` tokens, its attention 'plain' or 'fused'."""
    partitioner = Partitioner(MESH, devices=devices)
    config = bert.BertConfig(
        vocab_size=128,
        hidden=768,
        layers=1,
        heads=12,
        mlp=3072,
        max_positions=length,
        dropout=0.0,
        attention_dropout=0.0,
        dtype="bfloat16",
        remat="full",
        attention=kind,
    )
    abstract = nnx.eval_shape(lambda: bert.Encoder(config, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(abstract)

    def total(state: nnx.State, ids: jax.Array) -> jax.Array:
        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            hidden = nnx.merge(graph, state)(ids, ids, ids)  # [B, L, D]
        return jnp.sum(jnp.square(hidden.astype(jnp.float32)))

    placed = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        partitioner.shardings(state),
    )
    shape = (TOKENS // length * MESH.data, length)
    ids = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=partitioner.batch_sharding)
    return jax.jit(jax.grad(total)).lower(placed, ids).compile()


def main() -> None:
    """Prints the table."""
    devices = topology.devices("v5e:4x4")
    print("| length | plain, MiB | fused, MiB |\n|---|---|---|")
    for length in LENGTHS:
        programs = [compile_layer(devices, kind, length) for kind in ("plain", "fused")]
        sizes = [one.memory_analysis().temp_size_in_bytes / 2**20 for one in programs]
        print(f"| {length} | {sizes[0]:,.0f} | {sizes[1]:,.0f} |", flush=True)


if __name__ == "__main__":
    code_hash.announce("attention")
    main()
