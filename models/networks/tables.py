"""Embedding tables: rows of float32 under a logical name, looked up by number."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_style.distributed import partitioning


def table(rows: int, name: str, width: int, stddev: float, rngs: nnx.Rngs) -> nnx.Embed:
    """[rows, width] float32, drawn from a normal, whose rows have this logical name."""
    normal = nnx.initializers.normal(stddev)
    return nnx.Embed(
        rows,
        width,
        param_dtype=jnp.float32,
        embedding_init=nnx.with_partitioning(normal, (name, "embed")),
        rngs=rngs,
    )


def rows_of(table: nnx.Embed, at: jax.Array) -> jax.Array:
    """[..., width] float32: the rows `at` [...]."""
    whole = partitioning.gathered(table.embedding[...], (None, "embed"))
    return jnp.take(whole, at, axis=0)
