"""A local folder and its objects, kept the same.

`push` uploads what is new or changed, oldest first, and deletes the objects of files that are gone,
newest first. So whoever writes a folder's files in an order in which the last one makes it count,
as a checkpoint's record does, finds the same order in the objects: a folder that is half there
never counts.
"""

import concurrent.futures
import contextlib
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from t5x_style.storage import checksums, errors, objects
from t5x_style.storage.objects import Stat

TEMPORARY = re.compile(r"(^|/)\.[^/]*\.(tmp|link)(/|$)|\.orbax-checkpoint-tmp")
THREADS = 8  # transfers at once
Stamp = tuple[int, int]  # bytes, modification time in ns
Item = TypeVar("Item")
_same: dict[Path, Stamp] = {}  # files of this process that were as their objects when last seen


class Mirror:
    """A folder that this process alone writes, and its objects."""

    def __init__(
        self,
        folder: Path,
        url: str,
        counts: Callable[[str], bool] = lambda name: True,
    ):
        """Args:
        folder: local; made when something is pulled.
        url: gs:// folder, with or without '/' at its end.
        counts: whether a file takes part, by its path in the folder; temporary ones never do.
        """
        self.folder, self.url = folder, url.rstrip("/") + "/"
        self._counts = counts
        self._lock = threading.Lock()

    def pull(self) -> None:
        """Makes the folder what the objects are; to be called before the first `push`.

        Files without an object are deleted: they are of a job that was stopped before they were
        pushed, and what another machine has written since does not go with them.
        """
        with self._lock:
            found = objects.default().below(self.url)
            there = {one.path[len(self.url) :]: one for one in found}
            wanted = {name: one for name, one in there.items() if self._takes_part(name)}
            in_parallel(self._take, wanted.values())
            here = self._files()
            for name in here.keys() - wanted.keys():
                (self.folder / name).unlink()
            _same.update({self.folder / name: here[name] for name in wanted})

    def _take(self, there: Stat) -> None:
        path = self.folder / there.path[len(self.url) :]
        if _size(path) == there.size:
            with open(path, "rb") as file:
                if checksums.of_file(file) == there.crc32c:
                    return
        download(there, path)

    def complete(self) -> None:
        """Downloads what others have pushed; to be called after a `push` of what is new here."""
        with self._lock:
            found = objects.default().below(self.url)
            wanted = [one for one in found if self._takes_part(one.path[len(self.url) :])]
            in_parallel(self._take, wanted)

    def push(self) -> None:
        """Makes the objects what the folder holds now.

        Files that change or vanish meanwhile are left for the next call.
        """
        with self._lock:
            found = self._files()
            changed = [n for n, one in found.items() if _same.get(self.folder / n) != one]
            changed.sort(key=lambda name: found[name][1])
            for batch in _in_order(changed, found):
                in_parallel(lambda name: self._upload(name, found[name]), batch)
            here = [path for path in _same if path.is_relative_to(self.folder)]
            gone = [path for path in here if path.relative_to(self.folder).as_posix() not in found]
            for path in sorted(gone, key=lambda one: _same[one][1], reverse=True):
                with contextlib.suppress(errors.Missing):
                    objects.default().delete(
                        f"{self.url}{path.relative_to(self.folder).as_posix()}"
                    )
                del _same[path]

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
        for where, _, names in os.walk(self.folder):
            for name in names:
                path = Path(where, name)
                inside = path.relative_to(self.folder).as_posix()
                if self._takes_part(inside):
                    try:
                        found[inside] = stamp(path)
                    except FileNotFoundError:
                        continue
        return found

    def _takes_part(self, name: str) -> bool:
        return self._counts(name) and not TEMPORARY.search(name)


def _in_order(names: list[str], stamps: Mapping[str, Stamp]) -> Iterator[list[str]]:
    """Files in parts that may be uploaded at once; the last of a folder goes after its others."""
    last: dict[str, str] = {}
    for name in names:
        last[os.path.dirname(name)] = name
    closing = set(last.values())
    yield [name for name in names if name not in closing]
    for name in names:
        if name in closing:
            yield [name]


class Pusher:
    """Pushes a mirror again and again while a job writes its folder.

    A failure is kept, and the next push tries again: object storage that is away for a while costs
    nothing but what a preemption in that time would lose.
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

    def _work(self) -> None:
        failed = False
        while not self._ended.wait(self._every):
            try:
                self._mirror.push()
                failed = False
            except (OSError, ValueError) as error:
                if not failed:
                    self._say(f"{self._mirror.url}: {error}; this is tried again")
                failed = True

    def end(self) -> None:
        """Pushes what is left, and returns when all of it is there."""
        self._ended.set()
        self._thread.join()
        self._mirror.push()


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


def clear(url: str) -> None:
    """Deletes all objects below a folder."""
    in_parallel(lambda one: objects.default().delete(one.path), objects.default().below(url))


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
