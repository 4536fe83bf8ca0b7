"""Vectors of int8 numbers with a scale each, read as float32.

A vector is kept as round(v / s) with s = max |v| / 127: symmetric, so that 0 stays 0, and a number
is wrong by s / 2 at most.
"""

import dataclasses
from typing import Any

import numpy as np

NAME = "int8"
LARGEST = 127


@dataclasses.dataclass(frozen=True)
class Int8Vectors:
    """[T, d] vectors, in memory or on disk until they are sliced; slices are float32.

    Attributes:
      numbers: [T, d] int8.
      scales: [T] float32.
    """

    numbers: Any
    scales: Any

    dtype = np.dtype(np.float32)
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        """(T, d)"""
        count, size = self.numbers.shape
        return int(count), int(size)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """[n, d] float32: a slice with step 1, or rows int [n]."""
        return np.asarray(self.numbers[rows], np.float32) * self.scales[rows][:, None]


def quantised(vectors: np.ndarray) -> Int8Vectors:
    """Vectors [T, d] float32, finite, as int8; a vector of zeros has the scale 0."""
    scales = np.abs(vectors).max(axis=1, initial=0.0).astype(np.float32) / LARGEST
    numbers = np.rint(vectors / np.where(scales > 0, scales, 1.0)[:, None])
    return Int8Vectors(np.clip(numbers, -LARGEST, LARGEST).astype(np.int8), scales)
