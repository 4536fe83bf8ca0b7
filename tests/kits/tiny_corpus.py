"""A corpus of a few random blocks, as the index and REALM want one."""

import numpy as np

LENGTH = 12


class TinyCorpus:
    """Blocks "[CLS] title [SEP] body [SEP]", three a page; some are duplicates of others."""

    def __init__(self, rows: int, vocabulary_size: int = 50, seed: int = 0) -> None:
        self.rows, self.length, self.vocabulary_size = rows, LENGTH, vocabulary_size
        self.fingerprint = f"tiny-{rows}-{vocabulary_size}-{seed}"
        rng = np.random.default_rng(seed)
        self._tokens = np.zeros((rows, LENGTH), np.int32)
        self._lengths = rng.integers(7, LENGTH + 1, rows).astype(np.int32)
        for row, length in enumerate(self._lengths):
            self._tokens[row, :length] = rng.integers(5, 50, length)
            self._tokens[row, [0, 2, length - 1]] = 2, 3, 3

    @property
    def ids(self) -> list[str]:
        """See `retrieval_batches.SearchedCorpus`."""
        return [f"b{row}" for row in range(self.rows)]

    def tokens_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `retrieval_batches.SearchedCorpus`."""
        return self._tokens[rows], self._lengths[rows]

    def tokens(self, start: int, end: int) -> np.ndarray:
        """See `device_index.Corpus`."""
        return self._tokens[start:end]

    def column(self, name: str, start: int, end: int) -> np.ndarray:
        """See `device_index.Corpus`."""
        row = np.arange(self.rows, dtype=np.int32)
        columns = {"length": self._lengths, "page": row // 3, "duplicate": row // 5 * 5 % 15}
        return columns[name][start:end]
