"""A model without training, as a folder like a training's: checkpoints/0 and contract.json."""

from pathlib import Path

import jax

from t5x_style.checkpoints import checkpointing
from t5x_style.step import optimizers
from t5x_style.step.train_state import Definition, TrainState

# Nothing is trained, so that the checkpoint has no moments.
UNTRAINED = optimizers.AdamW(
    learning_rate=1.0, warmup_steps=0, total_steps=1, no_decay=(), frozen=("",)
)


def write(folder: Path, definition: Definition, state: TrainState) -> None:
    """Writes the folder; all processes call it.

    Args:
      folder: of the stage.
      definition, state: of `train_state.create` with UNTRAINED, with the weights to write.

    Raises:
      ContractError: the objective cuts vectors of tokens, which is for a trained model.
    """
    contract = definition.module(state.params, state.variables).contract()
    contract.require_whole()
    checkpointer = checkpointing.Checkpointer(
        folder / "checkpoints", checkpointing.Checkpointing(keep=1)
    )
    checkpointer.save(state, {})
    checkpointer.close()
    if jax.process_index() == 0:
        contract.save(folder)
