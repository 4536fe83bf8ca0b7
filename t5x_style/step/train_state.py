"""The tree of everything that changes during training, and its creation in its sharding."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.objective import Objective
from t5x_style.step import optimizers

MakeObjective = Callable[..., Objective]  # called as make(rngs=nnx.Rngs(...))


@flax.struct.dataclass
class TrainState:
    """The state of training between two steps.

    Attributes:
      step: [] int32, the number of updates applied.
      params: nnx.State of the trainable parameters.
      opt_state: optax's state over `params`.
      variables: nnx.State of everything else: frozen parameters, tables, an index.
      key: [] typed key; the randomness of step s is fold_in(key, s).
      healthy: [] bool; False once a loss or gradient was not finite. From then on no update is
        applied, so that the state stays that of before the bad step until the host looks.
    """

    step: jax.Array
    params: nnx.State
    opt_state: Any
    variables: nnx.State
    key: jax.Array
    healthy: jax.Array


@dataclasses.dataclass(frozen=True)
class Definition:
    """Constants of a run: with them, a TrainState is a model and an optimizer.

    Attributes:
      graphdef: of the objective; merge(graphdef, params, variables) is the module.
      optimizer: schedule and filters.
      update: the optax rule built for the trainable parameters.
      micro_batches: how many pieces a batch is cut into for the gradient.
      corrupted: whether batches have gone through `Objective.corrupt` before the step.
    """

    graphdef: nnx.GraphDef
    optimizer: optimizers.AdamW
    update: optax.GradientTransformation
    micro_batches: int = 1
    corrupted: bool = False

    def module(self, params: nnx.State, variables: nnx.State) -> Objective:
        # A copy: without it the module would share, and change, the Variables of the states.
        return nnx.merge(self.graphdef, params, variables, copy=True)

    def split(self, module: Objective) -> tuple[nnx.State, nnx.State]:
        """The inverse of `module`: (params, variables)."""
        parts: Any = nnx.split(module, self.optimizer.trainable(module.frozen_paths), ...)
        return parts[1], parts[2]


def create(
    make_objective: MakeObjective,
    optimizer: optimizers.AdamW,
    partitioner: Partitioner,
    seed: int,
    micro_batches: int = 1,
    *,
    corrupted: bool = False,
    abstract: bool = False,
) -> tuple[Definition, TrainState, TrainState]:
    """Builds the objective and the initial state, every array directly in its sharding.

    Args:
      make_objective: factory.
      optimizer: what is trained, and how.
      partitioner: mesh and rules.
      seed: of parameters and of all randomness in steps.
      micro_batches: pieces of a batch for the gradient.
      corrupted: see `Definition`.
      abstract: only shapes with shardings, and no array, for devices that are not attached.

    Returns:
      the definition, the state, and a tree of its shardings.

    Raises:
      optimizers.PatternError: a pattern of the optimizer matches nothing.
      PartitioningError: a logical axis without a rule, or a size that the mesh does not divide.
    """
    init_key, step_key = jax.random.split(jax.random.key(seed))

    def split() -> tuple[nnx.GraphDef, nnx.State, nnx.State]:
        module = make_objective(rngs=nnx.Rngs(init_key))
        parts: Any = nnx.split(module, optimizer.trainable(module.frozen_paths), ...)
        return parts

    graphdef, params, variables = nnx.eval_shape(split)
    optimizers.require_matches(
        optimizer.frozen,
        optimizers.paths_of(params) + optimizers.paths_of(variables),
        "AdamW.frozen",
    )
    update = optimizer.build(params)

    def make_state() -> TrainState:
        _, params, variables = split()
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=update.init(params),
            variables=variables,
            key=step_key,
            healthy=jnp.ones((), jnp.bool_),
        )

    place = partitioner.abstract if abstract else partitioner.init
    state, shardings = place(make_state)
    definition = Definition(graphdef, optimizer, update, micro_batches, corrupted)
    return definition, state, shardings
