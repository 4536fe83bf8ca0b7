"""A lock that one process holds at a time, of those that share a disk. The kernel frees it."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock until the `with` ends; not to be entered twice by one thread.

    Args:
      path: of the lock, in a folder that exists; it is there while somebody holds or wants it.
      waiting: called where somebody else holds it, before this waits.

    Raises:
      OSError: the file cannot be written, or the disk has no locks.
    """
    while True:
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(path, file.fileno()):  # the holder before has removed it
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)  # still locked: nobody can hold this file later
            return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
