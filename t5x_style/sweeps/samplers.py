"""Points that an Optuna sampler proposes from the results so far.

Its study is made from our records each time, and the sampler is seeded by the number of the point:
the same records give the same point. `sources` keeps what was named.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_style.configuration.gin_reader import to_gin
from t5x_style.sweeps import optuna_extra, quasi_random
from t5x_style.sweeps.axes import Axis, ordered

FIRST = 8  # points that are quasi-random: there is nothing to learn from yet
Result = tuple[Mapping[str, Any], float | None]  # axis -> value, and the mean of the metric


def suggest(
    sampler: str,
    axes: Sequence[Axis],
    before: Sequence[Result],
    number: int,
    seed: int,
    larger_is_better: bool,
) -> dict[str, Any]:
    """The values of a further point.

    Args:
      sampler: 'tpe', the tree-structured Parzen estimator (Bergstra et al. 2011).
      axes: of the sweep.
      before: results of earlier points; those without a value, or outside of the axes, are left
        out.
      number: of the point; with the seed it decides chance.
      seed: of the sweep.
      larger_is_better: which way the metric is compared.

    Returns:
      axis -> value, of the axes that apply.

    Raises:
      ValueError: Optuna is not installed.
    """
    optuna = optuna_extra.load()
    assert sampler == "tpe", sampler
    known = [one for one in before if one[1] is not None and not math.isnan(one[1])]
    if len(before) < FIRST or len(known) < 2:
        return quasi_random.points(axes, number, seed)
    study = optuna.create_study(
        direction="maximize" if larger_is_better else "minimize",
        sampler=optuna.samplers.TPESampler(
            seed=_seed(seed, number), n_startup_trials=1, multivariate=True, group=True
        ),
    )
    for values, value in known:
        if (trial := _trial(optuna, axes, values, value)) is not None:
            study.add_trial(trial)
    asked = study.ask()
    found: dict[str, Any] = {}
    for axis in ordered(axes):
        if axis.applies(found):
            found[axis.name] = _asked(asked, axis)
    return found


def _seed(seed: int, number: int) -> int:
    """One seed of two."""
    import numpy as np

    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def _asked(trial: Any, axis: Axis) -> Any:
    """Value that a trial of Optuna suggests for an axis; values of lists by their place."""
    if axis.is_list:
        return axis.values[trial.suggest_categorical(axis.name, range(len(axis.values)))]
    if axis.scale in ("integer", "log_integer"):
        return trial.suggest_int(axis.name, int(axis.low), int(axis.high), log=axis.is_logarithmic)
    value = trial.suggest_float(axis.name, axis.low, axis.high, log=axis.is_logarithmic)
    return axis.rounded(value)


def _trial(optuna: Any, axes: Sequence[Axis], values: Mapping[str, Any], value: Any) -> Any:
    """A finished trial of Optuna; None where the axes do not hold its values (any more)."""
    parameters, distributions = {}, {}
    for axis in axes:
        if axis.name not in values:
            if axis.applies(values):
                return None
            continue
        distribution, inside = _distribution(optuna, axis), values[axis.name]
        if axis.is_list:
            texts = [to_gin(one) for one in axis.values]
            if to_gin(inside) not in texts:
                return None
            inside = texts.index(to_gin(inside))
        elif not axis.holds(inside):
            return None
        parameters[axis.name], distributions[axis.name] = inside, distribution
    return optuna.trial.create_trial(params=parameters, distributions=distributions, value=value)


def _distribution(optuna: Any, axis: Axis) -> Any:
    kinds, log = optuna.distributions, axis.is_logarithmic
    if axis.is_list:
        return kinds.CategoricalDistribution(tuple(range(len(axis.values))))
    if axis.scale in ("integer", "log_integer"):
        return kinds.IntDistribution(int(axis.low), int(axis.high), log=log)
    return kinds.FloatDistribution(axis.low, axis.high, log=log)
