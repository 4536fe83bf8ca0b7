"""Files that somebody else writes meanwhile, such as the log of a training, as they are now."""

from pathlib import Path

from t5x_style.storage import mirror, objects, paths, places

_FOLDER = "latest"  # below the cache


def latest(path: Path) -> Path:
    """A copy, to be read, of what object storage has at a path now.

    It lies apart from the local copy of the folder around it: a machine that goes on with a stage
    believes what is in that one.

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
