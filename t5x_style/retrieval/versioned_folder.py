"""Versioned folders that are complete or absent.

    folder/versions/7/...      files and, written last, manifest.json with their sizes and sha256
    folder/versions/8.tmp/     what a writer that was killed leaves; removed by the next writer
    folder/CURRENT             '7', replaced atomically: readers never see half an index

    folder/versions/writer.lock         while a version is written

There may be many readers and many writers; one writes at a time.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from t5x_style.interfaces.index import IndexDamaged
from t5x_style.storage import file_locks

MANIFEST = "manifest.json"
CURRENT = "CURRENT"
_LOCK = "writer.lock"
_BLOCK = 1 << 20


@contextlib.contextmanager
def new_version(
    folder: str | Path, manifest: dict[str, Any], keep: int, after: int | None = None
) -> Iterator[Path]:
    """A folder to fill; on leaving without an error it becomes the current version.

    It waits for another process that writes a version of the same folder.

    Args:
      folder: of the published thing.
      manifest: saved with the files' hashes; may still be filled inside the `with`.
      keep: how many versions to leave on disk, the new one included.
      after: the version that it was made from, which must be the current one still. None: any.

    Raises:
      PublishError: it cannot be written, or another version than `after` is the current one.
    """
    require_keep(keep)
    versions = require_writable(folder)
    with file_locks.locked(versions / _LOCK, lambda: _waiting(folder)):
        if after is not None and (found := current_number(folder)) != after:
            raise PublishError(
                f"{folder}: expected version {after}, from which this one was made, to be the "
                f"current one, found {found}: another process published it meanwhile. Nothing was "
                "published now; run the same command again."
            )
        number = max(published(folder), default=0) + 1
        for stale in versions.glob("*.tmp"):  # of writers that were killed: none writes now
            shutil.rmtree(stale)
        numbered: dict[str, Any] = {}
        with writing(versions / str(number), OSError):
            with whole_folder(versions / str(number), numbered) as temporary:
                yield temporary
                numbered.update({**manifest, "version": number})
            write_atomically(Path(folder) / CURRENT, f"{number}\n")
        for old in published(folder)[:-keep]:
            # By another name first: a kill leaves it whole, or for the next writer to remove.
            going = versions / f"{old}.tmp"
            (versions / str(old)).rename(going)
            shutil.rmtree(going)


def _waiting(folder: str | Path) -> None:
    print(f"{folder}: another process writes a version; waiting for it", file=sys.stderr)


def require_keep(keep: int) -> None:
    """Raises ValueError unless so many versions can be kept."""
    if keep < 1:
        raise ValueError(f"keep: expected at least 1 version, found {keep}")


class PublishError(ValueError):
    """A version cannot be written: disk full or no permission. What was published before stays."""


@contextlib.contextmanager
def writing(folder: Path, *errors: type[Exception]) -> Iterator[None]:
    """Turns what a library says of a file that it cannot write into a PublishError."""
    try:
        yield
    except errors as error:
        there = next(one for one in (folder, *folder.parents) if os.path.exists(one))
        raise PublishError(
            f"{folder} cannot be written ({error}); {shutil.disk_usage(there).free:,} bytes are "
            "free there. Free disk space, or publish elsewhere; what was published before stays."
        ) from error


def require_writable(folder: str | Path) -> Path:
    """Folder of the versions; raises PublishError unless files can be made there."""
    versions = Path(folder) / "versions"
    with writing(versions, OSError):
        versions.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=versions):
            return versions


@contextlib.contextmanager
def whole_folder(folder: Path, manifest: dict[str, Any]) -> Iterator[Path]:
    """A folder to fill; on leaving without an error it has its manifest and appears as `folder`.

    After an error nothing of it is left, which is what a full disk needs.

    Args:
      folder: that does not exist yet; `folder`.tmp is what a writer that was killed leaves.
      manifest: saved with the files' hashes; may still be filled inside the `with`.
    """
    temporary = folder.with_name(folder.name + ".tmp")
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir()
    try:
        yield temporary
        names = [str(f.relative_to(temporary)) for f in temporary.rglob("*") if f.is_file()]
        write_manifest(temporary, manifest, names)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    temporary.rename(folder)
    sync(folder.parent)


def published(folder: str | Path) -> list[int]:
    """The numbers of all complete versions, oldest first; strays are ignored."""
    found = (Path(folder) / "versions").glob("*")
    return sorted(int(f.name) for f in found if f.name.isdigit() and (f / MANIFEST).is_file())


def current(folder: str | Path) -> Path:
    """The folder of the current version.

    Raises:
      FileNotFoundError: nothing was ever published here.
      IndexDamaged: CURRENT names a version that is not there.
    """
    return version_folder(folder, current_number(folder))


def version_folder(folder: str | Path, number: int) -> Path:
    """Path of a version."""
    return Path(folder) / "versions" / str(number)


def current_number(folder: str | Path) -> int:
    """The number of the current version; errors as of `current`."""
    pointer = Path(folder) / CURRENT
    if not pointer.is_file():
        raise FileNotFoundError(
            f"{pointer}: not found. Expected the folder of a published index, of build_index."
        )
    name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    if not name.isdigit() or int(name) not in published(folder):
        raise IndexDamaged(
            f"{pointer} names version {name!r}, but {folder} holds the complete versions "
            f"{published(folder)}. Build the index again, or put one of these into CURRENT."
        )
    return int(name)


def write_manifest(folder: Path, manifest: dict[str, Any], names: list[str]) -> None:
    """Writes manifest.json: `manifest`, and size and sha256 of the files with these names."""
    files = {name: folder / name for name in sorted(names)}
    entries = {
        name: {"bytes": file.stat().st_size, "sha256": sha256(file)} for name, file in files.items()
    }
    write_atomically(folder / MANIFEST, json.dumps({**manifest, "files": entries}, indent=1) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, after every file in it was compared with its size and hash.

    Raises:
      IndexDamaged: there is no manifest, or a file is missing, cut short or changed.
    """
    manifest = read_manifest_alone(folder)
    for name, entry in manifest["files"].items():
        _check_file(folder / name, entry["bytes"], entry["sha256"])
    return manifest


def read_manifest_alone(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, whose files are not looked at.

    Raises:
      IndexDamaged: there is no manifest.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        manifest["files"].items()
    except FileNotFoundError:
        raise IndexDamaged(f"{path}: not found; the folder was not written to its end") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexDamaged(f"{path}: not a manifest ({error})") from error
    return manifest


def _check_file(path: Path, size: int, digest: str) -> None:
    advice = "Copy it again from where it was made, or run the stage that made it again."
    if not path.is_file():
        raise IndexDamaged(f"{path}: missing, though the manifest lists it. {advice}")
    if path.stat().st_size != size:
        raise IndexDamaged(f"{path}: expected {size} bytes, found {path.stat().st_size}. {advice}")
    if sha256(path) != digest:
        raise IndexDamaged(f"{path}: its bytes changed since it was written (sha256). {advice}")


def sha256(path: Path) -> str:
    """Of a file's bytes, as hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Replaces `path`; after a crash it holds the old text or the new one."""
    with replaced(path) as file:
        file.write(text)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[TextIO]:
    """A text file to write; on leaving without an error it takes the place of `path` at once."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Makes the names in a folder survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
