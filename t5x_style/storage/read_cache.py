"""Remote files on local disk while they are read: `local`, `local_folder`.

    KENNEL_CACHE        folder of the cache; ~/.cache/kennel unless set
    KENNEL_CACHE_LIMIT  its greatest size, as 500M or 200G; 64G unless set

All processes of a machine share the folder. A file is downloaded once, checked against its crc32c,
and deleted when room is needed and nobody uses it, the least recently used first. A file is used
while a process holds a shared lock on it; the system drops the lock when the process dies.

    objects/4f2a.../1700000000000001/vocab.model   one generation of an object
    objects/4f2a.../1700000000000001/.part         the same while it is downloaded
    folders/x8s0.../                               links, for a reader that wants a whole folder
    locks/4f                                       held while an object of such a hash is downloaded
    locks/room                                     held while room is made

The modification time of a file is that of the object. Where it or the size differs, the file is
hashed before it is used, and downloaded again if it is damaged. The access time says when a file
was last used.
"""

import concurrent.futures
import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from t5x_style.storage import checksums, errors, objects, paths
from t5x_style.storage.objects import Objects, PathLike, Stat

FOLDER, LIMIT = "KENNEL_CACHE", "KENNEL_CACHE_LIMIT"
DEFAULT_FOLDER, DEFAULT_LIMIT = "~/.cache/kennel", "64G"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
PART = ".part"
DOWNLOADS = 8  # of one folder at once


class CacheError(ValueError):
    """The cache cannot hold a file; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Held:
    """A file that is not deleted until this is closed.

    Attributes:
      path: where it is; to be read, not written.
    """

    path: Path
    _file: BinaryIO

    def close(self) -> None:
        """Lets the file be deleted; what is open or mapped stays readable."""
        self._file.close()


class ReadCache:
    """A folder of downloaded files, shared by all processes that use it."""

    def __init__(self, folder: Path, limit: int, client: Objects):
        """Args:
        folder: of the cache; made when needed.
        limit: bytes of all files in it.
        client: for the requests.
        """
        self.folder, self.limit, self._client = folder, limit, client

    @contextlib.contextmanager
    def local(self, path: PathLike) -> Iterator[Path]:
        """A local file with the content of an object, until the `with` block ends.

        A local path is itself.

        Raises:
          CacheError: the cache is too small, or the disk is full.
          errors.StorageError: the object cannot be read.
        """
        if not paths.is_remote(path):
            yield Path(path)
            return
        with contextlib.closing(self.hold(self._client.stat(path))) as held:
            yield held.path

    @contextlib.contextmanager
    def local_folder(self, path: PathLike) -> Iterator[Path]:
        """A local folder with links to all files below a remote one, until the block ends.

        A local path is itself.

        Raises:
          errors.Missing: there are none.
          CacheError, errors.StorageError: see `local`.
        """
        if not paths.is_remote(path):
            yield Path(path)
            return
        found = self._client.below(path)
        if not found:
            raise errors.Missing(f"{os.fspath(path)}: no object is below it.")
        prefix = paths.join(*paths.prefix(path))
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(self._folder_of_links())
            for stat, held in zip(found, self._hold_all(found, stack), strict=True):
                link = folder / stat.path.removeprefix(prefix)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(held.path)
            yield folder

    def hold(self, stat: Stat) -> Held:
        """One generation of an object on local disk, downloaded if it is not there.

        Args:
          stat: of the object, as `Objects.stat` gives it.

        Raises:
          CacheError: the cache is too small, or the disk is full.
          errors.StorageError: the object cannot be read.
        """
        digest = hashlib.sha256(stat.path.encode()).hexdigest()[:32]
        name = os.path.basename(stat.path)
        path = self.folder.absolute() / "objects" / digest / str(stat.generation) / name
        while True:
            held = _open(path, stat)
            if held is not None:
                return held
            with self._lock(digest[:2]):
                held = _open(path, stat)  # another process may have been faster
                if held is not None:
                    return held
                self._download(stat, path)

    def _hold_all(self, found: list[Stat], stack: contextlib.ExitStack) -> list[Held]:
        with concurrent.futures.ThreadPoolExecutor(DOWNLOADS) as pool:
            futures = [pool.submit(self.hold, stat) for stat in found]
        for future in futures:
            if future.exception() is None:
                stack.callback(future.result().close)
        return [future.result() for future in futures]

    @contextlib.contextmanager
    def _folder_of_links(self) -> Iterator[Path]:
        """A new folder, locked; those whose processes have died are deleted."""
        where = self.folder.absolute() / "folders"
        with self._lock("room"):
            where.mkdir(parents=True, exist_ok=True)
            for old in where.iterdir():
                with _locked_alone(old) as is_ours:
                    if is_ours:
                        shutil.rmtree(old)
            folder = Path(tempfile.mkdtemp(dir=where))
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)

    def _download(self, stat: Stat, path: Path) -> None:
        """Downloads a file that no other process downloads now."""
        part = path.with_name(PART)
        with self._lock("room"):
            file = self._reserve(stat, part)
        try:
            with file:  # locked until it is closed, so that nobody takes it for a remnant
                self._client.download(stat, file)
                file.flush()
                _check_size(file, stat)
                os.fsync(file.fileno())
                os.utime(file.fileno(), ns=(time.time_ns(), _modified(stat)))
                os.fchmod(file.fileno(), 0o444)
                os.replace(part, path)
        except BaseException as error:
            part.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise self._full(stat) from error
            raise

    def _reserve(self, stat: Stat, part: Path) -> BinaryIO:
        """A new file that has all its space, locked; the caller holds the lock of room."""
        unused = self._unused(stat)
        part.parent.mkdir(parents=True, exist_ok=True)
        file = open(part, "wb")  # noqa: SIM115  the caller's
        fcntl.flock(file, fcntl.LOCK_EX)
        while stat.size:
            try:
                os.posix_fallocate(file.fileno(), 0, stat.size)
                break
            except OSError as error:
                more = next(unused, None)
                if error.errno != errno.ENOSPC or more is None:
                    file.close()
                    part.unlink()
                    raise self._full(stat) if error.errno == errno.ENOSPC else error from None
                _delete(more)
        return file

    def _unused(self, stat: Stat) -> Iterator[Path]:
        """Deletes what the limit asks for; the files that may be deleted, too, on a full disk.

        Raises:
          CacheError: the file is above the limit, alone or with those that are used.
        """
        entries = []
        for folder, _, names in os.walk(self.folder / "objects"):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # renamed: a download has finished
                    path = Path(folder, name)
                    entries.append((path.stat().st_atime_ns, path.stat().st_size, path))
        total = sum(size for _, size, _ in entries) + stat.size
        unused = []
        for _, size, path in sorted(entries):
            with _locked_alone(path) as is_ours:
                if not is_ours:
                    continue
                if total > self.limit:
                    _delete(path)
                    total -= size
                else:
                    unused.append(path)
        if total > self.limit:
            used = total - stat.size
            raise CacheError(
                f"{stat.path}: {stat.size:,} bytes do not fit into the cache {self.folder}: its "
                f"limit is {self.limit:,} bytes, and files of {used:,} are being read. Set {LIMIT} "
                f"to at least {total:,}, and {FOLDER} to a disk that has the room."
            )
        return iter(unused)

    def _full(self, stat: Stat) -> CacheError:
        free = shutil.disk_usage(self.folder).free
        return CacheError(
            f"{stat.path}: the disk of the cache {self.folder} is full: {stat.size:,} bytes are "
            f"needed, {free:,} are free, and all files of the cache are being read. Free space "
            f"there, or set {FOLDER} to a folder on a larger disk."
        )

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        folder = self.folder / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / name, "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _open(path: Path, stat: Stat) -> Held | None:
    """The file, locked and whole; None if it is not there, or damaged."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
            fcntl.flock(file, fcntl.LOCK_SH)
            found = os.fstat(file.fileno())
            if not os.path.samestat(found, os.stat(path)):
                return None  # deleted, and downloaded again
        except FileNotFoundError:
            return None
        untouched = (found.st_size, found.st_mtime_ns) == (stat.size, _modified(stat))
        if not untouched and checksums.of_file(file) != stat.crc32c:
            return None
        os.utime(file.fileno(), ns=(time.time_ns(), _modified(stat)))
        stack.pop_all()
        return Held(path, file)
    raise AssertionError("not reached: no error is suppressed")


@contextlib.contextmanager
def _locked_alone(path: Path) -> Iterator[bool]:
    """Whether nobody uses a file or folder; nobody can begin to inside."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def _check_size(file: BinaryIO, stat: Stat) -> None:
    size = os.fstat(file.fileno()).st_size
    if size != stat.size:
        raise errors.Damaged(f"{stat.path}: expected {stat.size:,} bytes, found {size:,}.")


def _delete(path: Path) -> None:
    """Deletes a file of the cache, and the folders that are empty without it."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty
        path.parent.rmdir()
        path.parent.parent.rmdir()


def _modified(stat: Stat) -> int:
    """Modification time of an object's local file, in ns: whole seconds, which every disk keeps."""
    return int(stat.updated.timestamp()) * 1_000_000_000


@functools.cache
def default() -> ReadCache:
    """The cache that the environment names.

    Raises:
      CacheError: the limit is no size.
    """
    text = os.environ.get(LIMIT, DEFAULT_LIMIT)
    size = re.fullmatch(r"(\d+)([KMGT]?)", text)
    if not size:
        raise CacheError(f"{LIMIT}: expected a size as 500M or 200G, found {text!r}.")
    folder = Path(os.environ.get(FOLDER, DEFAULT_FOLDER)).expanduser()
    return ReadCache(folder, int(size[1]) * UNITS[size[2]], objects.default())
