"""Object storage as a file system of fsspec, which `etils.epath` uses for `gs://`.

It is a thin layer over `objects.Objects`: one client, one way to repeat requests, one set of errors
for paths, records and leases. Nothing is cached: what another process wrote is seen at once.

Object storage has no folders: one exists as long as an object is below it, `mkdir` makes nothing.
A file appears whole when it is closed, and not at all if the `with` block that writes it fails. A
file cannot be appended to, and a folder cannot be renamed.
"""

import io
import os
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import fsspec
from fsspec.spec import AbstractBufferedFile

from t5x_style.storage import errors, objects, paths

BLOCK = 16 << 20  # bytes that a reader fetches at once
IN_MEMORY = 64 << 20  # bytes that a writer keeps before it uses a temporary file


class ObjectFileSystem(fsspec.AbstractFileSystem):
    """`gs://` for fsspec."""

    protocol = ("gs", "gcs")
    client: objects.Objects = objects.default()

    @classmethod
    def _strip_protocol(cls, path: str | os.PathLike[str]) -> str:
        text = os.fspath(path)
        for scheme in cls.protocol:
            text = text.removeprefix(f"{scheme}://")
        return text.rstrip("/")

    def _url(self, path: str) -> str:
        return paths.SCHEME + self._strip_protocol(path)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """An object or a folder, as fsspec describes them."""
        url = self._url(path)
        found = self.client.find(url) if paths.split(url)[1] else None
        if found is not None:
            return _info(found)
        if self.client.is_folder(url):
            return _folder(url)
        raise errors.Missing(f"{url}: no object has this name, or a name below it.")

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Direct content of a folder; an object lists itself."""
        url = self._url(path)
        files, folders = self.client.children(url)
        found = [*map(_info, files), *map(_folder, folders)] or [self.info(path)]
        if len(found) == 1 and found[0]["name"] == self._strip_protocol(path):
            found = [one for one in found if one["type"] == "file"]  # an empty bucket
        found.sort(key=lambda one: one["name"])
        return found if detail else [one["name"] for one in found]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any
    ) -> Any:
        """All objects below a path: one request for a thousand, where that is all that is asked."""
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth, withdirs, **kwargs)
        found = {one["name"]: one for one in map(_info, self.client.below(self._url(path)))}
        if not found and paths.split(self._url(path))[1]:
            alone = self.client.find(self._url(path))
            found = {} if alone is None else {_info(alone)["name"]: _info(alone)}
        return found if kwargs.get("detail") else sorted(found)

    def walk(self, path: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Walk as fsspec's, with `gs://`: epath makes paths of the folders without adding it."""
        for folder, *rest in super().walk(path, *args, **kwargs):
            yield (self._url(folder), *rest)

    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is an object or a folder; an outage is an error, not a False."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        """Whether a path is a folder."""
        return self.client.is_folder(self._url(path))

    def isfile(self, path: str) -> bool:
        """Whether a path is an object."""
        url = self._url(path)
        return bool(paths.split(url)[1]) and self.client.find(url) is not None

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Makes nothing: folders come with their objects."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes nothing; refuses a path that exists, unless that is fine."""
        if not exist_ok and self.exists(path):
            raise FileExistsError(f"{self._url(path)} already exists.")

    def rmdir(self, path: str) -> None:
        """Refuses a folder with objects; there are no others."""
        self.info(path)
        raise OSError(f"{self._url(path)} is not an empty folder.")

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Deletes an object, or all objects below a folder."""
        del maxdepth
        if not recursive:
            return self.client.delete(self._url(path))
        found = self.find(path)
        if not found:
            raise errors.Missing(f"{self._url(path)}: there is nothing to delete.")
        for name in found:
            self.client.delete(self._url(name))
        return None

    def rm_file(self, path: str) -> None:
        """Deletes an object."""
        self.client.delete(self._url(path))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copies an object within Google's storage."""
        self.client.copy(self._url(path1), self._url(path2))

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        """Copies an object, then deletes the old one: not atomic, and never a folder."""
        if not self.isfile(path1):
            raise errors.StorageError(
                f"{self._url(path1)}: object storage cannot rename a folder. Write to the final "
                "place, and a manifest last."
            )
        self.cp_file(path1, path2)
        self.rm_file(path1)

    rename = mv

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """Opens an object to read or write, as bytes or as UTF-8 text."""
        binary = self._open(path, mode.replace("t", "").replace("b", "") + "b", **kwargs)
        if "b" in mode:
            return binary
        return _Text(binary, encoding="utf-8", newline=kwargs.get("newline"))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode == "rb":
            return _Reader(self, self._strip_protocol(path), "rb", BLOCK)
        if mode == "wb":
            return _Writer(self.client, self._url(path))
        raise errors.StorageError(
            f"{self._url(path)}: object storage cannot open a file with mode {mode!r}: objects are "
            "written whole, and not appended to. Write a new object."
        )


class _Reader(AbstractBufferedFile):
    """Reads one generation: a file that is replaced meanwhile is an error, not a mixture."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        url = paths.SCHEME + self.path
        return self.fs.client.read_range(url, self.details["generation"], start, end)


class _Writer(io.BufferedIOBase):
    """Keeps what is written, and uploads it on `close`."""

    def __init__(self, client: objects.Objects, url: str):
        self._client, self._url = client, url
        self._kept = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115  closed by `close`

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._kept.tell()

    def write(self, data: Any) -> int:
        return self._kept.write(data)

    def close(self) -> None:
        if not self.closed:
            try:
                self._client.upload(self._url, self._kept, self._kept.tell())  # type: ignore[arg-type]
            finally:
                self.discard()

    def discard(self) -> None:
        """Closes the file without an upload."""
        self._kept.close()
        super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.discard()
        self.close()


class _Text(io.TextIOWrapper):
    """Text of an object; one whose `with` block fails is not uploaded."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and isinstance(self.buffer, _Writer):
            self.buffer.discard()
        else:
            self.close()


def _info(stat: objects.Stat) -> dict[str, Any]:
    return {
        "name": stat.path.removeprefix(paths.SCHEME),
        "type": "file",
        "size": stat.size,
        "generation": stat.generation,
        "crc32c": stat.crc32c,
        "mtime": stat.updated,
    }


def _folder(url: str) -> dict[str, Any]:
    return {"name": url.removeprefix(paths.SCHEME), "type": "directory", "size": 0}
