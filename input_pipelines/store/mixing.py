"""A hash of 64-bit numbers that is the same on every machine and with every NumPy."""

import numpy as np


def mix64(x: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer: uint64 numbers well mixed, each by itself."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
