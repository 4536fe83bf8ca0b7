"""Checksums of a folder: written last, so that their presence means that the folder is complete.

Checkpoint formats notice a missing file, not a flipped bit; and a folder that is merely called
like a checkpoint looks like one. A folder without `integrity.json` is unfinished, whatever else is
in it.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

FILE_NAME = "integrity.json"
TEMPORARY = FILE_NAME + ".tmp"


def write(folder: Path) -> None:
    """Records size and sha256 of every file below `folder`, atomically, as the last file in it.

    Everything is forced to the disk first: a power cut may not leave a record without its files.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": sha256(path, True)}
        for path in paths
        if path.name not in (FILE_NAME, TEMPORARY)
    }
    temporary = folder / TEMPORARY
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"sha256": _digest(files), "files": files}, file, indent=0)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / FILE_NAME)
    _sync_folder(folder)


def is_complete(folder: Path) -> bool:
    """Whether `write` has finished for this folder."""
    return (folder / FILE_NAME).is_file()


def recorded(folder: Path) -> str:
    """The sha256 of all that `write` recorded for this folder: a fingerprint of its files."""
    return str(json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))["sha256"])


def problems(folder: Path, below: tuple[str, ...] = ("",)) -> list[str]:
    """What differs from the record, a line a file; empty if nothing does.

    Args:
      folder: that `write` was called for.
      below: only files whose path in the folder starts with one of these.
    """
    try:
        content = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        recorded = content["files"]
        intact = content["sha256"] == _digest(recorded)
    except (OSError, ValueError, TypeError, KeyError) as error:
        return [f"{FILE_NAME}: expected a record of checksums, found {error!r}"]
    if not intact:
        return [f"{FILE_NAME}: expected sha256 {content['sha256']}, found {_digest(recorded)}"]
    compared = [_difference(folder / n, n, e) for n, e in recorded.items() if n.startswith(below)]
    return [line for line in compared if line]


def _difference(path: Path, name: str, expected: dict[str, Any]) -> str | None:
    if not path.is_file():
        return f"{name}: expected {expected['bytes']} bytes, found no file"
    if path.stat().st_size != expected["bytes"]:
        return f"{name}: expected {expected['bytes']} bytes, found {path.stat().st_size}"
    if (digest := sha256(path)) != expected["sha256"]:
        return f"{name}: expected sha256 {expected['sha256']}, found {digest}"
    return None


def sha256(path: Path, sync: bool = False) -> str:
    """Of a file's content; with `sync`, once it is on the disk."""
    with open(path, "rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(files: Any) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
