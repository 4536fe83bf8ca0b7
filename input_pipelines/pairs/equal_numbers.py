"""Find equal numbers in two lists without a table of all pairs."""

import numpy as np

from input_pipelines.batches import token_groups


def equal(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places i and j with `left[i] == right[j]`.

    Time and memory are those of sorting and of what is found; a table of 65,536 numbers by as many
    would have 4 billion cells.

    Args:
      left: int64 [n].
      right: int64 [m]; numbers may repeat, here and in `left`.

    Returns:
      i int64 [k], ascending, and j int64 [k].
    """
    order = np.argsort(right, kind="stable")
    first, end = (np.searchsorted(right, left, side, order) for side in ("left", "right"))
    count = end - first
    i = np.repeat(np.arange(len(left)), count)
    return i, order[np.repeat(first, count) + token_groups.within(count)]
