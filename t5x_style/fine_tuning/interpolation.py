"""Stage: a fine-tuned model's weights mixed with those that it started from.

    weights = (1 - share) * original + share * tuned

A mixture often keeps most of what was learned, and most of what the original can do elsewhere
(WiSE-FT, https://arxiv.org/abs/2109.01903; LM-Cocktail, https://arxiv.org/abs/2311.13534). The
share is given, or chosen on development queries: the smallest one that is nearly as good as the
best.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np

from t5x_style.checkpoints import checkpointing
from t5x_style.distributed import startup
from t5x_style.distributed.partitioning import Partitioner
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

    def __str__(self) -> str:
        return f"mixture of {self.share:g} tuned"

    def arrays(self) -> dict[str, np.ndarray]:
        """Path -> array; those of shares 0 and 1 are the sources' bits."""
        if self.share in (0, 1):
            return dict(self.tuned if self.share else self.original)
        tuned_share, original_share = np.float32(self.share), np.float32(1 - self.share)
        return {
            path: original_share * self.original[path] + tuned_share * tuned
            for path, tuned in self.tuned.items()
        }


def interpolate(
    objective: MakeObjective,
    original: warm_start.Source,
    tuned: warm_start.Source,
    shares: Sequence[float],
    share: float | None,
    tolerance: float,
    evaluators: Sequence[hooks.Evaluator],
    development_metric: str,
    partitioner: Partitioner,
    model_dir: str,
) -> dict[str, str]:
    """Writes checkpoints/0 and contract.json, as a training does, and interpolation.json.

    interpolation.json: {"share": chosen, "metric": name, "tried": [[share, value]]}; "tried" is
    empty where the share is given, or where no query can be measured; then the largest is taken.

    Args:
      objective: factory, called as objective(rngs=...).
      original, tuned: weights of the same model.
      shares: of the tuned weights, that are tried.
      share: taken without a trial; None: the best of `shares`.
      tolerance: how far below the best value of the development metric a smaller share may be.
      evaluators: as of the training.
      development_metric: 'evaluator/metric', by which the share is chosen.
      partitioner: mesh and rules.
      model_dir: where the files go.

    Returns:
      the named outputs: a model folder, and the report.

    Raises:
      ValueError: see `check`.
      InitialiseError: the weights do not fit the objective, or each other.
    """
    check(shares, share, tolerance, evaluators, development_metric)
    mixture = Mixture(original.arrays(), tuned.arrays(), max(shares))
    _require_alike(mixture)
    definition, fresh, shardings = train_state.create(objective, _UNTRAINED, partitioner, 0)
    evaluator, metric = _find(evaluators, development_metric)
    jitted = jitted_functions.jitted_functions(
        definition.graphdef,
        definition.module(fresh.params, fresh.variables).functions(),
        partitioner.mesh,
    )

    def mixed(share: float) -> TrainState:
        taken = warm_start.Initialise(replace(mixture, share=share), {"": ""})
        return warm_start.apply(fresh, [taken], shardings)

    def measure(share: float) -> float:
        state = mixed(share)
        functions = jitted_functions.bound(jitted, state.params, state.variables)
        found = float(evaluator.evaluate(functions, 0)[metric])
        if jax.process_index() == 0:
            print(f"interpolate: {development_metric} {found:.4f} with share {share:g}", flush=True)
        return found

    tried: list[tuple[float, float]] = []
    if share is None and getattr(evaluator, "metrics", (metric,)):
        tried = [(one, measure(one)) for one in sorted(shares)]
    if share is None:
        share = choose(tried, tolerance) if tried else max(shares)
    folder = Path(model_dir)
    checkpointer = checkpointing.Checkpointer(
        folder / "checkpoints", checkpointing.Checkpointing(keep=1)
    )
    checkpointer.save(mixed(share), {})
    checkpointer.close()
    if jax.process_index() == 0:
        module = definition.module(fresh.params, fresh.variables)
        module.contract().save(folder)
        report = {"share": share, "metric": development_metric, "tried": tried}
        (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"interpolate: share {share:g} of the tuned weights", flush=True)
    return {"checkpoint": "checkpoints", "model": ".", "report": REPORT}


def choose(tried: Sequence[tuple[float, float]], tolerance: float) -> float:
    """The smallest share whose value is at most `tolerance` below the best.

    >>> choose([(0.0, 0.60), (0.5, 0.698), (1.0, 0.70)], 0.005)
    0.5
    >>> choose([(0.0, 0.60), (0.5, 0.66), (1.0, 0.70)], 0.005)
    1.0
    """
    best = max(value for _, value in tried)
    return min(share for share, value in tried if value >= best - tolerance)


def check(
    shares: Sequence[float],
    share: float | None,
    tolerance: float,
    evaluators: Sequence[hooks.Evaluator],
    development_metric: str,
) -> None:
    """What can be known to be wrong before `interpolate` runs.

    Raises:
      ValueError: shares outside [0, 1] or none, a tolerance below 0, a metric of no evaluator.
    """
    given = shares if share is None else (share,)
    if not given or not all(0 <= one <= 1 for one in given):
        raise ValueError(
            f"interpolate.shares and share: expected numbers from 0 (the original) to 1 (the tuned "
            f"model), found {list(shares)} and {share}"
        )
    if not tolerance >= 0:
        raise ValueError(f"interpolate.tolerance: expected 0 or more, found {tolerance}")
    _find(evaluators, development_metric)


def _find(evaluators: Sequence[hooks.Evaluator], name: str) -> tuple[hooks.Evaluator, str]:
    evaluator, _, metric = name.partition("/")
    for one in evaluators:
        if one.name == evaluator:
            return one, metric
    found = ", ".join(f"{one.name}/..." for one in evaluators) or "none"
    raise ValueError(
        f"interpolate.development_metric: expected 'evaluator/metric' of {found}, found {name!r}"
    )


def _require_alike(mixture: Mixture) -> None:
    original, tuned = mixture.original, mixture.tuned
    problems = [f"{path}: in one of the two only" for path in sorted(original.keys() ^ tuned.keys())]
    problems += [
        f"{path}: original {original[path].shape}, tuned {tuned[path].shape}"
        for path in sorted(original.keys() & tuned.keys())
        if original[path].shape != tuned[path].shape
    ]
    if problems:
        raise warm_start.InitialiseError(
            "weights that cannot be mixed:\n  "
            + "\n  ".join(problems)
            + "\nGive the model that the tuned one started from."
        )


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.fine_tuning.interpolation.interpolate")
