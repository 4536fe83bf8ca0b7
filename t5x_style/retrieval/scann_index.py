"""ScaNN on the host: the index of serving, mining and evaluation.

Up to `brute_force_below` passages every vector is compared. Above, a k-means tree chooses leaves,
asymmetric hashing scores what they hold, and the best are scored again with the original vectors
(Guo et al. 2020, https://arxiv.org/abs/1908.10396).
"""

import dataclasses
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.representation import DENSE, Vectors
from t5x_style.retrieval import versioned_folder

_PICKLE = "scann_docids.pkl"
_ASSETS = "scann_assets.pbtxt"
_NEIGHBOURS = 10  # for which ScaNN tunes an index; a search may ask for more
_DIMENSIONS_PER_BLOCK = 2
_ANISOTROPIC_THRESHOLD = 0.2  # the value of the paper and of the library's examples


class UnsupportedCpu(index_lib.UnsupportedMachine):
    """ScaNN's wheel would stop the process with an illegal instruction here."""


class ScannIndex:
    """Implements `index.SavableIndex`. Made by `Scann`.

    Attributes:
      passages: the vectors that are inside, perhaps on disk.
    """

    kind = DENSE

    def __init__(
        self, searcher: Any, record: index_lib.IndexRecord, reorder: int, passages: Vectors
    ):
        """Args:
        searcher: of ScaNN.
        record: of the index.
        reorder: see `Scann`.
        passages: see there.
        """
        self._searcher = searcher
        self.passages = passages
        self._reorder = reorder
        self.ids = list(record.ids)
        self.contract = record.contract
        self.checkpoint = record.checkpoint
        self.recall = record.recall

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `index.Index.search`."""
        queries = index_lib.check_queries(queries, self.contract.dimension, k)
        if len(queries) == 0:
            return np.zeros((0, k), np.float32), np.zeros((0, k), np.int32)
        width = min(k, len(self.ids))
        rows, scores = self._searcher.search_batched(
            queries,
            final_num_neighbors=width,
            pre_reorder_num_neighbors=min(max(self._reorder, width), len(self.ids)),
        )
        return index_lib.padded(scores, rows.astype(np.int64), k)

    def save(self, folder: Path) -> None:
        """As `index.SavableIndex.save`."""
        with versioned_folder.writing(folder, RuntimeError):
            self._searcher.serialize(str(folder), relative_path=True)


@dataclasses.dataclass(frozen=True)
class Scann(index_lib.IndexType):
    """Settings of ScaNN: how much an index searches.

    Attributes:
      brute_force_below: up to this many passages every vector is compared.
      leaves: of the tree; 0 for the square root of the number of passages.
      searched_share: of the leaves, in (0, 1]; more is slower and finds more.
      reorder: how many candidates are scored again exactly; at least k are.
    """

    brute_force_below: int
    leaves: int
    searched_share: float
    reorder: int

    def __post_init__(self) -> None:
        if self.brute_force_below < 0 or self.leaves < 0 or self.reorder < 1:
            raise ValueError(f"expected sizes of at least 0 and reorder from 1, found {self}")
        if not 0 < self.searched_share <= 1:
            raise ValueError(f"searched_share: expected in (0, 1], found {self.searched_share}")

    def build(self, passages: Vectors, record: index_lib.IndexRecord) -> ScannIndex:
        """As `index.IndexType.build`; all vectors are read into memory."""
        searcher = _train(np.ascontiguousarray(passages[:]), self)
        return ScannIndex(searcher, record, self.reorder, passages)

    def load(self, folder: Path, record: index_lib.IndexRecord) -> ScannIndex:
        """As `index.IndexType.load`; a folder that carries a pickle counts as damaged."""
        _refuse_pickle(folder)
        scann = _scann()
        if _ASSETS not in versioned_folder.read_manifest_alone(folder)["files"]:
            raise index_lib.IndexDamaged(f"{folder}: expected {_ASSETS} in its manifest")
        searcher = scann.load_searcher(str(folder), assets_backcompat_shim=False)
        if searcher.size() != len(record.ids):
            raise index_lib.IndexDamaged(
                f"{folder}: expected as many ids as vectors, found {len(record.ids)} and "
                f"{searcher.size()}"
            )
        return ScannIndex(searcher, record, self.reorder, self.stored_passages(folder))

    def stored_passages(self, folder: Path) -> Vectors:
        """As `index.IndexType.stored_passages`."""
        vectors: np.ndarray = np.load(folder / "dataset.npy", mmap_mode="r", allow_pickle=False)
        return vectors


def _refuse_pickle(folder: Path) -> None:
    # Ids are ours: ScaNN would pickle them, and a pickle runs code when it is read.
    if (folder / _PICKLE).exists():
        raise index_lib.IndexDamaged(
            f"{folder / _PICKLE}: ScaNN would unpickle this file, which can run any code. Ids "
            "belong in ids.json; build the index again, and distrust whoever made this one."
        )


def _train(vectors: np.ndarray, settings: Scann) -> Any:
    count = len(vectors)
    builder = _scann().builder(vectors, min(_NEIGHBOURS, count), "dot_product")
    if count <= settings.brute_force_below:
        return builder.score_brute_force().build()
    leaves = min(settings.leaves or round(count**0.5), count)
    return (
        builder.tree(
            num_leaves=leaves,
            num_leaves_to_search=max(1, round(leaves * settings.searched_share)),
            training_sample_size=count,
            # The default, random initialisation, is seeded by the clock: another index every time.
            random_init=False,
        )
        .score_ah(
            _DIMENSIONS_PER_BLOCK,
            anisotropic_quantization_threshold=_ANISOTROPIC_THRESHOLD,
            training_sample_size=count,
        )
        .reorder(settings.reorder)
        .build()
    )


def check_cpu(cpuinfo: str = "/proc/cpuinfo") -> None:
    """Raises UnsupportedCpu unless this machine has the instructions that ScaNN's wheels use.

    ScaNN itself does not look, and dies by SIGILL.
    """
    needed = {"asimd"} if platform.machine() in ("aarch64", "arm64") else {"avx", "fma"}
    path = Path(cpuinfo)
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    flags = {
        flag
        for line in lines
        if line.lower().startswith(("flags", "features"))
        for flag in line.partition(":")[2].split()
    }
    if not needed <= flags:
        raise UnsupportedCpu(
            f"ScaNN needs a CPU with {sorted(needed)}; {cpuinfo} does not list "
            f"{sorted(needed - flags)}. Load the index with fall_back_to_exact=True, or build it "
            "with t5x_style.retrieval.exact_index.Exact."
        )


def _scann() -> ModuleType:
    """ScaNN's module for numpy, imported without TensorFlow: it takes seconds, and is unused."""
    check_cpu()
    hidden = "tensorflow" not in sys.modules
    if hidden:
        sys.modules["tensorflow"] = None  # type: ignore[assignment]
    try:
        from scann.scann_ops.py import scann_ops_pybind
    finally:
        if hidden:
            del sys.modules["tensorflow"]
    return scann_ops_pybind
