"""Checksums of a folder: written last, so that their presence means that the folder is complete.

Checkpoint formats notice a missing file, not a flipped bit; and a folder that is merely called like
a checkpoint looks like one. A folder without `integrity.json` is unfinished, whatever else is in it.
"""

import hashlib
import json
import os
from pathlib import Path

FILE_NAME = "integrity.json"


def write(folder: Path) -> None:
    """Records size and sha256 of every file below `folder`, atomically, as the last file in it."""
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != FILE_NAME
    }
    temporary = folder / (FILE_NAME + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(files, file, indent=0)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / FILE_NAME)


def is_complete(folder: Path) -> bool:
    """Whether `write` has finished for this folder."""
    return (folder / FILE_NAME).is_file()


def problems(folder: Path) -> list[str]:
    """What differs from the record, a line a file; empty if nothing does."""
    try:
        recorded = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [f"{FILE_NAME}: cannot be read ({error})"]
    found = []
    for name, expected in recorded.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name}: expected {expected['bytes']} bytes, found no file")
        elif path.stat().st_size != expected["bytes"]:
            found.append(
                f"{name}: expected {expected['bytes']} bytes, found {path.stat().st_size}"
            )
        elif (digest := sha256(path)) != expected["sha256"]:
            found.append(f"{name}: expected sha256 {expected['sha256']}, found {digest}")
    return found


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
