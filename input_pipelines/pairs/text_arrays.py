"""The rows of a token store in memory, so that a batch of them needs no reading.

Reading 512 rows of a store takes 15 ms, since every record is parsed; a step on two cores takes 50.
Taking them out of one flat array takes less than one.
"""

from collections.abc import Iterator

import numpy as np

from input_pipelines.batches import token_groups
from input_pipelines.store.token_store import Passages, TokenStore

IN_MEMORY_BYTES = 2 << 30  # a store with more is read from disk, batch by batch
_BYTES_PER_TOKEN = 5  # int32 token, bool word start
_CHUNK = 4096  # rows that are read at a time


class TextArrays:
    """Rows of a store, each cut to a length.

    Attributes:
      store: the store.
      lengths: int64 [N], tokens of each row after truncation.
      in_memory: whether `take` reads nothing from disk.
    """

    def __init__(self, store: TokenStore, length: int):
        """
        Args:
          store: an open store.
          length: tokens at which rows are cut; a row that is cut keeps its [SEP].
        """
        self.store, self._length = store, length
        self.lengths = np.minimum(store.lengths, length).astype(np.int64)
        self.in_memory = int(self.lengths.sum()) * _BYTES_PER_TOKEN <= IN_MEMORY_BYTES
        self._all: Passages | None = None
        if self.in_memory:
            parts = [self._read(rows) for rows in self._chunks()]
            self._all = Passages(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
            self._starts = np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: np.ndarray) -> Passages:
        """These rows, in this order; rows may repeat."""
        if self._all is None:
            return self._read(rows)
        lengths = self.lengths[rows]
        source = token_groups.within(lengths) + np.repeat(self._starts[rows], lengths)
        return Passages(self._all.tokens[source], self._all.word_starts[source], lengths)

    def chunks(self) -> Iterator[tuple[np.ndarray, Passages]]:
        """Yields (rows, their passages) through the whole store."""
        for rows in self._chunks():
            yield rows, self.take(rows)

    def _chunks(self) -> Iterator[np.ndarray]:
        for first in range(0, len(self.lengths), _CHUNK):
            yield np.arange(first, min(first + _CHUNK, len(self.lengths)))

    def _read(self, rows: np.ndarray) -> Passages:
        return token_groups.truncate(self.store.read(rows), self._length)
