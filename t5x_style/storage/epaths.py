"""Paths that may be local or remote: the one place where `etils.epath` is set up.

epath gives `gs://` to TensorFlow's client where TensorFlow is installed; that client asks Google's
production servers whatever the environment says, knows no preconditions, and takes seconds to
import. `set_up` chooses fsspec with `filesystem.ObjectFileSystem` instead, in this process and in
those that it starts.
"""

import functools
import os

from etils import epath

from t5x_style.storage import paths

IMPLEMENTATION = "t5x_style.storage.filesystem.ObjectFileSystem"


def of(path: str | os.PathLike[str]) -> epath.Path:
    """A path as `epath.Path`, which has the interface of `pathlib.Path`.

    Raises:
      paths.PathError: a scheme other than `gs://`, or a `gs://` that went through `pathlib.Path`.
    """
    if paths.is_remote(path):
        set_up()
    return epath.Path(path)


def resolved(path: str | os.PathLike[str]) -> epath.Path:
    """A path with links followed and made absolute; a remote one is both already.

    `epath.Path.resolve` and `absolute` put the working directory before `gs://`.
    """
    return of(path) if paths.is_remote(path) else epath.Path(os.path.realpath(path))


@functools.cache
def set_up() -> None:
    """Makes `gs://` in epath, and in every library that uses epath or fsspec, ours.

    Raises:
      RuntimeError: something used `gs://` through TensorFlow before.
    """
    import fsspec
    from etils.epath import backend, gpath

    os.environ["EPATH_USE_TF"] = "false"
    gpath._is_tf_installed.cache_clear()  # it was asked for a local path before
    for scheme in ("gs", "gcs"):
        fsspec.register_implementation(scheme, IMPLEMENTATION, clobber=True)
    chosen = epath.Path("gs://bucket")._backend
    if chosen is not backend.fsspec_backend:
        raise RuntimeError(
            f"expected epath to use fsspec for gs://, found {type(chosen).__name__}: a gs:// path "
            "was used before t5x_style.storage.epaths.set_up. Call it first, or set "
            "EPATH_USE_TF=false."
        )
