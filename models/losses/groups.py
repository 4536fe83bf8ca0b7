"""Group the passages of a batch by query: rows may be packed, and in any order."""

import jax
import jax.numpy as jnp


def own_rows(
    ids: jax.Array,
    asked: jax.Array,
    owner: jax.Array,
    relevant: jax.Array,
    valid: jax.Array,
    count: int,
    order: jax.Array | None = None,
) -> jax.Array:
    """The passages that came with each query, those that answer it first, else in their order.

    Args:
        ids: [Q] int32, of the queries.
        asked: [Q] bool, which of them are there.
        owner: [P] int32, the id of the query that a passage came with.
        relevant: [P] bool, whether it answers that query.
        valid: [P] bool.
        count: how many, at most.
        order: [P] int32, what they are sorted by in place of their places, which packing changes.

    Returns:
        [Q, count] int32, places among the passages; P, which is none of them, where there are
        fewer.
    """
    size = owner.shape[0]
    last = jnp.iinfo(jnp.int32).max  # an owner after all others
    owner = jnp.where(valid, owner, last)
    keys = (~relevant, owner) if order is None else (order, ~relevant, owner)
    order = jnp.lexsort(keys)
    owner = owner[order]
    at = jnp.searchsorted(owner, ids)[:, None] + jnp.arange(count)
    belongs = jnp.take(owner, at, mode="fill", fill_value=last) == ids[:, None]
    return jnp.where(belongs & asked[:, None], order[jnp.minimum(at, size - 1)], size)
