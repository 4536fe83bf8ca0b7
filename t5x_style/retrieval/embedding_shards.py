"""The folder of a corpus's vectors: shards that are complete or absent, and can be rewritten.

    folder/shards/00007/vectors.npy     the n texts from 7 x shard_size on; files of other kinds
                                        have the names of `representation_files`
                        ids.json        the n ids
                        manifest.json   sizes and sha256 of these, and the version
    folder/contract.json
    folder/manifest.json                last: the version, the checkpoint's fingerprint, counts,
                                        sha256 of the shards' manifests

There are the files of the kinds of representation that were asked for. A manifest names the kinds,
unless dense is the only one, and how vectors of tokens are kept, if they are pooled or quantised.

The version is a fingerprint of everything that the vectors depend on. A shard of another version,
or one that is damaged, is never mixed in: the writer makes it again and the reader refuses it.
"""

import dataclasses
import hashlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import ml_dtypes
import numpy as np

from t5x_style.interfaces import representation
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.index import IndexDamaged
from t5x_style.interfaces.representation import (
    DENSE,
    ENTRIES,
    MULTI_VECTOR,
    Entries,
    Representation,
    Representations,
)
from t5x_style.retrieval import representation_files, versioned_folder
from t5x_style.retrieval import resumable_parts as parts_lib
from t5x_style.retrieval.sharded_array import ShardedArray
from t5x_style.retrieval.token_vectors import compact, int8

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
IDS = "ids.json"


@dataclasses.dataclass(frozen=True)
class Storage:
    """Settings of stored vectors.

    Attributes:
      shard_size: texts in a shard: what a kill costs at most, and, twice, what is held in memory.
      dtype: of vectors and weights: 'float32', or 'float16' or 'bfloat16' in half the space;
        readers give float32 always.
      pool_factor: f; of the n vectors of a passage's tokens about n / f are kept, the means of
        those that are alike (`token_vectors.pooling`). 1 keeps all of them.
      token_dtype: of the vectors of tokens: None, as `dtype`; or 'int8' with a scale for each
        vector, a quarter of the space of float32 (`token_vectors.int8`).
    """

    shard_size: int
    dtype: str
    pool_factor: int = 1
    token_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise ValueError(f"Storage.shard_size: expected at least 1, found {self.shard_size}")
        if self.dtype not in DTYPES:
            raise ValueError(f"Storage.dtype: expected one of {[*DTYPES]}, found {self.dtype!r}")
        compact.facts(self.pool_factor, self.token_dtype)

    @property
    def token_facts(self) -> dict[str, Any]:
        """Settings of stored token vectors; {} as the model gives them."""
        return compact.facts(self.pool_factor, self.token_dtype)

    def kept(self, kind: str, found: Representation, what: str) -> dict[str, np.ndarray]:
        """File -> array, of a representation on the host, in the stored form.

        Raises:
          ValueError: see `narrowed`.
        """
        given = compact.compact(found, self.token_facts) if kind == MULTI_VECTOR else found
        files = representation_files.arrays(kind, given)
        for name, array in files.items():
            if name != representation_files.SCALES:  # a rounded scale is an error of all numbers
                files[name] = self.narrowed(array, f"{what}: {name}")
        return files

    def narrowed(self, array: np.ndarray, what: str) -> np.ndarray:
        """An array in the stored form: floats in `dtype`, others unchanged.

        Raises:
          ValueError: a number is not finite, or leaves the dtype's range.
        """
        if array.dtype.kind != "f":
            return array
        with np.errstate(over="ignore"):  # reported below
            stored = array.astype(DTYPES[self.dtype])
        if not np.isfinite(stored.astype(np.float32)).all():
            raise ValueError(
                f"{what}: expected finite numbers, found some that are not or exceed "
                f"{self.dtype}'s range"
            )
        return stored

    def bounds(self, count: int) -> list[tuple[int, int]]:
        """First text and end of each shard of `count` texts."""
        return parts_lib.bounds(count, self.shard_size)


def version(contract: Contract, **parts: Any) -> str:
    """A fingerprint of a contract and of whatever else vectors depend on, as hexadecimal."""
    text = json.dumps({"contract": contract.of_texts(), **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class ShardWriter:
    """Writes shards of one version; used in a `with`, writes in the background, one at a time."""

    def __init__(
        self,
        folder: str | Path,
        version: str,
        storage: Storage,
        ids: Sequence[str],
        kinds: Sequence[str] = (DENSE,),
    ):
        """Args:
        folder: may hold shards of a run that was stopped.
        version: see the module.
        storage: how vectors are kept.
        ids: of all texts, in order.
        kinds: of representations that are written.
        """
        representation.require_kinds(kinds, representation.KINDS, "ShardWriter")
        self._folder, self._version, self._storage = Path(folder), version, storage
        self._ids, self._kinds = ids, list(kinds)
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
        """Shards still to make; removes, and reports, what is no shard of ours."""
        shards = self._folder / "shards"
        shards.mkdir(parents=True, exist_ok=True)
        for path in sorted(shards.iterdir()):
            problem = self._problem(path)
            if problem:
                print(f"{path}: written again: {problem}", file=sys.stderr)
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

    def write(self, number: int, found: Representations) -> None:
        """Hands over the representations of a shard's texts by kind; waits for the one before.

        Raises:
          OSError: that one could not be written.
          RepresentationError: they are of other kinds than the folder's.
          ValueError: not as many as the shard has texts, or a number leaves the dtype's range.
        """
        if set(found) != set(self._kinds):
            raise representation.RepresentationError(
                f"shard {number}: expected the kinds {self._kinds}, found {[*found]}"
            )
        start, end = self._bounds[number]
        dimension = {"dimension": found[DENSE].shape[1]} if DENSE in found else {}
        manifest = {"version": self._version, "count": end - start, **dimension, **self._facts()}
        stored: dict[str, np.ndarray] = {}
        for kind in self._kinds:
            if len(found[kind]) != end - start:
                raise ValueError(
                    f"shard {number}: expected {end - start} {kind} representations, "
                    f"found {len(found[kind])}"
                )
            stored |= self._storage.kept(kind, found[kind], f"shard {number}")
        self.wait()
        self._writing = self._background.submit(
            self._write, self._path(number), manifest, stored, list(self._ids[start:end])
        )

    def _facts(self) -> dict[str, Any]:
        """Manifest entry of the storage."""
        kinds = {} if self._kinds == [DENSE] else {"kinds": self._kinds}
        tokens = {"tokens": facts} if (facts := self._storage.token_facts) else {}
        return {"dtype": self._storage.dtype, **kinds, **tokens}

    def wait(self) -> None:
        """Returns once everything handed over is on disk."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _write(
        self, path: Path, manifest: dict[str, Any], stored: dict[str, np.ndarray], ids: list[str]
    ) -> None:
        with versioned_folder.whole_folder(path, manifest) as temporary:
            for name, array in stored.items():
                # npy has no name for bfloat16: its bits are kept as uint16
                bits = array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
                np.save(temporary / name, bits, allow_pickle=False)
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
            **({"dimension": first["dimension"]} if "dimension" in first else {}),
            **self._facts(),
            "shards": [str(path.relative_to(self._folder)) for path in paths],
        }
        manifests = [f"{shard}/{versioned_folder.MANIFEST}" for shard in manifest["shards"]]
        versioned_folder.write_manifest(self._folder, manifest, ["contract.json", *manifests])

    def _path(self, number: int) -> Path:
        return self._folder / "shards" / f"{number:05}"


def read(
    folder: str | Path,
    kinds: Sequence[str] = (DENSE,),
    expected: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Representation], list[str], Contract, str]:
    """Read what a `ShardWriter` finished; every byte is checked.

    Args:
      folder: of the writer.
      kinds: of representations that are read.
      expected: `pool_factor` and `token_dtype` that vectors of tokens must have been written with,
        either or both; None accepts any.

    Returns:
      Representations by kind, which stay on disk until they are sliced: a dense one [N, D] float32,
      others `Entries`; then ids, contract, and the checkpoint's fingerprint, '' if the folder is
      too old to say.

    Raises:
      IndexDamaged: a file is missing or changed, or a shard is of another version.
      RepresentationError: the folder does not hold one of the kinds, or its vectors of tokens are
        kept otherwise than expected, or in a way that is not known here.
    """
    folder = Path(folder)
    manifest = versioned_folder.read_manifest(folder)
    if "shards" not in manifest:
        raise IndexDamaged(
            f"{folder / versioned_folder.MANIFEST}: expected a list of shards, "
            f"found {sorted(manifest)}. "
            "The folder is of an older layout or of another stage: run encode_corpus again."
        )
    _require_held(folder, manifest.get("kinds", [DENSE]), kinds)
    tokens = compact.stored(str(folder), manifest, expected)
    shards = [folder / shard for shard in manifest["shards"]]
    ids: list[str] = []
    dtype = ""
    for shard in shards:
        found = versioned_folder.read_manifest(shard)
        if found["version"] != manifest["version"]:
            raise IndexDamaged(
                f"{shard}: expected version {manifest['version']}, found "
                f"{found['version']}: the vectors of another model. Run encode_corpus again."
            )
        dtype = found["dtype"]
        ids += json.loads((shard / IDS).read_text(encoding="utf-8"))
    by_kind = {kind: _read(kind, shards, dtype, compact.is_int8(tokens)) for kind in kinds}
    return by_kind, ids, Contract.load(folder), manifest.get("checkpoint", "")


def entry_counts(folder: str | Path, kind: str) -> np.ndarray:
    """[N] int64: how many entries each text has, of a kind with entries that is held.

    Of what a `ShardWriter` finished just now: no hash is compared.
    """
    folder = Path(folder)
    shards = versioned_folder.read_manifest_alone(folder)["shards"]
    return _counts(kind, [folder / shard for shard in shards])


def _counts(kind: str, shards: Sequence[Path]) -> np.ndarray:
    offsets = representation_files.names(kind)["offsets"]
    return np.concatenate([np.diff(np.load(shard / offsets)) for shard in shards])


def _require_held(folder: Path, held: Sequence[str], asked: Sequence[str]) -> None:
    representation.require_kinds(asked, representation.KINDS, f"embeddings in {folder}")
    if missing := [kind for kind in asked if kind not in held]:
        raise representation.RepresentationError(
            f"{folder} holds representations of the kinds {[*held]}, asked for {[*asked]}: run "
            f"encode_corpus with kinds = {[*held, *missing]}"
        )


def _read(kind: str, shards: Sequence[Path], dtype: str, tokens_int8: bool) -> Representation:
    """A representation of the texts of all shards, on disk."""
    files = representation_files.names(kind)
    if kind == DENSE:
        return _sharded(files["vectors"], shards, "float32", dtype)
    offsets = np.concatenate([[0], np.cumsum(_counts(kind, shards))])
    if kind == MULTI_VECTOR and tokens_int8:
        numbers = _sharded(files["vectors"], shards, "int8", "int8")
        scales = _sharded(representation_files.SCALES, shards, "float32", "float32")
        return Entries(offsets, {"vectors": int8.Int8Vectors(numbers, scales)})
    arrays = {
        name: _sharded(files[name], shards, given, dtype) for name, given in ENTRIES[kind].items()
    }
    return Entries(offsets, arrays)


def _sharded(name: str, shards: Sequence[Path], given: str, stored: str) -> ShardedArray:
    """A file of all shards as one array, read as `given`; float ones are kept as `stored`."""
    parts = [np.load(shard / name, mmap_mode="r", allow_pickle=False) for shard in shards]
    if given == "float32" and stored == "bfloat16":
        parts = [part.view(ml_dtypes.bfloat16) for part in parts]
    return ShardedArray(parts, given)
