"""Stage: a fine-tuned model's weights mixed with those that it started from.

The share of the tuned weights is given, or chosen on development queries: the smallest one that is
nearly as good as the best. See `fine_tuning.mixture`.
"""

import json
from dataclasses import replace
from pathlib import Path

import jax

from t5x_style.distributed import startup
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.fine_tuning.mixture import Choice, Functions, Mixture, smallest_good
from t5x_style.step import jitted_functions, train_state
from t5x_style.step.train_state import MakeObjective, TrainState
from t5x_style.training import hooks, model_folder, warm_start

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "interpolate": {
        "name": "interpolate",
        "version": 1,
        "outputs": ["checkpoint", "model", "report"],
        "program": True,
        "check": "check",
    }
}
REPORT = "interpolation.json"


def interpolate(
    objective: MakeObjective,
    original: warm_start.Source,
    tuned: warm_start.Source,
    share: float | None,
    partitioner: Partitioner,
    model_dir: str,
    choice: Choice | None = None,
) -> dict[str, str]:
    """Writes checkpoints/0 and contract.json, as a training does, and interpolation.json.

    interpolation.json: {"share": taken, "metric": name or null, "tried": [[share, value]]}; "tried"
    is empty where the share is given, or where no query is judged: then it is 1.

    Args:
      objective: factory, called as objective(rngs=...).
      original, tuned: weights of the same model.
      share: of the tuned weights, from 0 to 1; None: as `choice` finds.
      partitioner: mesh and rules.
      model_dir: where the files go.
      choice: how the share is chosen.

    Returns:
      the named outputs: a model folder, and the report.

    Raises:
      ValueError: see `check`.
      ContractError: the texts of `choice` were made otherwise than the objective's contract says.
      InitialiseError: the weights do not fit the objective, or each other.
    """
    check(share, choice)
    mixture = Mixture(original.arrays(), tuned.arrays(), 1.0)
    definition, fresh, shardings = train_state.create(
        objective, model_folder.UNTRAINED, partitioner, 0
    )
    module = definition.module(fresh.params, fresh.variables)
    jitted = jitted_functions.jitted_functions(
        definition.graphdef, module.functions(), partitioner.mesh
    )

    def mixed(share: float) -> TrainState:
        source = warm_start.Initialise(replace(mixture, share=share), {"": ""})
        return warm_start.apply(fresh, [source], shardings)

    def functions(share: float) -> Functions:
        state = mixed(share)
        return jitted_functions.bound(jitted, state.params, state.variables)

    tried: list[tuple[float, float]] = []
    if share is None and choice is not None:
        hooks.check_contracts([choice.evaluator], module.contract())
        tried = choice.trials(functions)
        share = smallest_good(tried, choice.tolerance) if tried else 1.0
    assert share is not None  # as `check` says
    folder = Path(model_dir)
    model_folder.write(folder, definition, mixed(share))
    if jax.process_index() == 0:
        report = {"share": share, "metric": choice.metric if tried and choice else None}
        text = json.dumps({**report, "tried": tried}, indent=1) + "\n"
        (folder / REPORT).write_text(text, encoding="utf-8")
        print(f"interpolate: share {share:g} of the tuned weights", flush=True)
    return {"checkpoint": "checkpoints", "model": ".", "report": REPORT}


def check(share: float | None, choice: Choice | None) -> None:
    """Check arguments before `interpolate` runs; ValueError, see there."""
    if share is None and choice is None:
        raise ValueError(
            "interpolate.share: expected a number from 0 to 1 (INTERPOLATION), or a choice "
            "(gin_configs/runs/fine_tuning/chosen_share.gin), found neither"
        )
    if share is not None and not 0 <= share <= 1:
        raise ValueError(
            "interpolate.share (INTERPOLATION): expected a number from 0 (the original) to 1 (the "
            f"tuned model), found {share}"
        )


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.interpolate.interpolate")
