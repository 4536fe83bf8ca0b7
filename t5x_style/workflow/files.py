"""The files of a version: what is hashed when it is finished, and compared later."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t5x_style.storage.mirror import TEMPORARY
from t5x_style.workflow.store import OWN_FILES, Version

HASHED_BYTES = 1 << 30  # larger files count by their size


def walk(folder: Path) -> Iterator[Path]:
    """All files below a folder, in the order of names; links to folders are followed, once each."""
    seen: set[str] = set()

    def below(where: Path) -> Iterator[Path]:
        real = os.path.realpath(where)
        if real in seen:
            return
        seen.add(real)
        for path in sorted(where.iterdir()):
            if path.is_dir():
                yield from below(path)
            elif path.is_file():
                yield path

    yield from below(folder)


def files_of(folder: Path) -> dict[str, list[Any]]:
    """Relative path -> [bytes, modification time in ns, sha256] of a version's files.

    Files above 1 GiB count by their size; what the store itself writes is left out. All are forced
    to the disk first: a power cut may not leave a manifest without its files.
    """
    found = {}
    for path in walk(folder):
        name = path.relative_to(folder).as_posix()
        if name not in OWN_FILES and not TEMPORARY.search(name):
            found[name] = entry_of(path)
    return found


def entry_of(path: Path) -> list[Any]:
    """A manifest's entry of one file."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, sha256(path, sync=True)]


def sha256(path: Path, sync: bool = False) -> str:
    """Of a file's content, which `sync` forces to the disk first; "" above 1 GiB."""
    with open(path, "rb") as file:
        if sync:
            os.fsync(file.fileno())
        if path.stat().st_size > HASHED_BYTES:
            return ""
        return hashlib.file_digest(file, "sha256").hexdigest()


def changed_files(version: Version, below: str = "", thorough: bool = False) -> list[str]:
    """Files of a finished version that are not as its manifest says, by relative path.

    Args:
      version: a finished one.
      below: only this file, or what is in this folder.
      thorough: hash every file; else only those whose size or modification time differs.
    """
    assert version.manifest is not None
    going = tuple(version.manifest.get("slimming") or ())  # `collection.slim` was killed
    found = []
    for name, (size, modified, digest) in version.manifest["files"].items():
        if below and name != below and not name.startswith(below + "/"):
            continue
        if name in going:
            continue
        path = version.folder / name
        try:
            stat = path.stat()
        except OSError:
            if not version.url:  # there it is; it is fetched when it is read
                found.append(name)
            continue
        untouched = (stat.st_size, stat.st_mtime_ns) == (size, modified) and not thorough
        if not untouched and (stat.st_size != size or (digest and sha256(path) != digest)):
            found.append(name)
    return found
