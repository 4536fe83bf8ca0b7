"""The view of a training for its batch source; implements `interfaces.batch_source.ModelView`."""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces import batch_source, objective
from t5x_style.interfaces.batch_source import Parameters, SourceError
from t5x_style.step import train_step
from t5x_style.step.optimizers import path_string
from t5x_style.step.train_state import Definition, TrainState

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class TrainingView:
    """See `ModelView`.

    Attributes:
      definition: of the training.
      state: the state after the last update.
      partitioner, folder, save_every, functions, snapshot, refreshing, stop_asked: see `ModelView`.
    """

    definition: Definition
    state: Callable[[], TrainState]
    partitioner: Partitioner
    folder: Path
    save_every: int
    functions: Callable[[], Mapping[str, objective.ModelFunction]]
    snapshot: Callable[[], None]
    refreshing: Callable[[], AbstractContextManager[None]]
    stop_asked: Callable[[], bool]

    def module(self) -> objective.Objective:
        """See `ModelView`."""
        return self.definition.module(*self._shapes())

    def _shapes(self) -> tuple[nnx.State, nnx.State]:
        state = self.state()
        shapes: tuple[nnx.State, nnx.State] = jax.eval_shape(
            lambda: (state.params, state.variables)
        )
        return shapes

    def program(
        self, run: Callable[[objective.Objective, objective.Batch, jax.Array], T]
    ) -> Callable[[Parameters, batch_source.Batch, int], T]:
        """See `ModelView`."""
        params, variables = self._shapes()
        key = self.state().key  # copied: a step may donate the array
        implementation, key_data = jax.random.key_impl(key), np.asarray(jax.random.key_data(key))

        @jax.jit
        def jitted(parameters: Parameters, batch: objective.Batch, data: Any, step: Any) -> T:
            module = self.definition.module(
                _filled(params, parameters), _filled(variables, parameters)
            )
            key = jax.random.wrap_key_data(data, impl=implementation)
            return run(module, batch, train_step.step_keys(key, step)[0])

        def call(parameters: Parameters, batch: batch_source.Batch, step: int) -> T:
            nnx.use_eager_sharding(False)  # of this thread; see `partitioning`
            found: T = jitted(parameters, batch, key_data, np.int32(step))
            return found

        return call


def _filled(state: nnx.State, parameters: Parameters) -> nnx.State:
    """A state with the parameters that are given, NaN elsewhere: what is not used costs nothing."""

    def fill(path: tuple[Any, ...], leaf: Any) -> Any:
        given = parameters.get(path_string(path))
        (value,) = jax.tree.leaves(leaf)
        shape, dtype = value.shape, value.dtype
        if given is None:
            nothing = jnp.nan if jnp.issubdtype(dtype, jnp.floating) else 0
            return leaf.replace(jnp.full(shape, nothing, dtype))
        if given.shape != shape:
            raise SourceError(f"{path_string(path)}: expected shape {shape}, found {given.shape}")
        return leaf.replace(given.astype(dtype))

    return nnx.from_flat_state(
        [(path, fill(path, leaf)) for path, leaf in nnx.to_flat_state(state)]
    )
