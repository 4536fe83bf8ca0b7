"""Import Optuna, the optional library of samplers and pruners, with little logging."""

import warnings
from typing import Any


def load() -> Any:
    """The module.

    Raises:
      ValueError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise ValueError(
            "this sampler or pruner needs Optuna, which is not installed: pip install "
            "'optuna==5.0.0' (the extra `sweeps`), or take a grid or quasi_random, and no pruner"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna
