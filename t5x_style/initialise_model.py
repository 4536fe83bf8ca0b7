"""Stage: initialise a model from other weights and write it as the folder of a training.

Stages that encode, evaluate, search and export a trained model then take a published one,
untouched. To train it, give the same `initialise_from` to a training; or, where `fits` computed
parameters that no source has, let the training continue from the folder.
"""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

import jax

from t5x_style.distributed import startup
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.objective import Objective
from t5x_style.step import train_state
from t5x_style.step.train_state import MakeObjective
from t5x_style.training import model_folder, warm_start

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "initialise_model": {
        "name": "initialise_model",
        "version": 1,
        "outputs": ["checkpoint", "model"],
        "program": True,
        "check": "check",
    }
}


class Fit(Protocol):
    """Parameters from data, in closed form."""

    def __call__(self, model: Objective, fresh: Collection[str], partitioner: Partitioner) -> None:
        """Sets parameters in place; all processes call it.

        Args:
          model: its parameters are on the partitioner's mesh.
          fresh: paths of the parameters that no source of weights has; others keep their values.
          partitioner: places batches on the mesh.
        """
        ...


def initialise_model(
    objective: MakeObjective,
    initialise_from: Sequence[warm_start.Initialise],
    partitioner: Partitioner,
    seed: int,
    model_dir: str,
    fits: Sequence[Fit] = (),
) -> dict[str, str]:
    """Writes checkpoints/0 and contract.json.

    Args:
      objective: factory, called as objective(rngs=...).
      initialise_from: where its parameters come from.
      partitioner: mesh and rules.
      seed: of parameters that no source has.
      model_dir: where the files go.
      fits: what computes parameters that no source has, in this order; all others of these keep
        the values that `seed` gives them.

    Returns:
      the named outputs, as a training's.

    Raises:
      ValueError: `initialise_from` is empty.
      InitialiseError: the weights do not fit the objective.
      ContractError: the objective cuts vectors of tokens, which is for a trained model.
    """
    check(initialise_from)
    definition, state, shardings = train_state.create(
        objective, model_folder.UNTRAINED, partitioner, seed
    )
    state, fresh = warm_start.taken_over(state, initialise_from, shardings)
    for fit in fits:
        model = definition.module(state.params, state.variables)
        fit(model, fresh, partitioner)
        params, variables = definition.split(model)
        state = dataclasses.replace(state, params=params, variables=variables)
    model_folder.write(Path(model_dir), definition, state)
    if jax.process_index() == 0:
        print(f"model of {', '.join(map(str, initialise_from))}, untrained", flush=True)
    return {"checkpoint": "checkpoints", "model": "."}


def check(initialise_from: Sequence[warm_start.Initialise]) -> None:
    """Check arguments before `initialise_model` runs; ValueError, see there."""
    if not initialise_from:
        raise ValueError(
            "initialise_model.initialise_from: expected at least one source of weights, found "
            "none: a model of fresh parameters is no use. Name the sources, such as "
            "[@warm_start.Initialise()]."
        )


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.initialise_model.initialise_model")
