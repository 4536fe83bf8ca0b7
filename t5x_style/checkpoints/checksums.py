"""Checksums of a folder: written last, so that their presence means that the folder is complete.

Checkpoint formats notice a missing file, not a flipped bit; and a folder that is merely called
like a checkpoint looks like one. A folder without `integrity.json` is unfinished, whatever else is
in it.

A part of a complete folder, such as a checkpoint's optimizer, can be dropped later: the record then
says so and stays the same otherwise, so that `recorded` still identifies the folder.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
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
    _write_record(folder, {"sha256": _digest(files), "files": files})


def drop(folder: Path, part: str) -> None:
    """Deletes a subfolder of a complete folder, which is complete at each instant.

    First the record says that the part is gone, then it is deleted; called again after a crash in
    between, this deletes what is left of it.

    Args:
      folder: that `write` was called for.
      part: name of the subfolder; it need not exist.

    Raises:
      OSError, ValueError, KeyError: the record cannot be read.
    """
    content = _read_record(folder)
    if part not in _dropped(content):
        _write_record(folder, content | {"dropped": sorted({*_dropped(content), part})})
    if (folder / part).exists():
        shutil.rmtree(folder / part)


def dropped(folder: Path) -> tuple[str, ...]:
    """The parts that `drop` has deleted; none where the record cannot be read."""
    try:
        return tuple(_dropped(_read_record(folder)))
    except (OSError, ValueError, TypeError, KeyError):
        return ()


def copy(
    source: Path,
    target: Path,
    without: Collection[str] = (),
    replaced: Mapping[str, bytes] | None = None,
) -> None:
    """Copies the files of a complete folder; the record is written last, as by `write`.

    Args:
      source: that `write` was called for; `problems` finds what is wrong with it.
      target: must not have a record yet.
      without: parts that are left out, as if dropped.
      replaced: path in the folder -> content of the copy there.

    Raises:
      OSError, ValueError, KeyError: a file or the record cannot be read or written.
    """
    content = _read_record(source)
    parts = sorted({*_dropped(content), *without})
    files = dict(content["files"])
    for name, data in (replaced or {}).items():
        files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    for name in files:
        if _part(name) in parts:
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if replaced and name in replaced:
            (target / name).write_bytes(replaced[name])
        else:
            shutil.copyfile(source / name, target / name)
        with open(target / name, "rb") as file:
            os.fsync(file.fileno())
    _write_record(target, {"sha256": _digest(files), "files": files, "dropped": parts})


def is_complete(folder: Path) -> bool:
    """Whether `write` has finished for this folder."""
    return (folder / FILE_NAME).is_file()


def recorded(folder: Path) -> str:
    """The sha256 of all that `write` recorded for this folder: a fingerprint of its files.

    It stays what it was when a part is dropped.
    """
    return str(_read_record(folder)["sha256"])


def problems(folder: Path, below: tuple[str, ...] = ("",)) -> list[str]:
    """Differences from the record, a line a file; empty if none. Dropped parts may differ.

    Args:
      folder: that `write` was called for.
      below: only files whose path in the folder starts with one of these.
    """
    try:
        content = _read_record(folder)
        recorded = content["files"]
        gone = _dropped(content)
        intact = content["sha256"] == _digest(recorded)
    except (OSError, ValueError, TypeError, KeyError) as error:
        return [f"{FILE_NAME}: expected a record of checksums, found {error!r}"]
    if not intact:
        return [f"{FILE_NAME}: expected sha256 {content['sha256']}, found {_digest(recorded)}"]
    compared = [
        _difference(folder / name, name, expected)
        for name, expected in recorded.items()
        if name.startswith(below) and _part(name) not in gone
    ]
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


def _read_record(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / FILE_NAME).read_text(encoding="utf-8")))


def _dropped(record: Mapping[str, Any]) -> list[str]:
    return [str(part) for part in record.get("dropped", ())]


def _part(name: str) -> str:
    """The subfolder that a recorded file is in."""
    return name.partition("/")[0]


def _write_record(folder: Path, record: Mapping[str, Any]) -> None:
    temporary = folder / TEMPORARY
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=0)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / FILE_NAME)
    _sync_folder(folder)


def _digest(files: Any) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
