"""Current copies of files that another process still writes, such as the log of a training."""

from pathlib import Path

from t5x_style.storage import mirror, objects, paths, places

_FOLDER = "latest"  # below the cache


def latest(path: Path) -> Path:
    """A copy, to be read, of what object storage has at a path now.

    It is separate from the local copy of the folder around it: a machine that resumes a stage
    relies on what is in that one.

    Returns:
      the path itself where it is on no object storage. Where nothing is there, the copy is missing.

    Raises:
      errors.StorageError: object storage does not answer, or forbids it.
    """
    url = places.remote(path)
    if not url:
        return path
    copy = places.cache() / _FOLDER / url.removeprefix(paths.SCHEME)
    found = objects.default().find(url)
    if found is None:
        copy.unlink(missing_ok=True)
    else:
        mirror.download(found, copy)
    return copy
