"""A type of index that no file of Kennel names: for each token the passages that have it."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.representation import SPARSE, Entries


class InvertedIndex:
    """Implements `index.SavableIndex`; forgets all but the heaviest passages of each token."""

    kind = SPARSE

    def __init__(self, postings: dict[int, list[tuple[int, float]]], record: index_lib.IndexRecord):
        self.postings = postings
        self.ids, self.contract = list(record.ids), record.contract
        self.checkpoint, self.recall = record.checkpoint, record.recall

    def search(self, queries: Entries, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores = np.zeros((len(queries), len(self.ids)), np.float32)
        for row, (start, end) in enumerate(
            zip(queries.offsets[:-1], queries.offsets[1:], strict=True)
        ):
            tokens, weights = (queries.arrays[name][start:end] for name in ("tokens", "weights"))
            for token, weight in zip(tokens.tolist(), weights.tolist(), strict=True):
                for passage, heavy in self.postings.get(token, []):
                    scores[row, passage] += weight * heavy
        scores[scores == 0] = -np.inf
        return index_lib.padded(scores, np.broadcast_to(np.arange(len(self.ids)), scores.shape), k)

    def save(self, folder: Path) -> None:
        (folder / "postings.json").write_text(json.dumps([*self.postings.items()]))


@dataclasses.dataclass(frozen=True)
class Inverted(index_lib.IndexType):
    """Attributes:
    heaviest: how many passages of a token are kept.
    """

    heaviest: int = 1_000_000
    kind = SPARSE

    def build(self, passages: Entries, record: index_lib.IndexRecord) -> InvertedIndex:
        postings: dict[int, list[tuple[int, float]]] = {}
        owners = passages.owners().tolist()
        arrays = passages[:].arrays
        tokens, weights = arrays["tokens"].tolist(), arrays["weights"].tolist()
        for passage, token, weight in zip(owners, tokens, weights, strict=True):
            postings.setdefault(token, []).append((passage, weight))
        kept = {
            token: sorted(pairs, key=lambda pair: -pair[1])[: self.heaviest]
            for token, pairs in postings.items()
        }
        return InvertedIndex(kept, record)

    def load(self, folder: Path, record: index_lib.IndexRecord) -> InvertedIndex:
        pairs = json.loads((folder / "postings.json").read_text())
        return InvertedIndex({token: [*map(tuple, kept)] for token, kept in pairs}, record)
