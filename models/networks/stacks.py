"""Stacks of equal layers: parameters on one leading axis, run by one loop.

Letters: B batch, L length, Q query length, K key length, D hidden.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from flax import nnx

from t5x_style.interfaces.encoder import Layer

REMAT_POLICIES = (
    "none",
    "full",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "nothing_saveable",
)

LayerT = TypeVar("LayerT", bound=nnx.Module)


def stack(make: Callable[[nnx.Rngs], LayerT], count: int, rngs: nnx.Rngs) -> LayerT:
    """`count` modules as one whose parameters have a leading axis named `layers`."""

    @nnx.split_rngs(splits=count)
    @nnx.vmap(in_axes=0, out_axes=0, transform_metadata={nnx.PARTITION_NAME: "layers"})
    def stacked(rngs: nnx.Rngs) -> LayerT:
        return make(rngs)

    layers: LayerT = stacked(rngs)
    return layers


def part_of(layers: LayerT, start: int, end: int) -> LayerT:
    """Layers `start` to `end` - 1 of a stack, as a stack."""
    graph, state = nnx.split(layers)
    return nnx.merge(graph, jax.tree.map(lambda array: array[start:end], state))


def with_remat(
    f: Callable[..., jax.Array], policy: str, in_loop: bool = True
) -> Callable[..., jax.Array]:
    """`f`, recomputed in the backward pass as `policy` (one of `REMAT_POLICIES`) says.

    Outside of a loop the compiler could merge the second computation with the first one, and keep
    what was to be recomputed; `in_loop` False forbids it.
    """
    if policy not in REMAT_POLICIES:
        raise ValueError(f"remat must be one of {REMAT_POLICIES}, found {policy!r}.")
    if policy == "none":
        return f
    chosen = None if policy == "full" else getattr(jax.checkpoint_policies, policy)
    return nnx.remat(f, policy=chosen, prevent_cse=not in_loop)


def run_stack(
    layers: Layer,
    count: int,
    hidden: jax.Array,
    view: Any,
    *,
    key: jax.Array | None,
    remat: str,
    unroll: int = 1,
) -> jax.Array:
    """Self-attention through stacked `layers`, one after the other.

    Args:
        layers: from `stack`.
        hidden: [B, L, D].
        view: from their `view`.
        key: for dropout; None turns it off.
        remat: one of `REMAT_POLICIES`.
        unroll: layers in one iteration of the loop, at most.

    Returns:
        [B, L, D].
    """

    def one(x: jax.Array, layer: Layer, view: Any, key: jax.Array | None) -> jax.Array:
        return layer(x, x, view, key)

    keys = None if key is None else jax.random.split(key, count)
    scan = nnx.scan(
        with_remat(one, remat),
        in_axes=(nnx.Carry, 0, None, 0),
        out_axes=nnx.Carry,
        length=count,
        unroll=min(unroll, count),
    )
    return scan(hidden, layers, view, keys)


def run_layer(
    layers: Layer,
    number: int,
    query: jax.Array,
    memory: jax.Array,
    view: Any,
    key: jax.Array | None,
    remat: str,
) -> jax.Array:
    """One of stacked `layers` from `query` [B, Q, D] to `memory` [B, K, D], see `Layer`."""
    graph, state = nnx.split(layers)
    layer = nnx.merge(graph, jax.tree.map(lambda array: array[number], state))
    return with_remat(lambda q, m: layer(q, m, view, key), remat)(query, memory)
