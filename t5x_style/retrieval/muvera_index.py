"""Several vectors of a text as one: an index of MaxSim by way of a dense index.

MUVERA (Dhulipala, Hadian, Jayaram, Lee and Mirrokni 2024, arXiv:2405.19504). Random planes divide
the space into cells, some times over. A query's vectors are summed in each cell, a passage's are
averaged, and a cell without one takes the passage's vector of the nearest cell; the cells of all
divisions, each projected to a few dimensions, are one long vector. The inner product of two such
vectors estimates MaxSim. Any dense index proposes candidates by it, MaxSim puts them in order.
"""

import dataclasses
from pathlib import Path
from typing import cast

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import (
    MULTI_VECTOR,
    PASSAGE,
    QUERY,
    Entries,
    blocks,
)
from t5x_style.retrieval import candidate_scores, exact_index, representation_files

_PLANES, _PROJECTIONS = "muvera_planes.npy", "muvera_projections.npy"


@dataclasses.dataclass(frozen=True)
class Divisions:
    """Random divisions of the space of vectors into cells; c = 2^b cells each.

    Attributes:
      planes: [r, d, b] float32.
      projections: [r, d, e] float32, of the vectors in a cell.
    """

    planes: np.ndarray
    projections: np.ndarray

    @property
    def dimension(self) -> int:
        """r x c x e, of the vector of a text."""
        count, _, bits = self.planes.shape
        return count * 2**bits * int(self.projections.shape[2])

    def encode(self, side: str, texts: Entries) -> np.ndarray:
        """[N, r x c x e] float32: section 2.1 of the paper; zeros of a text without vectors.

        Args:
          side: 'query' or 'passage'.
          texts: several vectors [T, d] of N texts; perhaps on disk.
        """
        found = np.empty((len(texts), self.dimension), np.float32)
        for at in blocks(texts, texts=4_096):
            found[at] = self._encoded(side, texts[at])
        return found

    def _encoded(self, side: str, texts: Entries) -> np.ndarray:
        vectors = texts.arrays["vectors"]
        some = np.diff(texts.offsets) > 0
        made = np.zeros((len(texts), len(self.planes), self.dimension // len(self.planes)), "f4")
        if some.any():
            for number, (planes, projection) in enumerate(
                zip(self.planes, self.projections, strict=True)
            ):
                cells = (vectors @ planes > 0) @ (1 << np.arange(planes.shape[1]))
                made[some, number] = _by_cell(
                    vectors @ projection, cells, texts.offsets, 2 ** planes.shape[1], side
                )[some]
        return made.reshape(len(texts), -1)


def _by_cell(
    vectors: np.ndarray, cells: np.ndarray, offsets: np.ndarray, count: int, side: str
) -> np.ndarray:
    """[N, c x e]: the sum of a query's vectors in each cell, the mean of a passage's.

    Args:
      vectors: [T, e].
      cells: [T], of each.
      offsets: [N + 1], of N texts.
      count: c.
      side: 'query' or 'passage'.
    """
    import scipy.sparse  # it takes a while, and only this needs it

    texts, entries = len(offsets) - 1, len(vectors)
    owners = np.repeat(np.arange(texts), np.diff(offsets))
    places = owners * count + cells
    member = scipy.sparse.csr_matrix(
        (np.ones(entries, np.float32), (places, np.arange(entries))), (texts * count, entries)
    )
    sums = member @ vectors
    if side == QUERY:
        return np.asarray(sums).reshape(texts, -1)
    counts = np.bincount(places, minlength=texts * count)
    means = sums / np.maximum(counts, 1)[:, None]
    numbers = np.arange(count)
    differing = np.bitwise_count(numbers[:, None] ^ numbers)  # [c, c]
    # For each text and cell the first entry with the fewest differing bits
    ranks = differing[cells].astype(np.int64) * entries + np.arange(entries)[:, None]  # [T, c]
    starts = offsets[:-1][np.diff(offsets) > 0]
    nearest = np.minimum.reduceat(ranks, starts, axis=0) % entries
    filled = np.zeros((texts, count, vectors.shape[1]), np.float32)
    filled[np.diff(offsets) > 0] = vectors[nearest]
    empty = (counts == 0).reshape(texts, count, 1)
    return np.where(empty, filled, means.reshape(filled.shape)).reshape(texts, -1)


class MuveraIndex:
    """Implements `index.SavableIndex`. Made by `Muvera`."""

    kind = MULTI_VECTOR

    def __init__(
        self,
        proposing: index_lib.Index,
        divisions: Divisions,
        passages: Entries,
        record: index_lib.IndexRecord,
        candidates: int,
    ):
        """Args:
        proposing: dense, of the passages' long vectors.
        divisions: that made them.
        passages: that are inside, perhaps on disk.
        record: of the index.
        candidates: see `Muvera`.
        """
        self._proposing, self._divisions = proposing, divisions
        self._passages, self._candidates = passages, candidates
        self.ids = list(record.ids)
        self.contract = record.contract
        self.checkpoint = record.checkpoint
        self.recall = record.recall

    def search(self, queries: Entries, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `index.Index.search`."""
        queries = index_lib.check_entry_queries(MULTI_VECTOR, queries, self._passages, k)
        width = min(max(k, self._candidates), len(self.ids))
        _, rows = self._proposing.search(self._divisions.encode(QUERY, queries), width)
        scores = candidate_scores.scores(MULTI_VECTOR, queries, self._passages, rows)
        lacking = np.diff(self._passages.offsets)[np.maximum(rows, 0)] == 0
        nothing = lacking | (np.diff(queries.offsets) == 0)[:, None]
        return index_lib.padded(np.where(nothing, -np.inf, scores), rows, k)

    def save(self, folder: Path) -> None:
        """As `index.SavableIndex.save`."""
        # Only what `Muvera.build` made is written, and its dense index can be.
        cast(index_lib.SavableIndex, self._proposing).save(folder)
        representation_files.write(folder, MULTI_VECTOR, self._passages)
        np.save(folder / _PLANES, self._divisions.planes)
        np.save(folder / _PROJECTIONS, self._divisions.projections)


@dataclasses.dataclass(frozen=True)
class Muvera(index_lib.IndexType):
    """An index of several vectors of a passage, by way of one long vector of each.

    Attributes:
      divisions: r, of the space; more estimate better, and make longer vectors.
      bits: b; a division has 2^b cells.
      projected: e, dimensions of a cell; the long vector has r x 2^b x e. The vectors' dimension,
        or more: they are not projected.
      candidates: how many passages MaxSim puts in order, at least k.
      seed: of the random planes and projections.
      dense: the type of index that holds the long vectors.
    """

    divisions: int = 20
    bits: int = 4
    projected: int = 16
    candidates: int = 200
    seed: int = 0
    dense: index_lib.IndexType = dataclasses.field(default_factory=exact_index.Exact)
    kind = MULTI_VECTOR

    def __post_init__(self) -> None:
        if min(self.divisions, self.bits, self.projected, self.candidates) < 1 or self.bits > 10:
            raise ValueError(
                "expected divisions, projected and candidates of at least 1 and 1 to 10 bits, "
                f"found {self}"
            )

    def build(self, passages: Entries, record: index_lib.IndexRecord) -> MuveraIndex:
        """As `index.IndexType.build`; the long vectors are held in memory."""
        divisions = self.divide(passages.arrays["vectors"].shape[1])
        long = divisions.encode(PASSAGE, passages)
        proposing = self.dense.build(long, _of_long(record, divisions.dimension))
        return MuveraIndex(proposing, divisions, passages, record, self.candidates)

    def load(self, folder: Path, record: index_lib.IndexRecord) -> MuveraIndex:
        """As `index.IndexType.load`."""
        divisions = Divisions(*(np.load(folder / name) for name in (_PLANES, _PROJECTIONS)))
        proposing = self.dense.load(folder, _of_long(record, divisions.dimension))
        return MuveraIndex(
            proposing, divisions, self.stored_passages(folder), record, self.candidates
        )

    def stored_passages(self, folder: Path) -> Entries:
        """As `index.IndexType.stored_passages`."""
        found: Entries = representation_files.read(folder, MULTI_VECTOR)
        return found

    def divide(self, dimension: int) -> Divisions:
        """The random divisions of a space of d = `dimension`; the same ones for the same seed."""
        numbers = np.random.default_rng(self.seed)
        planes = numbers.standard_normal((self.divisions, dimension, self.bits), np.float32)
        if self.projected >= dimension:  # a projection to as many dimensions only adds noise
            return Divisions(planes, np.tile(np.eye(dimension, dtype="f4"), (self.divisions, 1, 1)))
        signs = numbers.integers(0, 2, (self.divisions, dimension, self.projected)) * 2 - 1
        return Divisions(planes, (signs / np.sqrt(self.projected)).astype(np.float32))


def _of_long(record: index_lib.IndexRecord, dimension: int) -> index_lib.IndexRecord:
    """The record of an index over long vectors, whose inner products count."""
    contract: Contract = dataclasses.replace(
        record.contract, dimension=dimension, similarity="dot", normalise=False
    )
    return dataclasses.replace(record, contract=contract)
