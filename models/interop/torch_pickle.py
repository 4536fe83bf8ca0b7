"""Tensors of a file that PyTorch wrote (`torch.save`), read and written without PyTorch.

Such a file is a zip archive: a pickle that describes tensors, and their bytes. Reading a pickle
runs what it names; here it may name no more than what a dict of tensors is made of, and these names
map to functions of this module. Everything else is refused. BGE-M3's two heads are published in
this form.
"""

import collections
import io
import math
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from models.interop.published_folder import WeightsError

_DTYPES = {
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
}
# What reading a damaged archive or pickle raises
_DAMAGED = (
    zipfile.BadZipFile,
    pickle.UnpicklingError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
)
_MOST = 1 << 30  # bytes of a tensor; a head has some million


def read(file: str | Path) -> dict[str, np.ndarray]:
    """Name -> float32 array, of a dict of tensors.

    Raises:
      FileNotFoundError: there is no such file.
      WeightsError: it is no such archive, is damaged, or names anything but tensors.
    """
    path = Path(file)
    try:
        with zipfile.ZipFile(path) as archive:
            found = _Tensors(archive, path).load()
    except _DAMAGED as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(
            f"{path}: expected a dict of tensors as torch.save writes it: {error!r}. Copy the file "
            "again; one of some hundred bytes is a pointer of Git LFS."
        ) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(array, np.ndarray) for name, array in found.items()
    ):
        raise WeightsError(f"{path}: expected a dict of tensors by name, found {type(found)}")
    return {name: np.asarray(array, np.float32) for name, array in found.items()}


class _Tensors(pickle.Unpickler):
    """Builds arrays where PyTorch would build tensors."""

    def __init__(self, archive: zipfile.ZipFile, path: Path):
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"expected one data.pkl in it, found {len(pickles)}")
        self._archive, self._path = archive, path
        self._folder = pickles[0].removesuffix("data.pkl")
        super().__init__(io.BytesIO(archive.read(pickles[0])))

    def find_class(self, module: str, name: str) -> Any:
        """Resolve a name of a pickle; only allowed names."""
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _array
        if module == "torch" and name in _DTYPES:
            return name
        raise WeightsError(
            f"{self._path}: it names {module}.{name}, which would be run: expected tensors and "
            "nothing else. Distrust whoever made this file."
        )

    def persistent_load(self, saved: Any) -> np.ndarray:
        """The bytes of a tensor: ('storage', dtype, key, place, count)."""
        kind, name, key, _, count = saved
        if kind != "storage" or name not in _DTYPES:
            raise ValueError(f"expected the storage of a tensor, found {saved!r}")
        info, dtype = self._archive.getinfo(f"{self._folder}data/{key}"), _DTYPES[name]
        size = info.file_size
        if size != count * dtype.itemsize or size > _MOST:
            raise ValueError(f"storage {key}: expected {count} numbers, found {size} bytes")
        return np.frombuffer(self._archive.read(info), dtype)


def _array(
    storage: np.ndarray, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> np.ndarray:
    """A copy of the part of a storage that a tensor is."""
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    inside = 0 in size or (last < len(storage) and math.prod(size) <= len(storage))
    if min((offset, *size, *stride, 0)) < 0 or not inside:
        raise ValueError(f"a tensor {size} with strides {stride} in {len(storage)} numbers")
    steps = [step * storage.itemsize for step in stride]
    view = np.lib.stride_tricks.as_strided(storage[offset:], size, steps, writeable=False)
    return np.array(view)


def write(file: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """A file that `torch.load(file, weights_only=True)` opens: name -> float32 tensor."""
    with zipfile.ZipFile(Path(file), "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", _described(arrays))
        archive.writestr("archive/byteorder", "little")
        for number, array in enumerate(arrays.values()):
            archive.writestr(f"archive/data/{number}", np.ascontiguousarray(array, "<f4").tobytes())
        archive.writestr("archive/version", "3\n")


def _described(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The pickle: an OrderedDict of calls of torch._utils._rebuild_tensor_v2.

    Written by opcodes, since pickle would import PyTorch to name its functions.
    """
    empty = _global("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    parts = [pickle.PROTO + b"\x02", empty, pickle.MARK]
    for number, (name, array) in enumerate(arrays.items()):
        size, stride = array.shape, [step // 4 for step in np.empty(array.shape, "<f4").strides]
        storage = _tuple(
            _text("storage"), _global("torch", "FloatStorage"), _text(str(number)), _text("cpu"),
            _whole(array.size),
        )  # fmt: skip
        arguments = _tuple(
            storage + pickle.BINPERSID, _whole(0), _tuple(*map(_whole, size)),
            _tuple(*map(_whole, stride)), pickle.NEWFALSE, empty,
        )  # fmt: skip
        rebuilt = _global("torch._utils", "_rebuild_tensor_v2") + arguments + pickle.REDUCE
        parts += [_text(name), rebuilt]
    return b"".join([*parts, pickle.SETITEMS, pickle.STOP])


def _global(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    encoded = text.encode()
    return pickle.BINUNICODE + len(encoded).to_bytes(4, "little") + encoded


def _whole(number: int) -> bytes:
    return pickle.BININT + int(number).to_bytes(4, "little")


def _tuple(*items: bytes) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE
