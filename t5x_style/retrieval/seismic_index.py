"""Seismic on the host: an approximate inverted index of tokens with weights.

Bruch, Nardini, Rulli and Venturini 2024, arXiv:2404.18812. The passages of a token lie in blocks of
similar ones, and a search skips blocks whose summary promises too little. The library keeps weights
in 16 bits; the best of what it finds is scored again with the original weights.

Two builds of the same passages differ: the library's clustering is not deterministic.
"""

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.index import NO_ROW
from t5x_style.interfaces.representation import SPARSE, Entries
from t5x_style.retrieval import candidate_scores, representation_files, versioned_folder

_FILE = "inverted"
_SUFFIX = ".index.seismic"  # that the library appends
_SMALL = 1 << 16  # tokens that fit into the library's smaller form


class SeismicMissing(index_lib.UnsupportedMachine):
    """The library is not installed here."""


class SeismicIndex:
    """Implements `index.SavableIndex`. Made by `Seismic`."""

    kind = SPARSE

    def __init__(
        self, searcher: Any, passages: Entries, record: index_lib.IndexRecord, settings: "Seismic"
    ):
        """Args:
        searcher: of the library; its document names are rows.
        passages: that are inside, perhaps on disk.
        record: of the index.
        settings: that it was built with.
        """
        self._searcher, self._passages, self._settings = searcher, passages, settings
        self.ids = list(record.ids)
        self.contract = record.contract
        self.checkpoint = record.checkpoint
        self.recall = record.recall

    def search(self, queries: Entries, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `index.Index.search`."""
        queries = index_lib.check_entry_queries(SPARSE, queries, self._passages, k)
        width = min(max(k, self._settings.reorder), len(self.ids))
        rows = self._proposed(queries, width)
        scores = candidate_scores.scores(SPARSE, queries, self._passages, rows)
        return index_lib.padded(np.where(scores == 0, -np.inf, scores), rows, k)

    def _proposed(self, queries: Entries, width: int) -> np.ndarray:
        """[Q, width] int32: rows that the library finds, in any order, NO_ROW at the end."""
        rows = np.full((len(queries), width), NO_ROW, np.int32)
        asked = np.flatnonzero(np.diff(queries.offsets))
        if not len(asked):
            return rows
        name = _library().get_seismic_string()  # the dtype of its names
        tokens, weights = (
            np.split(array, queries.offsets[1:-1])
            for array in (queries.arrays["tokens"].astype(name), queries.arrays["weights"])
        )
        found = self._searcher.batch_search(
            asked.astype(name),
            [tokens[query] for query in asked],
            [np.asarray(weights[query], np.float32) for query in asked],
            k=width,
            query_cut=self._settings.query_cut,
            heap_factor=self._settings.heap_factor,
        )
        for hits in filter(None, found):  # in the library's order, not that of the queries
            rows[int(hits[0][0]), : len(hits)] = [int(row) for _, _, row in hits]
        return rows

    def save(self, folder: Path) -> None:
        """As `index.SavableIndex.save`."""
        with versioned_folder.writing(folder, RuntimeError):
            self._searcher.save(str(folder / _FILE))
        representation_files.write(folder, SPARSE, self._passages)


@dataclasses.dataclass(frozen=True)
class Seismic(index_lib.IndexType):
    """Settings of Seismic: how much an index holds and searches.

    Attributes:
      postings: passages that are kept of a token, on average; those of small weight go.
      block_share: blocks of a token, as a share of its passages.
      summary_energy: share of a block's weight that its summary keeps, in (0, 1]. Its authors'
        0.4 is meant for passages expanded to hundreds of tokens (SPLADE). With weights for the
        tokens of the text only (BM25) it lost 41 % of the hits, docs/results/benchmarks.md.
      query_cut: of a query's tokens, so many of the largest weights choose blocks; all are scored.
      heap_factor: in (0, 1]; lower looks at more blocks, and finds more.
      reorder: how many candidates are scored again exactly; at least k are.
    """

    postings: int = 3_500
    block_share: float = 0.1
    summary_energy: float = 1.0
    query_cut: int = 10
    heap_factor: float = 0.9
    reorder: int = 20
    kind = SPARSE

    def __post_init__(self) -> None:
        if min(self.postings, self.query_cut, self.reorder) < 1:
            raise ValueError(
                f"expected postings, query_cut and reorder of at least 1, found {self}"
            )
        for name in ("block_share", "summary_energy", "heap_factor"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected in (0, 1], found {getattr(self, name)}")

    def build(self, passages: Entries, record: index_lib.IndexRecord) -> SeismicIndex:
        """As `index.IndexType.build`, but the same passages give another file; read into memory."""
        held = _sorted(passages[:])
        dimension = 1 + int(held.arrays["tokens"].max(initial=0))
        dataset_type, index_type = _types(dimension)
        dataset = dataset_type(dimension)
        dataset.add_documents_by_id(
            [str(row) for row in range(len(held))],
            held.arrays["tokens"].astype(np.int64),
            held.arrays["weights"],
            held.offsets.astype(np.int64),
        )
        searcher = index_type.build_from_dataset(
            dataset,
            n_postings=self.postings,
            centroid_fraction=self.block_share,
            summary_energy=self.summary_energy,
        )
        return SeismicIndex(searcher, passages, record, self)

    def load(self, folder: Path, record: index_lib.IndexRecord) -> SeismicIndex:
        """As `index.IndexType.load`."""
        passages = self.stored_passages(folder)
        dimension = 1 + int(passages.arrays["tokens"].max(initial=0))
        _, index_type = _types(dimension)
        try:
            searcher = index_type.load(str(folder / f"{_FILE}{_SUFFIX}"))
        except Exception as error:  # the library says what is wrong with a file in several types
            raise index_lib.IndexDamaged(
                f"{folder / _FILE}{_SUFFIX}: Seismic does not read it ({error}). Build it again."
            ) from error
        if searcher.len != int((np.diff(passages.offsets) > 0).sum()):
            raise index_lib.IndexDamaged(
                f"{folder}: {searcher.len} passages in {_FILE}{_SUFFIX}, and others in its arrays"
            )
        return SeismicIndex(searcher, passages, record, self)

    def stored_passages(self, folder: Path) -> Entries:
        """As `index.IndexType.stored_passages`."""
        found: Entries = representation_files.read(folder, SPARSE)
        return found


def _sorted(passages: Entries) -> Entries:
    """The tokens of each passage in rising order, as the library wants them."""
    order = np.lexsort((passages.arrays["tokens"], passages.owners()))
    return Entries(
        passages.offsets, {name: array[order] for name, array in passages.arrays.items()}
    )


def _types(dimension: int) -> tuple[Any, Any]:
    """The library's dataset and index for token ids below `dimension`."""
    library = _library()
    if dimension <= _SMALL:
        return library.SeismicDataset, library.SeismicIndex
    return library.SeismicDatasetLV, library.SeismicIndexLV


def _library() -> ModuleType:
    try:
        import seismic
    except ImportError as error:
        raise SeismicMissing(
            "an index of type Seismic needs its library: pip install pyseismic-lsr (wheels for "
            "Linux on x86_64). Or load the index with fall_back_to_exact=True, or build it with "
            "t5x_style.retrieval.exact_index.ExactSparse."
        ) from error
    found: ModuleType = seismic
    return found
