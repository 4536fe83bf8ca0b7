"""Arrays on disk that look like one."""

import bisect
from collections.abc import Sequence

import numpy as np


class ShardedArray:
    """[N, ...] on disk in shards; slices and lists of rows are read when asked for."""

    def __init__(self, parts: Sequence[np.ndarray], dtype: str):
        """Args:
        parts: [n, ...] each, of any n and equal in the other sizes, memory-mapped.
        dtype: that rows are given in.
        """
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])
        self.shape: tuple[int, ...] = (int(self._ends[-1]), *parts[0].shape[1:])
        self.ndim = len(self.shape)
        self.dtype: np.dtype = np.dtype(dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """[n, ...]: a slice with step 1, or rows int [n] in any order."""
        if isinstance(rows, slice):
            start, end, step = rows.indices(len(self))
            if step != 1:
                raise IndexError(f"expected a slice with step 1, found {rows}")
            return self._between(start, max(start, end))
        rows = np.asarray(rows)
        owners = np.searchsorted(self._ends, rows, side="right")
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for owner in np.unique(owners).tolist():
            first = int(self._ends[owner]) - len(self._parts[owner])
            found[owners == owner] = self._parts[owner][rows[owners == owner] - first]
        return found

    def _between(self, start: int, end: int) -> np.ndarray:
        found = np.empty((end - start, *self.shape[1:]), self.dtype)
        at = start
        while at < end:
            owner = bisect.bisect_right(self._ends.tolist(), at)
            first = int(self._ends[owner]) - len(self._parts[owner])
            until = min(end, int(self._ends[owner]))
            found[at - start : until - start] = self._parts[owner][at - first : until - first]
            at = until
        return found
