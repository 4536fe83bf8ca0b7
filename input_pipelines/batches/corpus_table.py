"""Retrieval corpus of a store of blocks: rows of one length, and their pages and duplicates."""

import dataclasses
import functools
import os

import numpy as np

from input_pipelines.batches import token_groups
from input_pipelines.store.store_writer import MANIFEST
from input_pipelines.store.token_store import TokenStore

_AT_ONCE = 8192  # rows that are read together
# Column -> the table of the store that says what belongs together.
_HASHES = {"duplicate": "minhash", "page": "page"}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a corpus that is still to be prepared.

    Attributes:
      rows, length, vocabulary_size: as those of `StoreCorpus`.
    """

    rows: int
    length: int
    vocabulary_size: int


@dataclasses.dataclass(frozen=True)
class StoreCorpus:
    """The rows of a token store that `prepare` made with the layout `block_layout.Blocks`.

    Attributes:
      store: its folder.
      planned: what to reckon with where the store does not exist yet, as preflight does; what is in
        it is read from the store alone. None: it has to exist.
    """

    store: str
    planned: Sizes | None = None

    def _sizes(self) -> Sizes:
        if self.planned is not None and not os.path.isfile(os.path.join(self.store, MANIFEST)):
            return self.planned
        opened = _opened(self.store)
        return Sizes(len(opened), opened.max_length, int(opened.manifest["vocabulary_size"]))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._sizes().rows

    @property
    def length(self) -> int:
        """Tokens of the longest."""
        return self._sizes().length

    @property
    def vocabulary_size(self) -> int:
        """Of the tokenizer that made the store."""
        return self._sizes().vocabulary_size

    @property
    def fingerprint(self) -> str:
        """Of the store's content."""
        return _opened(self.store).fingerprint

    @property
    def ids(self) -> list[str]:
        """Of the rows, in order."""
        return _opened(self.store).ids

    def tokens_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of some rows, int32 [n, length], padding after their ends; and lengths [n]."""
        found = np.full((len(rows), self.length), token_groups.PAD, np.int32)
        passages = _opened(self.store).read(rows)
        found[np.arange(self.length)[None] < passages.lengths[:, None]] = passages.tokens
        return found, passages.lengths.astype(np.int32)

    def tokens(self, start: int, end: int) -> np.ndarray:
        """Rows start to end - 1: int32 [end - start, length], padding after their ends."""
        found = np.full((end - start, self.length), token_groups.PAD, np.int32)
        for first in range(start, end, _AT_ONCE):
            last = min(first + _AT_ONCE, end)
            found[first - start : last - start] = self.tokens_of(np.arange(first, last))[0]
        return found

    def column(self, name: str, start: int, end: int) -> np.ndarray:
        """int32 [end - start]: 'length'; or 'page' or 'duplicate', equal numbers being of one."""
        return _column(self.store, name)[start:end]


@functools.lru_cache(maxsize=2)
def _opened(store: str) -> TokenStore:
    return TokenStore.open(store)


@functools.lru_cache(maxsize=4)
def _column(store: str, name: str) -> np.ndarray:
    opened = _opened(store)
    if name == "length":
        return opened.lengths.astype(np.int32)
    if name in _HASHES:
        return np.unique(opened.table(_HASHES[name]), return_inverse=True)[1].astype(np.int32)
    raise ValueError(f"StoreCorpus.column: expected length, page or duplicate, found {name!r}")
