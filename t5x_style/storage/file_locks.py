"""A lock that one process holds at a time, of those that share a disk. The kernel frees it.

Some disks have no locks, such as those of some clusters. There nobody waits for anybody: a warning
says so, once, and whoever publishes compares what was published meanwhile.
"""

import contextlib
import errno
import fcntl
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock until the `with` ends; not to be entered twice by one thread.

    On a disk without locks it holds nothing, and a warning is printed.

    Args:
      path: of the lock, in a folder that exists; it is there while somebody holds or wants it.
      waiting: called where somebody else holds it, before this waits.

    Raises:
      OSError: the file cannot be written.
    """
    while True:
        with path.open("ab") as file:
            _lock(file.fileno(), path, waiting)
            if not _is_at(path, file.fileno()):  # the holder before has removed it
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)  # still locked: nobody can hold this file later
            return


def _lock(descriptor: int, path: Path, waiting: Callable[[], None]) -> None:
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _warn(path.parent, os.strerror(error.errno))


@functools.cache  # once for each folder
def _warn(folder: Path, reason: str) -> None:
    print(
        f"warning: {folder}: its disk has no locks ({reason}): let one process at a time publish "
        "there",
        file=sys.stderr,
        flush=True,
    )


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
