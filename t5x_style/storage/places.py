"""Map paths on object storage to their local copies, and back.

    gs://bucket/runs/mine/train   <->   ~/.cache/kennel/gs/bucket/runs/mine/train

Programs need files: token stores are mapped into memory, libraries open paths, links lead from runs
to versions. So a run on object storage works in a local copy, path by path, and `mirror` and
`workflow.remote_store` keep the two the same. `KENNEL_CACHE` says where the copies are.
"""

import os
from pathlib import Path

from t5x_style.storage import paths
from t5x_style.storage.paths import PathError as PathError
from t5x_style.storage.paths import is_remote as is_remote

CACHE = "KENNEL_CACHE"
_FOLDER = "gs"  # below the cache


def cache() -> Path:
    """The folder of local copies; it need not exist."""
    named = os.environ.get(CACHE)
    if named and not os.path.isabs(named):
        raise PathError(f"{CACHE}={named}: expected an absolute path")
    return Path(os.path.realpath(named or os.path.expanduser("~/.cache/kennel")))


def local(path: str | Path) -> Path:
    """The local path that corresponds to a path: its copy's place, or the path itself.

    Raises:
      paths.PathError: it looks remote, and is not gs://BUCKET/NAME.
    """
    if not paths.is_remote(path):
        return Path(path)
    bucket, name = paths.split(path)
    parts = [part for part in name.split("/") if part]
    if ".." in parts or "." in parts:
        raise paths.PathError(f"{str(path)!r}: expected a path without '.' and '..'")
    return cache().joinpath(_FOLDER, bucket, *parts)


def remote(path: str | Path) -> str:
    """The object or folder that a local path is the copy of; "" where it is none."""
    try:
        inside = Path(os.path.abspath(path)).relative_to(cache() / _FOLDER)
    except ValueError:
        return ""
    return paths.SCHEME + inside.as_posix() if inside.parts else ""


def shown(path: str | Path) -> str:
    """A path as the user knows it."""
    return remote(path) or str(path)


def shown_in(text: str) -> str:
    """A text in which paths of copies are those of object storage: true on any machine."""
    return text.replace(f"{cache() / _FOLDER}/", paths.SCHEME)
