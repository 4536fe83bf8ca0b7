"""Stage: a fine-tuned model's weights mixed with those that it started from.

    weights = (1 - share) * original + share * tuned

A mixture often keeps most of what was learned, and most of what the original can do elsewhere
(WiSE-FT, https://arxiv.org/abs/2109.01903; LM-Cocktail, https://arxiv.org/abs/2311.13534). The
share is given, or chosen on development queries: the smallest one that is nearly as good as the
best.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np

from t5x_style.checkpoints import checkpointing
from t5x_style.distributed import startup
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.objective import ModelFunction
from t5x_style.step import jitted_functions, optimizers, train_state
from t5x_style.step.train_state import MakeObjective, TrainState
from t5x_style.training import hooks, warm_start

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

Functions = Mapping[str, ModelFunction]

# Nothing is trained, so that the checkpoint has no moments.
_UNTRAINED = optimizers.AdamW(
    learning_rate=1.0, warmup_steps=0, total_steps=1, no_decay=(), frozen=("",)
)


@dataclass(frozen=True)
class Mixture:
    """The weights of two sources, mixed; a `warm_start.Source`.

    Attributes:
      original, tuned: path -> array, of the same paths and shapes.
      share: of the tuned weights, from 0 to 1.
    """

    original: Mapping[str, np.ndarray]
    tuned: Mapping[str, np.ndarray]
    share: float

    def __post_init__(self) -> None:
        original, tuned = self.original, self.tuned
        problems = [f"{path}: in one of the two only" for path in original.keys() ^ tuned.keys()]
        problems += [
            f"{path}: original {original[path].shape}, tuned {tuned[path].shape}"
            for path in original.keys() & tuned.keys()
            if original[path].shape != tuned[path].shape
        ]
        if problems:
            raise warm_start.InitialiseError(
                "weights that cannot be mixed:\n  "
                + "\n  ".join(sorted(problems))
                + "\nGive the model that the tuned one started from."
            )

    def __str__(self) -> str:
        return f"mixture with {self.share:g} of the tuned weights"

    def arrays(self) -> dict[str, np.ndarray]:
        """Path -> array; those of shares 0 and 1 are the sources' bits."""
        if self.share in (0, 1):
            return dict(self.tuned if self.share else self.original)
        tuned_share, original_share = np.float32(self.share), np.float32(1 - self.share)
        return {
            path: original_share * self.original[path] + tuned_share * tuned
            for path, tuned in self.tuned.items()
        }


@dataclass(frozen=True)
class Choice:
    """How a share is chosen.

    Attributes:
      shares: that are tried.
      tolerance: how far below the best value of the metric a smaller share may be.
      evaluator: as of the training.
      metric: 'evaluator/metric', the larger, the better.
    """

    shares: Sequence[float]
    tolerance: float
    evaluator: hooks.Evaluator
    metric: str

    def __post_init__(self) -> None:
        if not self.shares or not all(0 <= one <= 1 for one in self.shares):
            raise ValueError(
                "Choice.shares: expected numbers from 0 (the original) to 1 (the tuned model), "
                f"found {list(self.shares)}"
            )
        if not self.tolerance >= 0:
            raise ValueError(f"Choice.tolerance: expected 0 or more, found {self.tolerance}")
        name, _, metric = self.metric.partition("/")
        known = getattr(self.evaluator, "metrics", None)
        if name != self.evaluator.name or (known and metric not in known):
            found = ", ".join(f"{self.evaluator.name}/{one}" for one in known or ("...",))
            raise ValueError(f"Choice.metric: expected one of {found}; found {self.metric!r}")

    def trials(self, functions: Callable[[float], Functions]) -> list[tuple[float, float]]:
        """Share and value of the metric, of each share; none where no query is judged.

        Args:
          functions: share -> the functions of the model with it.
        """
        if not getattr(self.evaluator, "metrics", True):
            return []
        metric, tried = self.metric.partition("/")[2], []
        for share in sorted(self.shares):
            value = float(self.evaluator.evaluate(functions(share), 0)[metric])
            tried.append((share, value))
            if jax.process_index() == 0:
                print(f"interpolate: {self.metric} {value:.4f} with share {share:g}", flush=True)
        return tried


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
      InitialiseError: the weights do not fit the objective, or each other.
    """
    check(share, choice)
    mixture = Mixture(original.arrays(), tuned.arrays(), 1.0)
    definition, fresh, shardings = train_state.create(objective, _UNTRAINED, partitioner, 0)
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
        tried = choice.trials(functions)
        share = smallest_good(tried, choice.tolerance) if tried else 1.0
    assert share is not None  # as `check` says
    folder = Path(model_dir)
    checkpointer = checkpointing.Checkpointer(
        folder / "checkpoints", checkpointing.Checkpointing(keep=1)
    )
    checkpointer.save(mixed(share), {})
    checkpointer.close()
    if jax.process_index() == 0:
        module.contract().save(folder)
        report = {"share": share, "metric": choice.metric if tried and choice else None}
        text = json.dumps({**report, "tried": tried}, indent=1) + "\n"
        (folder / REPORT).write_text(text, encoding="utf-8")
        print(f"interpolate: share {share:g} of the tuned weights", flush=True)
    return {"checkpoint": "checkpoints", "model": ".", "report": REPORT}


def smallest_good(tried: Sequence[tuple[float, float]], tolerance: float) -> float:
    """The smallest share whose value is at most `tolerance` below the best.

    >>> smallest_good([(0.0, 0.60), (0.5, 0.698), (1.0, 0.70)], 0.005)
    0.5
    """
    best = max(value for _, value in tried)
    return min(share for share, value in tried if value >= best - tolerance)


def check(share: float | None, choice: Choice | None) -> None:
    """What can be known to be wrong before `interpolate` runs; ValueError, see there."""
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
    stage.main("t5x_style.fine_tuning.interpolation.interpolate")
