"""A sweep as a study of Optuna in a journal file, for tools that read one.

    optuna-dashboard runs/rates/optuna.journal

It is rewritten with each report and never read back: the records of trials are what counts.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5x_style.configuration.gin_reader import to_gin
from t5x_style.sweeps import optuna_extra
from t5x_style.sweeps.report import whole
from t5x_style.sweeps.trials import Record, Results, Trial

FILE = "optuna.journal"
_STATES = {"done": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}  # others have not ended


def write(results: Results, folder: Path) -> bool:
    """Writes the trials that have ended, where Optuna is installed; returns whether it is.

    Args:
      results: of the sweep.
      folder: of the sweep, which exists.
    """
    if importlib.util.find_spec("optuna") is None:
        return False
    optuna = optuna_extra.load()
    with whole(folder / FILE) as temporary:
        temporary.write_bytes(b"")  # a journal is appended to
        backend = optuna.storages.journal.JournalFileBackend(str(temporary))
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name=results.title,
            direction="maximize" if results.larger_is_better else "minimize",
        )
        study.set_metric_names([results.metric])
        distributions = {axis: _distribution(optuna, results, axis) for axis in results.axes}
        for trial in results.trials:
            if (record := results.record(trial)).status in _STATES:
                study.add_trial(_trial(optuna, trial, record, distributions))
    return True


def _trial(optuna: Any, trial: Trial, record: Record, distributions: Mapping[str, Any]) -> Any:
    values = trial.configuration.values
    applying = {axis: one for axis, one in distributions.items() if axis in values}
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState[_STATES[record.status]],
        value=None if record.status == "failed" else record.value,
        params={
            axis: to_gin(values[axis]) if hasattr(one, "choices") else values[axis]
            for axis, one in applying.items()
        },
        distributions=applying,
        intermediate_values=dict(record.curve),
        user_attrs={
            "trial": trial.name,
            "configuration": trial.configuration.name,
            "seed": trial.seed,
            "step": record.step,
            "reason": record.reason,
        },
    )


def _distribution(optuna: Any, results: Results, axis: str) -> Any:
    """Optuna's distribution of an axis: the range of its values so far, or choices, as in gin."""
    every = [trial.configuration.values for trial in results.trials]
    values = [one[axis] for one in every if axis in one]
    kinds = optuna.distributions
    if axis not in results.drawn or not values:
        return kinds.CategoricalDistribution(sorted({to_gin(one) for one in values}) or [""])
    whole_numbers = all(isinstance(one, int) for one in values)
    kind = kinds.IntDistribution if whole_numbers else kinds.FloatDistribution
    return kind(min(values), max(values), log=axis in results.logarithmic)
