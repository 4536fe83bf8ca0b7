"""The folder of a corpus's vectors: shards that appear whole or not at all, and can be made again.

    folder/shards/00007/vectors.npy     [n, D], the texts from 7 x shard_size on
                        ids.json        their n ids
                        manifest.json   sizes and sha256 of both, and the version
    folder/contract.json
    folder/manifest.json                last: the version, the checkpoint's fingerprint, counts,
                                        sha256 of the shards' manifests

The version is a fingerprint of everything that the vectors depend on. A shard of another version,
or one that is damaged, is never mixed in: the writer makes it anew and the reader refuses it.
"""

import bisect
import dataclasses
import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import ml_dtypes
import numpy as np

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.index import IndexDamaged
from t5x_style.retrieval import resumable_parts as parts_lib
from t5x_style.retrieval import versioned_folder

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
VECTORS, IDS = "vectors.npy", "ids.json"


@dataclasses.dataclass(frozen=True)
class Storage:
    """How vectors are kept.

    Attributes:
      shard_size: texts in a shard: what a kill costs at most, and, twice, what is held in memory.
      dtype: 'float32', or 'float16' or 'bfloat16' in half the space; readers give float32 always.
    """

    shard_size: int
    dtype: str

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise ValueError(f"Storage.shard_size: expected at least 1, found {self.shard_size}")
        if self.dtype not in DTYPES:
            raise ValueError(f"Storage.dtype: expected one of {[*DTYPES]}, found {self.dtype!r}")

    def bounds(self, count: int) -> list[tuple[int, int]]:
        """First text and end of each shard of `count` texts."""
        return parts_lib.bounds(count, self.shard_size)


def version(contract: Contract, **parts: Any) -> str:
    """A fingerprint of a contract and of whatever else vectors depend on, as hexadecimal."""
    text = json.dumps({"contract": dataclasses.asdict(contract), **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class ShardWriter:
    """Writes shards of one version; used in a `with`, writes in the background, one at a time."""

    def __init__(self, folder: str | Path, version: str, storage: Storage, ids: Sequence[str]):
        """Args:
        folder: may hold shards of a run that was stopped.
        version: see the module.
        storage: how vectors are kept.
        ids: of all texts, in order.
        """
        self._folder, self._version, self._storage = Path(folder), version, storage
        self._ids = ids
        self._bounds = storage.bounds(len(ids))
        self._background = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._background.shutdown()

    def missing(self) -> list[int]:
        """Which shards are still to be made; removes, and says so, what is no shard of ours."""
        shards = self._folder / "shards"
        shards.mkdir(parents=True, exist_ok=True)
        for path in sorted(shards.iterdir()):
            problem = self._problem(path)
            if problem:
                print(f"{path}: made anew: {problem}", file=sys.stderr)
                shutil.rmtree(path)
        return [n for n in range(len(self._bounds)) if not self._path(n).exists()]

    def _problem(self, path: Path) -> str:
        if path not in map(self._path, range(len(self._bounds))):
            return "left by a run that was stopped, or of another size of shards"
        try:
            manifest = versioned_folder.read_manifest(path)
        except IndexDamaged as error:
            return str(error)
        if manifest["version"] != self._version:
            return "it is of another checkpoint, contract or corpus"
        return ""

    def write(self, number: int, vectors: np.ndarray) -> None:
        """Hands over the vectors [n, D] float32 of a shard; waits for the one before.

        Raises:
          OSError: that one could not be written.
          ValueError: not as many vectors as the shard has texts, or one leaves the dtype's range.
        """
        start, end = self._bounds[number]
        with np.errstate(over="ignore"):  # told below
            stored = vectors.astype(DTYPES[self._storage.dtype])
        if len(stored) != end - start or not np.isfinite(stored.astype(np.float32)).all():
            raise ValueError(
                f"shard {number}: expected {end - start} finite vectors, found {len(stored)}, "
                f"of which some exceed {self._storage.dtype}'s range if the number is right"
            )
        self.wait()
        self._writing = self._background.submit(
            self._write, self._path(number), stored, list(self._ids[start:end])
        )

    def wait(self) -> None:
        """Returns once everything handed over is on disk."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _write(self, path: Path, stored: np.ndarray, ids: list[str]) -> None:
        manifest = {
            "version": self._version,
            "count": len(ids),
            "dimension": stored.shape[1],
            "dtype": self._storage.dtype,
        }
        with versioned_folder.whole_folder(path, manifest) as temporary:
            # npy has no name for bfloat16: its bits are kept as uint16
            bits = stored.view(np.uint16) if self._storage.dtype == "bfloat16" else stored
            np.save(temporary / VECTORS, bits, allow_pickle=False)
            (temporary / IDS).write_text(json.dumps(ids), encoding="utf-8")

    def finish(self, contract: Contract, checkpoint: str) -> None:
        """Writes contract.json and the folder's manifest: now it can be read.

        Args:
          contract: of the model.
          checkpoint: fingerprint of the checkpoint that made the vectors.
        """
        self.wait()
        paths = [self._path(number) for number in range(len(self._bounds))]
        first = json.loads((paths[0] / versioned_folder.MANIFEST).read_text(encoding="utf-8"))
        contract.save(self._folder)
        manifest = {
            "version": self._version,
            "checkpoint": checkpoint,
            "count": len(self._ids),
            "dimension": first["dimension"],
            "dtype": self._storage.dtype,
            "shards": [str(path.relative_to(self._folder)) for path in paths],
        }
        manifests = [f"{shard}/{versioned_folder.MANIFEST}" for shard in manifest["shards"]]
        versioned_folder.write_manifest(self._folder, manifest, ["contract.json", *manifests])

    def _path(self, number: int) -> Path:
        return self._folder / "shards" / f"{number:05}"


class ShardedVectors:
    """[N, D] float32 on disk in shards; slices and lists of rows are read when asked for."""

    ndim = 2
    dtype: np.dtype = np.dtype(np.float32)

    def __init__(self, parts: Sequence[np.ndarray]):
        """Args:
        parts: [n, D] each, of one of `DTYPES`, memory-mapped.
        """
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])
        self.shape = (int(self._ends[-1]), parts[0].shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """[n, D] float32: a slice with step 1, or rows int [n] in any order."""
        if isinstance(rows, slice):
            start, end, step = rows.indices(len(self))
            if step != 1:
                raise IndexError(f"expected a slice with step 1, found {rows}")
            return self._between(start, max(start, end))
        rows = np.asarray(rows)
        owners = np.searchsorted(self._ends, rows, side="right")
        found = np.empty((len(rows), self.shape[1]), np.float32)
        for owner in np.unique(owners).tolist():
            first = int(self._ends[owner]) - len(self._parts[owner])
            found[owners == owner] = self._parts[owner][rows[owners == owner] - first]
        return found

    def _between(self, start: int, end: int) -> np.ndarray:
        found = np.empty((end - start, self.shape[1]), np.float32)
        at = start
        while at < end:
            owner = bisect.bisect_right(self._ends.tolist(), at)
            first = int(self._ends[owner]) - len(self._parts[owner])
            until = min(end, int(self._ends[owner]))
            found[at - start : until - start] = self._parts[owner][at - first : until - first]
            at = until
        return found


def read(folder: str | Path) -> tuple[ShardedVectors, list[str], Contract, str]:
    """What a `ShardWriter` finished; every byte is checked.

    Returns:
      Vectors, ids, contract, and the checkpoint's fingerprint, '' if the folder is too old to say.

    Raises:
      IndexDamaged: a file is missing or changed, or a shard is of another version.
    """
    folder = Path(folder)
    manifest = versioned_folder.read_manifest(folder)
    if "shards" not in manifest:
        raise IndexDamaged(
            f"{folder / versioned_folder.MANIFEST}: expected a list of shards, "
            f"found {sorted(manifest)}. "
            "The folder is of an older layout or of another stage: run encode_corpus again."
        )
    parts: list[np.ndarray] = []
    ids: list[str] = []
    for shard in manifest["shards"]:
        own = versioned_folder.read_manifest(folder / shard)
        if own["version"] != manifest["version"]:
            raise IndexDamaged(
                f"{folder / shard}: expected version {manifest['version']}, found "
                f"{own['version']}: the vectors of another model. Run encode_corpus again."
            )
        part = np.load(folder / shard / VECTORS, mmap_mode="r", allow_pickle=False)
        parts.append(part.view(ml_dtypes.bfloat16) if own["dtype"] == "bfloat16" else part)
        ids += json.loads((folder / shard / IDS).read_text(encoding="utf-8"))
    return ShardedVectors(parts), ids, Contract.load(folder), manifest.get("checkpoint", "")
