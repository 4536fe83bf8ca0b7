"""Parse paths on object storage."""

import os

SCHEME = "gs://"


class PathError(ValueError):
    """A path that looks remote and is not `gs://BUCKET/NAME`."""


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is on object storage; False for local paths.

    Raises:
      PathError: the path has another scheme than `gs://`, or lost a slash of it in `pathlib.Path`.
    """
    text = os.fspath(path)
    if text.startswith(SCHEME):
        return True
    if text.startswith("gs:/"):
        raise PathError(
            f"{text!r}: expected gs://BUCKET/NAME, found a single slash. pathlib.Path drops the "
            "second one: use etils.epath.Path for paths that may be remote."
        )
    scheme, found, rest = text.partition("://")
    if found and scheme.isalnum():
        hint = f" Write gs://{rest}" if scheme == "gcs" else ""
        raise PathError(
            f"{text!r}: expected a local path or gs://BUCKET/NAME, found {scheme}://.{hint}"
        )
    return False


def split(path: str | os.PathLike[str]) -> tuple[str, str]:
    """(bucket, object name) of a remote path; the name of a bucket's top is "".

    Raises:
      PathError: the path is not remote, or has no bucket.
    """
    text = os.fspath(path)
    if not is_remote(text):
        raise PathError(f"{text!r}: expected gs://BUCKET/NAME, found a local path.")
    bucket, _, name = text.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise PathError(f"{text!r}: expected gs://BUCKET/NAME, found no bucket.")
    return bucket, name


def join(bucket: str, name: str) -> str:
    """The remote path of an object."""
    return f"{SCHEME}{bucket}/{name}"


def prefix(path: str | os.PathLike[str]) -> tuple[str, str]:
    """(bucket, prefix of the names below a remote folder); the prefix ends in a slash, or is ""."""
    bucket, name = split(path)
    return bucket, f"{name.rstrip('/')}/" if name.strip("/") else ""
