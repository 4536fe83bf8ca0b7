"""Decide whether a trial is stopped early: a pure function of curves, by Optuna's pruners.

Optuna's study is made from our curves for each decision and thrown away: what it would remember of
the order and time of events must not decide anything.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from t5x_style.configuration.gin_reader import closest
from t5x_style.sweeps import optuna_extra
from t5x_style.sweeps.trials import Curve

# Pruner -> its options with their defaults.
#   trials: so many before it are needed for a judgement.
#   first_step: no judgement before this step of the training.
#   keep: share that continues at each evaluation.
#   factor: one in so many continues at each rung; each rung is so many times later than the last.
OPTIONS: Mapping[str, Mapping[str, float]] = {
    "none": {},
    "median": {"trials": 4, "first_step": 1, "keep": 0.5},
    "halving": {"first_step": 1, "factor": 2},
}


@dataclass(frozen=True)
class Pruner:
    """Name of a pruner, with all of its options, sorted."""

    name: str
    options: tuple[tuple[str, float], ...] = ()


def pruner(name: str, options: Mapping[Any, Any] | None = None) -> Pruner:
    """A pruner with its options checked.

    Args:
      name: of OPTIONS.
      options: those of it that are not as in OPTIONS; None for none.

    Raises:
      ValueError: no such pruner or option, a value out of range, or no Optuna.
    """
    if name not in OPTIONS:
        raise ValueError(f"sweep.run.pruner: no pruner {name!r}{closest(name, OPTIONS)}")
    known, options = OPTIONS[name], options or {}
    for option, value in options.items():
        where = f"sweep.run.pruner_options: {option}"
        if option not in known:
            raise ValueError(f"{where}: {name} has no such option{closest(str(option), known)}")
        if type(value) not in (int, float):
            raise ValueError(f"{where}: expected a number, found {value!r}")
        if option == "keep" and not 0 < value < 1:
            raise ValueError(f"{where}: expected a number between 0 and 1, found {value}")
        if option == "factor" and (type(value) is not int or value < 2):
            raise ValueError(f"{where}: expected an integer above 1, found {value}")
        if option != "keep" and (type(value) is not int or value < 1):
            raise ValueError(f"{where}: expected an integer above 0, found {value}")
    if name != "none":
        optuna_extra.load()
    return Pruner(name, tuple(sorted({**known, **options}.items())))


def _median(optuna: Any, trials: int, first_step: int, keep: float) -> Any:
    return optuna.pruners.PercentilePruner(
        100 * keep, n_startup_trials=trials, n_warmup_steps=first_step
    )


def _halving(optuna: Any, first_step: int, factor: int) -> Any:
    return optuna.pruners.SuccessiveHalvingPruner(
        min_resource=first_step, reduction_factor=factor, min_early_stopping_rate=0
    )


_MADE_BY: Mapping[str, Callable[..., Any]] = {"median": _median, "halving": _halving}


@functools.lru_cache(maxsize=1 << 16)
def pruned_at(
    pruner: Pruner, before: tuple[Curve, ...], judged: Curve, larger_is_better: bool
) -> int | None:
    """The first step at which a trial is stopped; None where it continues.

    Args:
      pruner: judges.
      before: curves of the trials with lower numbers, in order; each has ended, or has reached the
        last step of `judged`. What it has after its first evaluation from there on changes nothing.
      judged: the trial's curve so far.
      larger_is_better: which way the metric is compared.

    Raises:
      ValueError: a value of a curve is NaN.
    """
    if pruner.name == "none":
        return None
    for curve in (*before, judged):
        for step, value in curve:
            if math.isnan(value):
                raise ValueError(f"step {step}: expected a number to compare, found NaN")
    study = _study(pruner, larger_is_better)
    study.add_trials([_recorded(pruner, curve, larger_is_better) for curve in before if curve])
    trial = study.ask()
    for step, value in judged:
        trial.report(value, step)
        if trial.should_prune():
            return step
    return None


def _study(pruner: Pruner, larger_is_better: bool) -> Any:
    optuna = optuna_extra.load()
    return optuna.create_study(
        direction="maximize" if larger_is_better else "minimize",
        pruner=_MADE_BY[pruner.name](optuna, **dict(pruner.options)),
        sampler=optuna.samplers.RandomSampler(seed=0),
    )


@functools.lru_cache(maxsize=1 << 14)
def _recorded(pruner: Pruner, curve: Curve, larger_is_better: bool) -> Any:
    """A trial as Optuna records one with this curve, with what the pruner notes on the way."""
    study = _study(pruner, larger_is_better)
    trial = study.ask()
    for step, value in curve:
        trial.report(value, step)
        trial.should_prune()  # alone, it never has to; it notes the rungs that it reaches
    study.tell(trial, curve[-1][1])
    return study.trials[0]
