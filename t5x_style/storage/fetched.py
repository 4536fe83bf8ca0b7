"""Files of a folder that never changes there, fetched when they are read, within a limit of bytes.

    FOLDER/.fetched      names of the files that were fetched, a line each; locked by all readers
    FOLDER/.fetching     locked while a reader looks for absent files and fetches them

Folders are fetched whole. When the copies of all folders would take more than `KENNEL_CACHE_LIMIT`,
those that were read longest ago lose their files, but none that a process is reading.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from t5x_style.storage import mirror, objects, places, sizes

LIST = ".fetched"
FETCHING = ".fetching"
LIMIT = "KENNEL_CACHE_LIMIT"


class FetchError(ValueError):
    """Files that cannot be fetched; the message says what to do."""


@dataclass(frozen=True)
class File:
    """Size and hash that a file must have.

    Attributes:
      size: bytes.
      modified: time that it gets, in ns since the epoch.
      sha256: of its content; "": it is not known.
    """

    size: int
    modified: int
    sha256: str


@contextlib.contextmanager
def kept(folder: Path, wanted: Mapping[str, File]) -> Iterator[None]:
    """Inside, these files are here, whole and checked, and stay.

    Args:
      folder: a local copy.
      wanted: path in the folder -> what it is.

    Raises:
      FetchError: a file is not there, is another one, or the disk has no space for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LIST, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # `_drop` leaves the folder alone from here on
        # Not the lock of the list: whoever waits for that waits until all other readers are done.
        with open(folder / FETCHING, "a", encoding="utf-8") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)  # also where nothing is absent: it may be unchecked
            _fetch(folder, wanted)
        os.utime(file.fileno())  # it was read now
        yield


def _absent(folder: Path, wanted: Mapping[str, File]) -> list[str]:
    sizes = {}
    for name in wanted:
        with contextlib.suppress(OSError):
            sizes[name] = (folder / name).stat().st_size
    return [name for name, one in wanted.items() if sizes.get(name) != one.size]


def _fetch(folder: Path, wanted: Mapping[str, File]) -> None:
    absent = _absent(folder, wanted)
    if not absent:
        return
    make_room(sum(wanted[name].size for name in absent), spared=folder)
    add(folder, absent)
    mirror.in_parallel(lambda name: _fetch_one(folder, name, wanted[name]), absent)


def _fetch_one(folder: Path, name: str, wanted: File) -> None:
    url, path = f"{places.remote(folder)}/{name}", folder / name
    try:
        mirror.download(objects.default().stat(url), path)
    except FileNotFoundError as error:
        raise FetchError(
            f"{url}: expected a file of {wanted.size:,} bytes, found none. Somebody has deleted "
            "it: make the stage again (--rerun), or put it back."
        ) from error
    found = path.stat().st_size
    if found != wanted.size or (wanted.sha256 and _sha256(path) != wanted.sha256):
        path.unlink()
        raise FetchError(
            f"{url}: expected the {wanted.size:,} bytes that were written once, found "
            f"{found:,} bytes with another content. Make the stage again (--rerun)."
        )
    os.utime(path, ns=(wanted.modified, wanted.modified))


def add(folder: Path, names: Iterable[str]) -> None:
    """Lists files of a folder as fetched, or as good as that."""
    with open(folder / LIST, "a", encoding="utf-8") as file:
        file.write("".join(f"{name}\n" for name in names))


def make_room(needed: int, spared: Path) -> None:
    """Deletes fetched files, longest unused first, until so many bytes more fit.

    Args:
      needed: bytes.
      spared: a folder that loses none.

    Raises:
      FetchError: they do not fit, though all that may go is gone.
    """
    root = places.cache()
    folders = [path.parent for path in root.rglob(LIST)] if root.is_dir() else []
    sizes = {folder: _size(folder) for folder in folders}
    limit, used = _limit(), sum(sizes.values())
    root.mkdir(parents=True, exist_ok=True)
    for folder in sorted(folders, key=lambda one: (one / LIST).stat().st_mtime):
        if _fits(needed, used, limit):
            break
        if folder != spared and _drop(folder):
            used -= sizes[folder]
    if not _fits(needed, used, limit):
        raise FetchError(
            f"{root}: expected space for {needed:,} bytes more, found {_free():,} bytes free on "
            f"its disk and {used:,} bytes in copies that are being read"
            + (f", with {LIMIT}={os.environ[LIMIT]}" if limit is not None else "")
            + f". Free disk space, or set {places.CACHE} to a folder of a larger disk."
        )


def _fits(needed: int, used: int, limit: int | None) -> bool:
    return needed <= _free() and (limit is None or used + needed <= limit)


def _free() -> int:
    return shutil.disk_usage(places.cache()).free


def _limit() -> int | None:
    text = os.environ.get(LIMIT, "")
    if not text:
        return None
    if (found := sizes.parse(text)) is None:
        raise FetchError(f"{LIMIT}: expected a size such as 200GB, found {text!r}")
    return found


def _names(folder: Path) -> list[str]:
    return list(dict.fromkeys((folder / LIST).read_text(encoding="utf-8").splitlines()))


def _size(folder: Path) -> int:
    total = 0
    for name in _names(folder):
        with contextlib.suppress(OSError):
            total += (folder / name).stat().st_size
    return total


def _drop(folder: Path) -> bool:
    """Deletes a folder's fetched files, unless a process is reading them."""
    with open(folder / LIST, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        for name in _names(folder):
            (folder / name).unlink(missing_ok=True)
        file.truncate(0)
        return True


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
