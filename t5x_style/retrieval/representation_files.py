"""A representation in a folder: npy files, named alike in shards and in indexes.

vectors.npy                                               dense: [N, D] float32
sparse_offsets.npy, sparse_tokens.npy, sparse_weights.npy
multi_vector_offsets.npy, multi_vector_vectors.npy        arrays of `Entries`
multi_vector_scales.npy                                   where vectors are int8: their scales
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_style.interfaces.index import IndexDamaged
from t5x_style.interfaces.representation import (
    DENSE,
    ENTRIES,
    MULTI_VECTOR,
    Entries,
    Representation,
    malformed,
)
from t5x_style.retrieval.token_vectors.int8 import Int8Vectors

SCALES = "multi_vector_scales.npy"
_OFFSETS = "offsets"
_VECTORS = "vectors.npy"
_BLOCK = 65_536  # rows that are read at a time


def names(kind: str) -> dict[str, str]:
    """Name of an array -> its file; that of a dense representation is 'vectors'."""
    if kind == DENSE:
        return {"vectors": _VECTORS}
    return {name: f"{kind}_{name}.npy" for name in (_OFFSETS, *ENTRIES[kind])}


def arrays(kind: str, representation: Representation) -> dict[str, Any]:
    """File -> array, of a representation on the host."""
    if kind == DENSE:
        return {_VECTORS: representation}
    held: Mapping[str, Any] = {_OFFSETS: representation.offsets, **representation.arrays}
    found = {file: held[name] for name, file in names(kind).items()}
    for file, array in list(found.items()):
        if isinstance(array, Int8Vectors):
            found |= {file: array.numbers, SCALES: array.scales}
    return found


def write(folder: Path, kind: str, representation: Representation) -> None:
    """Writes the files of a representation into an existing folder."""
    for file, array in arrays(kind, representation).items():
        _write(folder / file, array)


def _write(path: Path, array: Any) -> None:
    # In blocks, because it may exceed memory. Written and not memory-mapped: a full disk is then
    # an OSError, and not a signal that ends the process.
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(array.dtype)),
        "fortran_order": False,
        "shape": tuple(array.shape),
    }
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(array), _BLOCK):
            file.write(np.ascontiguousarray(array[start : start + _BLOCK]).tobytes())


def read(folder: Path, kind: str) -> Representation:
    """Read what `write` wrote; all but offsets stays on disk.

    Raises:
      IndexDamaged: the arrays do not fit together.
    """
    found = {
        name: np.load(folder / file, mmap_mode="r", allow_pickle=False)
        for name, file in names(kind).items()
    }
    if kind == DENSE:
        return found["vectors"]
    given = {name: found[name] for name in ENTRIES[kind]}
    if kind == MULTI_VECTOR and (folder / SCALES).exists():
        scales = np.load(folder / SCALES, mmap_mode="r", allow_pickle=False)
        given = {"vectors": Int8Vectors(given["vectors"], scales)}
    entries = Entries(np.asarray(found[_OFFSETS]), given)
    if problem := malformed(kind, entries):
        raise IndexDamaged(f"{folder / names(kind)[_OFFSETS]}: {problem}. Build it again.")
    return entries
