"""A type of index that no file of Kennel names: a byte for each number of a vector."""

import dataclasses
from pathlib import Path

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.representation import DENSE, Vectors


class Int8Index:
    """Implements `index.SavableIndex`."""

    kind = DENSE

    def __init__(self, codes: np.ndarray, record: index_lib.IndexRecord, scale: float):
        self.codes, self.scale = codes, scale
        self.ids, self.contract = list(record.ids), record.contract
        self.checkpoint, self.recall = record.checkpoint, record.recall

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        queries = index_lib.check_queries(queries, self.contract.dimension, k)
        scores = queries @ self.codes.T.astype(np.float32) / self.scale
        rows = np.broadcast_to(np.arange(len(self.ids)), scores.shape)
        return index_lib.padded(scores, rows, k)

    def save(self, folder: Path) -> None:
        np.save(folder / "codes.npy", self.codes)


@dataclasses.dataclass(frozen=True)
class Int8(index_lib.IndexType):
    """Attributes:
    scale: what 1 becomes.
    """

    scale: float = 127.0

    def build(self, passages: Vectors, record: index_lib.IndexRecord) -> Int8Index:
        return Int8Index(np.rint(passages[:] * self.scale).astype(np.int8), record, self.scale)

    def load(self, folder: Path, record: index_lib.IndexRecord) -> Int8Index:
        return Int8Index(np.load(folder / "codes.npy", allow_pickle=False), record, self.scale)
