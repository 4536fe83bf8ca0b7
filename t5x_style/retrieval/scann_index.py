"""ScaNN on the host: the index of serving, mining and evaluation.

Up to `brute_force_below` passages every vector is compared. Above, a k-means tree chooses leaves,
asymmetric hashing scores what they hold, and the best are scored again with the original vectors
(Guo et al. 2020, https://arxiv.org/abs/1908.10396).
"""

import dataclasses
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import Contract
from t5x_style.retrieval import exact_index, versioned_folder

_PICKLE = "scann_docids.pkl"
_SAMPLE = 256  # passages whose neighbours measure the recall of a new index
_RECALL_AT = 10
_ROUNDING = 1e-5  # of a product in float32, relative to the vectors' lengths, with room
_DIMENSIONS_PER_BLOCK = 2
_ANISOTROPIC_THRESHOLD = 0.2  # the value of the paper and of the library's examples


Beside = Callable[[Path], Mapping[str, Any]]


class UnsupportedCpu(RuntimeError):
    """ScaNN's wheel would stop the process with an illegal instruction here."""


class RecallError(ValueError):
    """An index finds too little of what exact search finds."""


@dataclasses.dataclass(frozen=True)
class ScannSettings:
    """How much a ScaNN index looks at.

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


class ScannIndex:
    """Implements `index.Index`. Made by `build` or `load`."""

    def __init__(
        self,
        searcher: Any,
        ids: Sequence[str],
        contract: Contract,
        checkpoint: str,
        recall: float,
        reorder: int,
    ):
        self._searcher = searcher
        self._reorder = reorder
        self.ids = list(ids)
        self.contract = contract
        self.checkpoint = checkpoint
        self.recall = recall

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


def build(
    folder: str | Path,
    vectors: index_lib.Vectors,
    ids: Sequence[str],
    contract: Contract,
    settings: ScannSettings,
    keep: int,
    minimum_recall: float = 0.0,
    checkpoint: str = "",
    beside: Beside | None = None,
) -> ScannIndex:
    """Trains an index, measures its recall on a sample of its own passages, and publishes it.

    The same vectors give the same index, bit for bit.

    Args:
      folder: where versions are published.
      vectors: [N, D] float32, finite; all of them are read into memory.
      ids: N distinct passage ids.
      contract: of the model that embedded them.
      settings: what to build.
      keep: how many versions stay on disk.
      minimum_recall: an index that finds less of the exact top 10 is not published.
      checkpoint: fingerprint of the one that embedded them, where it is known.
      beside: writes further files into the version's folder; what it returns joins the manifest.

    Raises:
      RecallError: recall is below `minimum_recall`; what was published before stays.
      PublishError: no room, or no permission to write; what was published before stays, too.
    """
    index_lib.check_embeddings(vectors, ids)
    index_lib.check_inner_product(contract, vectors.shape[1])
    in_memory = np.ascontiguousarray(vectors[:])
    searcher = _train(in_memory, settings)
    index = ScannIndex(searcher, ids, contract, checkpoint, 0.0, settings.reorder)
    index.recall = measure_recall(index, in_memory)
    if index.recall < minimum_recall:
        raise RecallError(
            f"expected recall@{_RECALL_AT} of at least {minimum_recall} against exact search, "
            f"measured {index.recall:.4f} with {settings}. Raise searched_share or reorder."
        )
    manifest = {
        "kind": "scann",
        "checkpoint": checkpoint,
        "count": len(ids),
        "dimension": vectors.shape[1],
        "settings": dataclasses.asdict(settings),
        "recall": {"at": _RECALL_AT, "sample": min(_SAMPLE, len(ids)), "value": index.recall},
    }
    with versioned_folder.new_version(folder, manifest, keep) as version:
        # Ids are ours: ScaNN would pickle them, and a pickle runs code when it is read.
        with versioned_folder.writing(version, RuntimeError):
            searcher.serialize(str(version), relative_path=True)
        (version / "ids.json").write_text(json.dumps(list(ids)), encoding="utf-8")
        contract.save(version)
        manifest |= {} if beside is None else beside(version)
    return index


def load(
    folder: str | Path, fall_back_to_exact: bool = False
) -> ScannIndex | exact_index.ExactIndex:
    """The current version of a published index.

    Args:
      folder: that `build` published to.
      fall_back_to_exact: on a CPU that ScaNN does not support, search the stored vectors exactly.

    Raises:
      IndexDamaged: a file is missing, cut short or changed, or the folder carries a pickle.
      UnsupportedCpu: and no fall-back was asked for.
    """
    return load_version(versioned_folder.current(folder), fall_back_to_exact)


def load_version(
    version: Path, fall_back_to_exact: bool = False
) -> ScannIndex | exact_index.ExactIndex:
    """One version of a published index; arguments and errors as for `load`."""
    if (version / _PICKLE).exists():
        raise index_lib.IndexDamaged(
            f"{version / _PICKLE}: ScaNN would unpickle this file, which can run any code. Ids "
            "belong in ids.json; build the index again, and distrust whoever made this one."
        )
    manifest = versioned_folder.read_manifest(version)
    ids = json.loads((version / "ids.json").read_text(encoding="utf-8"))
    contract, checkpoint = Contract.load(version), manifest.get("checkpoint", "")
    try:
        scann = _scann()
    except UnsupportedCpu:
        if not fall_back_to_exact:
            raise
        vectors = np.load(version / "dataset.npy", mmap_mode="r", allow_pickle=False)
        return exact_index.ExactIndex(vectors, ids, contract, checkpoint)
    if "scann_assets.pbtxt" not in manifest["files"]:
        raise index_lib.IndexDamaged(f"{version}: expected scann_assets.pbtxt in its manifest")
    searcher = scann.load_searcher(str(version), assets_backcompat_shim=False)
    if searcher.size() != len(ids):
        raise index_lib.IndexDamaged(
            f"{version}: expected as many ids as vectors, found {len(ids)} and {searcher.size()}"
        )
    recall, reorder = manifest["recall"]["value"], manifest["settings"]["reorder"]
    return ScannIndex(searcher, ids, contract, checkpoint, recall, reorder)


def measure_recall(index: ScannIndex, vectors: np.ndarray) -> float:
    """Share of the exact top 10 that the index finds, for evenly spaced passages as queries.

    A passage that scores as high as the last of the exact top 10, to rounding, counts as one of
    them: which of equals is listed says nothing about an index.
    """
    count = len(vectors)
    sample = np.unique(np.linspace(0, count - 1, min(_SAMPLE, count)).astype(np.int64))
    queries, k = vectors[sample], min(_RECALL_AT, count)
    exact_scores, _ = exact_index.top_k(queries, vectors, k)
    _, rows = index.search(queries, k)
    scores = np.einsum("qd,qkd->qk", queries, vectors[np.maximum(rows, 0)])
    longest = np.linalg.norm(vectors, axis=1).max()  # REALM's vectors are no unit vectors
    slack = _ROUNDING * longest * np.linalg.norm(queries, axis=1, keepdims=True)
    found = (scores >= exact_scores[:, -1:] - slack) & (rows != index_lib.NO_ROW)
    return float(found.mean())


def _train(vectors: np.ndarray, settings: ScannSettings) -> Any:
    count = len(vectors)
    builder = _scann().builder(vectors, min(_RECALL_AT, count), "dot_product")
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
            f"{sorted(needed - flags)}. Load the index with fall_back_to_exact=True, or use "
            "t5x_style.retrieval.exact_index."
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
