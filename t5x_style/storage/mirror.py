"""Keep a local folder and its objects the same.

`push` uploads what is new or changed, and deletes the objects of files that are gone. A file that
makes the others of its folder count, such as a checkpoint's record, is uploaded after all others,
and deleted before them: what is half there never counts.
"""

import concurrent.futures
import contextlib
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from t5x_style.storage import checksums, errors, objects
from t5x_style.storage.objects import Stat

TEMPORARY = re.compile(r"(^|/)[^/]*\.tmp(/|$)|(^|/)\.[^/]*\.link$|\.orbax-checkpoint-tmp")
RECORDS = ("integrity.json", "manifest.json")  # of checkpoints, and of versions of an index
THREADS = 8  # transfers at once
Stamp = tuple[int, int]  # bytes, modification time in ns
Item = TypeVar("Item")
_same: dict[Path, Stamp] = {}  # files of this process that were as their objects when last seen
_pushed: list["Mirror"] = []  # whose `Pusher` is at work in this process
_one_at_a_time = threading.RLock()  # a checkpoint is pushed while the folder around it may be


class Mirror:
    """A folder that this process alone writes, and its objects."""

    def __init__(
        self,
        folder: Path,
        url: str,
        counts: Callable[[str], bool] = lambda name: True,
        guard: str = "",
    ):
        """Args:
        folder: local; made when something is pulled.
        url: gs:// folder, with or without '/' at its end.
        counts: whether a file takes part, by its path in the folder; temporary ones never do.
        guard: a file of the folder. Where it is missing, as on a disk that was emptied, `push`
          deletes nothing; "": it never deletes.
        """
        self.folder, self.url = folder, url.rstrip("/") + "/"
        self._counts, self._guard = counts, guard

    def pull(self, ours: bool = False) -> None:
        """Makes the folder what the objects are; to be called before the first `push`.

        Args:
          ours: the last that wrote the objects was a process of this machine, whose files may be
            newer: they stay. Otherwise files without an object are deleted: what another machine
            has written since does not go with them.
        """
        with _one_at_a_time:
            there = self._there()
            if ours:
                in_parallel(self._compare, there.values())
                return
            in_parallel(self._take, there.values())
            here = self._files()
            for name in here.keys() - there.keys():
                (self.folder / name).unlink()
            _same.update({self.folder / name: here[name] for name in there if name in here})

    def complete(self) -> None:
        """Downloads what others have pushed; to be called after a `push` of what is new here."""
        with _one_at_a_time:
            in_parallel(self._take, self._there().values())

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Files that have no object, or one of another size."""
        there = self._there()
        sizes = {name: one.size for name, one in there.items()}
        return [name for name in names if sizes.get(name) != _size(self.folder / name)]

    def _there(self) -> dict[str, Stat]:
        found = {one.path[len(self.url) :]: one for one in objects.default().below(self.url)}
        for name in found:
            if {"", ".", ".."} & set(name.split("/")):
                raise errors.StorageError(
                    f"{self.url}{name}: expected a name without empty parts, '.' and '..', which "
                    "no file can have. Delete this object."
                )
        return {name: one for name, one in found.items() if self._takes_part(name)}

    def _take(self, there: Stat) -> None:
        """Downloads an object, unless the file is equal."""
        path = self.folder / there.path[len(self.url) :]
        if _is_equal(path, there):
            return
        try:
            download(there, path)
        except errors.Missing:  # written again, or deleted, since it was listed
            if (now := objects.default().find(there.path)) is not None:
                download(now, path)

    def _compare(self, there: Stat) -> None:
        """Downloads an object that has no file, and notes a file that is equal."""
        path = self.folder / there.path[len(self.url) :]
        if not path.exists():
            self._take(there)
        elif _is_equal(path, there):
            _same[path] = stamp(path)

    def push(self) -> None:
        """Makes the objects what the folder holds now.

        Files that change or vanish meanwhile are left for the next call.
        """
        with _one_at_a_time:
            found = self._files()
            changed = [n for n, one in found.items() if _same.get(self.folder / n) != one]
            for last in (False, True):
                batch = [name for name in changed if _is_record(name) == last]
                in_parallel(lambda name: self._upload(name, found[name]), batch)
            if self._guard and (self.folder / self._guard).is_file():
                self._delete_gone()

    def _delete_gone(self) -> None:
        known = [path for path in list(_same) if path.is_relative_to(self.folder)]
        gone = [path for path in known if not path.exists()]
        for last in (True, False):
            in_parallel(self._delete, [path for path in gone if _is_record(path.name) == last])

    def _delete(self, path: Path) -> None:
        name = path.relative_to(self.folder).as_posix()
        if self._takes_part(name):
            with contextlib.suppress(errors.Missing):
                objects.default().delete(self.url + name)
        _same.pop(path, None)

    def _upload(self, name: str, seen: Stamp) -> None:
        try:
            upload(self.folder / name, self.url + name)
        except errors.Missing:  # no such bucket
            raise
        except FileNotFoundError:  # deleted meanwhile
            return
        _same[self.folder / name] = seen

    def _files(self) -> dict[str, Stamp]:
        found = {}
        for where, _, names in os.walk(self.folder, onerror=_raise):
            for name in names:
                path = Path(where, name)
                inside = path.relative_to(self.folder).as_posix()
                if self._takes_part(inside):
                    with contextlib.suppress(FileNotFoundError):
                        found[inside] = stamp(path)
        return found

    def _takes_part(self, name: str) -> bool:
        return self._counts(name) and not TEMPORARY.search(name)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a folder that was deleted meanwhile
        raise error


def _is_record(name: str) -> bool:
    return os.path.basename(name) in RECORDS


def _is_equal(path: Path, there: Stat) -> bool:
    if _size(path) != there.size:
        return False
    with open(path, "rb") as file:
        return checksums.of_file(file) == there.crc32c


class Pusher:
    """Pushes a mirror again and again while a job writes its folder.

    After a failure the next push tries again. Storage that is away for a while costs nothing but
    what a preemption in that time would lose; away at the end, it is an error.
    """

    def __init__(self, mirror: Mirror, every: float, say: Callable[[str], None]):
        """Args:
        mirror: what is pushed.
        every: seconds between two pushes.
        say: prints a line.
        """
        self._mirror, self._every, self._say = mirror, every, say
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="pusher", daemon=True)
        self._thread.start()
        _pushed.append(mirror)

    def _work(self) -> None:
        failed = False
        while not self._ended.wait(self._every):
            try:
                self._mirror.push()
                failed = False
            except Exception as error:
                if not failed:
                    self._say(f"{self._mirror.url}: {error}; this is tried again")
                failed = True

    def end(self) -> None:
        """Pushes what is left, and returns when all of it is there."""
        self._ended.set()
        self._thread.join()
        _pushed.remove(self._mirror)
        self._mirror.push()


def push_around(folder: Path) -> None:
    """Pushes, now, what a `Pusher` of this process pushes that has the folder in it."""
    for mirror in list(_pushed):
        if folder.is_relative_to(mirror.folder):
            mirror.push()


def upload(path: Path, url: str) -> None:
    """Writes a file's content to an object."""
    with open(path, "rb") as file:
        objects.default().upload(url, file, os.fstat(file.fileno()).st_size)


def download(there: Stat, path: Path) -> None:
    """Writes an object's content to a file, which appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "wb") as file:
            objects.default().download(there, file)
        seen = stamp(temporary)
        os.replace(temporary, path)
        _same[path] = seen
    finally:
        temporary.unlink(missing_ok=True)


def forget() -> None:
    """Forgets which files are as their objects, as a new process does."""
    _same.clear()


def clear(url: str, copy: Path | None = None) -> None:
    """Deletes all objects below a folder, before others are written under their names.

    Args:
      url: gs:// folder.
      copy: a folder that a `Mirror` of this process has of them, of which no file is left. Its
        files are forgotten: a later `push` would find them gone, and delete what has been written
        to the bucket since. None: there is none.
    """

    def delete(one: Stat) -> None:
        with contextlib.suppress(errors.Missing):
            objects.default().delete(one.path)

    with _one_at_a_time:
        in_parallel(delete, objects.default().below(url))
        for path in [path for path in _same if copy and path.is_relative_to(copy)]:
            del _same[path]


def in_parallel(work: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Calls `work` for all items in threads; raises the first error once all have ended."""
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(work, items):
            pass


def stamp(path: Path) -> Stamp:
    """Size and modification time of a file."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
