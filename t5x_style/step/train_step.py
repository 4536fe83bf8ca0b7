"""One step as a pure function: corrupt, retrieve, gradient of the loss, update, after_update."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from t5x_style.distributed import collectives
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, Objective
from t5x_style.step.train_state import Definition, TrainState

Metrics = dict[str, MetricSum]


def train_step(
    definition: Definition, mesh: jax.sharding.Mesh, state: TrainState, batch: Batch
) -> tuple[TrainState, Metrics]:
    """Applies one update. `state` may be donated.

    Args:
      definition: static.
      mesh: static; micro-batches are spread over it.
      state: before the step.
      batch: a global batch, clean unless `definition.corrupted`.

    Returns:
      the state after the step and its metrics: the objective's own, `loss`, `padding_share`,
      `gradient_norm`, `parameter_norm`, `update_norm`, `learning_rate` and `healthy`. If the loss
      or a gradient is not finite, parameters, moments, variables and step are those of before.
    """
    corrupt_key, retrieve_key, loss_key, after_key = step_keys(state.key, state.step)
    module = definition.module(state.params, state.variables)
    module.train()
    # With the mesh in context, an objective may say where arrays inside its loops must live.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        batch = before_loss(definition, module, batch, corrupt_key, retrieve_key)

    gradients, loss, metrics = loss_and_gradients(definition, mesh, state, batch, loss_key)
    norm = optax.tree.norm(gradients)
    healthy = state.healthy & jnp.isfinite(loss.value()) & jnp.isfinite(norm)
    updates, opt_state = definition.update.update(gradients, state.opt_state, state.params)
    params = _select(healthy, optax.apply_updates(state.params, updates), state.params)

    step = state.step + healthy.astype(jnp.int32)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        variables = after_update(definition, params, state.variables, step, after_key)
    new_state = TrainState(
        step=step,
        params=params,
        opt_state=_select(healthy, opt_state, state.opt_state),
        variables=_select(healthy, variables, state.variables),
        key=state.key,
        healthy=healthy,
    )
    scalars = {
        "gradient_norm": norm,
        "parameter_norm": optax.tree.norm(params),
        "update_norm": optax.tree.norm(updates),
        "learning_rate": definition.optimizer.schedule(state.step),
        "healthy": healthy.astype(jnp.float32),
    }
    metrics = metrics | {"loss": loss, "padding_share": padding_share(batch)}
    return new_state, metrics | {name: MetricSum.of(value) for name, value in scalars.items()}


def before_loss(
    definition: Definition,
    module: Objective,
    batch: Batch,
    corrupt_key: jax.Array,
    retrieve_key: jax.Array,
) -> Batch:
    """Batch that the loss sees: corrupted, unless it came corrupted, and with evidence."""
    if not definition.corrupted:
        batch = jax.lax.stop_gradient(module.corrupt(batch, corrupt_key))
    return jax.lax.stop_gradient(module.retrieve(batch, retrieve_key))


def step_keys(key: jax.Array, step: jax.Array) -> tuple[jax.Array, ...]:
    """The keys of `corrupt`, `retrieve`, `loss` and `after_update` at a step.

    Args:
      key: of the training, `TrainState.key`.
      step: [] int32.
    """
    return tuple(jax.random.split(jax.random.fold_in(key, step), 4))


def loss_and_gradients(
    definition: Definition,
    mesh: jax.sharding.Mesh,
    state: TrainState,
    batch: Batch,
    key: jax.Array,
) -> tuple[nnx.State, MetricSum, Metrics]:
    """The gradient of the loss of a corrupted batch, in `definition.micro_batches` pieces.

    Pieces change nothing but memory: every term of the loss is divided by its weight over the whole
    batch, which does not depend on parameters.
    """

    def loss_of(params: nnx.State, piece: Batch, key: jax.Array) -> tuple[MetricSum, Metrics]:
        module = definition.module(params, state.variables)
        module.train()
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return module.loss(piece, key)

    def pieces_loss(
        params: nnx.State, piece: Batch, key: jax.Array, weight: jax.Array | None
    ) -> Any:
        loss, metrics = loss_of(params, piece, key)
        value = loss.value() if weight is None else loss.over(jax.lax.stop_gradient(weight))
        return value, (loss, metrics)

    gradient = jax.grad(pieces_loss, has_aux=True)
    if definition.micro_batches == 1:
        gradients, (loss, metrics) = gradient(state.params, batch, key, None)
        return gradients, loss, metrics

    # Only the weights of the whole batch are used here: the compiler drops the network.
    whole = loss_of(state.params, batch, key)[0].weight
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        pieces = split_batch(batch, definition.micro_batches)
    keys = jax.random.split(key, definition.micro_batches)

    def accumulate(carry: Any, piece_and_key: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, carry, gradient(state.params, *piece_and_key, whole)), None

    first = jax.tree.map(lambda leaf: leaf[0], (pieces, keys))
    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(gradient, state.params, *first, whole),
    )
    (gradients, (loss, metrics)), _ = jax.lax.scan(accumulate, zeros, (pieces, keys))
    return gradients, loss, metrics


def split_batch(batch: Batch, pieces: int) -> Batch:
    """Cuts every feature [R, ...] into [pieces, R / pieces, ...], strided over devices.

    A group with K times as many rows as the smallest one holds K rows for each of its rows, in
    order; these stay together.
    """
    base = min(leaf.shape[0] for leaf in jax.tree.leaves(batch))
    return jax.tree.map(
        lambda leaf: collectives.strided(leaf, pieces, together=leaf.shape[0] // base), batch
    )


def padding_share(batch: Batch) -> MetricSum:
    """The share of padding among the tokens of all groups; its weight is the number of tokens."""
    padding = [
        features["segment_ids"] == 0 for features in batch.values() if "segment_ids" in features
    ]
    return functools.reduce(MetricSum.merge, [MetricSum.of(group) for group in padding])


def after_update(
    definition: Definition, params: nnx.State, variables: nnx.State, step: jax.Array, key: jax.Array
) -> nnx.State:
    """The variables after `Objective.after_update`; a mesh is in context."""

    def update(module: Objective) -> None:
        module.after_update(step, key)

    return _changed(definition, params, variables, "after_update", update)


def begin(definition: Definition, mesh: jax.sharding.Mesh, state: TrainState) -> nnx.State:
    """The variables after `Objective.on_train_start`, before step 0; `state` may be donated."""
    # No step has this key: their numbers are int32.
    key = jax.random.fold_in(state.key, np.uint32(0xFFFFFFFF))
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return _changed(
            definition,
            state.params,
            state.variables,
            "on_train_start",
            lambda module: module.on_train_start(key),
        )


def _changed(
    definition: Definition,
    params: nnx.State,
    variables: nnx.State,
    method: str,
    change: Callable[[Objective], None],
) -> nnx.State:
    """The variables after `change`, which may touch no parameter."""
    module = definition.module(params, variables)
    module.eval()
    change(module)
    before = nnx.state(definition.module(params, variables), nnx.Param)
    after = nnx.state(module, nnx.Param)
    if any(
        a is not b for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    ):
        raise TypeError(
            f"{type(module).__name__}.{method} changed a parameter. It may change Variables "
            "that are not parameters; parameters belong to the optimizer."
        )
    return definition.split(module)[1]


def _select(condition: jax.Array, new: Any, old: Any) -> Any:
    # What a step leaves alone, such as a table of tokens, is not copied.
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), new, old)
