"""Run code on process 0 for all processes, and raise its errors on all."""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5x_style.checkpoints.state_layout import CheckpointError


def together(work: Callable[[], int]) -> int:
    """Runs `work` on process 0; every process gets its result, or fails with it."""
    result = 0
    failure: Exception | None = None
    if jax.process_index() == 0:
        try:
            result = work()
        except Exception as error:
            failure = error
    return agree(result, failure)


def agree(result: int, error: Exception | None) -> int:
    """Process 0's result; raises on every process if one of them brings an error."""
    if jax.process_count() > 1:
        mine = np.asarray([result, error is not None], np.int32)
        everyone = multihost_utils.process_allgather(mine)  # [P, 2]
        result, failed = int(everyone[0, 0]), np.flatnonzero(everyone[:, 1])
        if error is None and len(failed):
            error = CheckpointError(f"process {failed[0]} failed; its own message says why")
    if error is not None:
        raise error
    return result
