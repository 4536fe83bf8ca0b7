"""The train step as one program of one mesh: checked, jitted, lowered.

The trainer runs what is built here, and preflight compiles the same for devices that are not there.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax

from t5x_style.distributed.partitioning import Partitioner, PartitioningError
from t5x_style.interfaces import objective
from t5x_style.step import train_step
from t5x_style.step.train_state import Definition, TrainState

Specs = Mapping[str, Mapping[str, jax.ShapeDtypeStruct]]  # group -> feature -> global shape, dtype


def jit(definition: Definition, partitioner: Partitioner, shardings: TrainState) -> Any:
    """`train_step.train_step` jitted: (state, batch) -> (state, metrics), donating the old state.

    Args:
      definition, shardings: from `train_state.create`.
      partitioner: the mesh to compile for; its devices need not be attached.
    """
    return jax.jit(
        functools.partial(train_step.train_step, definition, partitioner.mesh),
        donate_argnums=0,
        out_shardings=(shardings, partitioner.replicated),
    )


def trace(step: Any, partitioner: Partitioner, state: TrainState, specs: Specs) -> Any:
    """The step traced for a global batch of `specs`; `.lower().compile()` makes it a program.

    Args:
      step: from `jit`.
      partitioner: places the batch.
      state: arrays, or shapes with shardings.
      specs: of the batch.
    """
    sharding = partitioner.batch_sharding
    batch = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), specs
    )
    return step.trace(state, batch)


def rows_of(specs: Specs) -> dict[str, int]:
    """Global rows of each token group."""
    return {group: next(iter(features.values())).shape[0] for group, features in specs.items()}


def check(
    module: objective.Objective, specs: Specs, partitioner: Partitioner, micro_batches: int
) -> None:
    """Checks that a batch can be cut over the mesh and into micro-batches.

    Raises:
      BatchError: a group's rows are no multiple of the smallest group's.
      PartitioningError: rows do not divide by the mesh or by the micro-batches.
      ValueError: fewer than 1 micro-batches, or several of an objective that couples its examples.
    """
    base = min(rows_of(specs).values())
    for group, rows in rows_of(specs).items():
        partitioner.check_rows(rows, f"group {group!r}")
        if rows % base:
            raise objective.BatchError(
                f"group {group!r}: expected a multiple of {base} rows, the smallest group's, "
                f"found {rows}"
            )
    if micro_batches < 1:
        raise ValueError(f"train.micro_batches: expected at least 1, found {micro_batches}")
    if micro_batches > 1 and module.requires_full_batch:
        raise ValueError(
            f"{type(module).__name__} couples the examples of a batch (in-batch negatives): "
            f"micro_batches = {micro_batches} would change its loss. Use micro_batches = 1 and "
            "the objective's encode_chunks to save memory."
        )
    if base % micro_batches:
        raise PartitioningError(f"micro_batches: {base} rows do not divide by {micro_batches}")
    partitioner.check_rows(base // micro_batches, "one micro-batch")
