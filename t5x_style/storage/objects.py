"""Objects of Google Cloud Storage: reads and writes with generation preconditions.

Every object has a generation, which changes with each write, and a crc32c. A write that names the
generation which it replaces (0 for none) succeeds only if no other write came between: this
compare-and-swap is what leases and records are built on.

Requests that fail for a passing reason (429, 5xx, connections that break or time out, a wrong
checksum) are repeated with growing delays, for 120 seconds in all (`connection.Patience`).
"""

import datetime
import functools
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from t5x_style.storage import errors, paths
from t5x_style.storage.connection import Connection, PathLike

if TYPE_CHECKING:
    from google.cloud import storage

NONCE = "kennel-write"  # metadata that says which write made a generation
GET, LIST = "storage.objects.get", "storage.objects.list"
CREATE, DELETE = "storage.objects.create", "storage.objects.delete"
GET_BUCKET = "storage.buckets.get"


@dataclass(frozen=True)
class Stat:
    """Metadata of an object.

    Attributes:
      path: gs://BUCKET/NAME.
      size: bytes.
      generation: changes with each write; never used twice for a name.
      crc32c: base64, as Google writes it.
      updated: when this generation was written, by Google's clock.
      metadata: given by the writer.
    """

    path: str
    size: int
    generation: int
    crc32c: str
    updated: datetime.datetime
    metadata: Mapping[str, str] = field(default_factory=dict)


class Objects(Connection):
    """A client; any number of threads may use it, and processes after a fork."""

    def read(self, path: PathLike) -> tuple[bytes, int]:
        """An object's content, checked against its crc32c, and the generation of that content.

        Raises:
          errors.Missing, errors.NoPermission, errors.Unreachable.
        """

        def download() -> tuple[bytes, int]:
            blob = self.blob(path)
            data = blob.download_as_bytes(raw_download=True, **self.options("crc32c"))
            return data, int(blob.generation)

        return self.call(path, GET, download)

    def read_range(self, path: PathLike, generation: int, start: int, end: int) -> bytes:
        """Bytes `start` to `end` (exclusive) of one generation; not checked against a checksum.

        Raises:
          errors.Missing: the object is gone, or was written again.
          errors.NoPermission, errors.Unreachable.
        """
        if end <= start:
            return b""

        def download() -> bytes:
            blob = self.blob(path, generation)
            return blob.download_as_bytes(
                start=start, end=end - 1, raw_download=True, **self.options()
            )

        return self.call(path, GET, download)

    def download(self, stat: Stat, file: BinaryIO) -> None:
        """Writes one generation of an object to a local file, checked against its crc32c.

        Raises:
          errors.Missing: the object is gone, or was written again.
          errors.NoPermission, errors.Unreachable.
        """

        def download() -> None:
            file.seek(0)
            blob = self.blob(stat.path, stat.generation)
            blob.download_to_file(file, raw_download=True, **self.options("crc32c"))

        self.call(stat.path, GET, download)

    def write_if(
        self,
        path: PathLike,
        data: bytes,
        generation: int,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Replaces one generation of an object, and no other.

        A request whose answer is lost is repeated. If the first one had arrived, the repetition
        finds a new generation: it is read back, and counts as ours if it carries the random number
        that every call writes to the metadata.

        Args:
          path: of the object.
          data: new content.
          generation: that it replaces; 0: there must be no object.
          metadata: stored with the object.

        Returns:
          The new generation.

        Raises:
          errors.Conflict: the object has another generation.
          errors.Unreachable: the write may have happened or not.
          errors.Missing: no such bucket.
          errors.NoPermission.
        """
        nonce = uuid.uuid4().hex
        sent = {**(metadata or {}), NONCE: nonce}
        try:
            return self._upload(path, data, sent, generation)
        except errors.Conflict:
            found = self.find(path)
            if found is not None and found.metadata.get(NONCE) == nonce:
                return found.generation
            now = found.generation if found else "no object"
            raise errors.Conflict(
                f"{os.fspath(path)}: expected generation {generation or 'no object'}, found {now}. "
                "Another process wrote it."
            ) from None

    def write(self, path: PathLike, data: bytes) -> int:
        """Writes an object whatever was there before; returns the new generation.

        Raises:
          errors.Missing: no such bucket.
          errors.NoPermission, errors.Unreachable.
        """
        return self._upload(path, data, {}, None)

    def _upload(
        self, path: PathLike, data: bytes, metadata: Mapping[str, str], generation: int | None
    ) -> int:
        def upload() -> int:
            blob = self.blob(path)
            blob.metadata = dict(metadata) or None
            blob.upload_from_string(
                data,
                content_type="application/octet-stream",
                if_generation_match=generation,
                **self.options("crc32c"),
            )
            return int(blob.generation)

        return self.call(path, CREATE, upload)

    def upload(self, path: PathLike, file: BinaryIO, size: int) -> int:
        """Writes an object from an open local file, in parts if it is large; its generation.

        Raises:
          errors.Missing: no such bucket.
          errors.NoPermission, errors.Unreachable.
        """

        def upload() -> int:
            file.seek(0)
            blob = self.blob(path)
            blob.upload_from_file(
                file,
                size=size,
                content_type="application/octet-stream",
                **self.options("crc32c") | {"retry": self.retry(path)},
            )
            return int(blob.generation)

        return self.call(path, CREATE, upload)

    def stat(self, path: PathLike) -> Stat:
        """Metadata of an object.

        Raises:
          errors.Missing, errors.NoPermission, errors.Unreachable.
        """

        def reload() -> Stat:
            blob = self.blob(path)
            blob.reload(**self.options())
            return _stat(blob)

        return self.call(path, GET, reload)

    def find(self, path: PathLike) -> Stat | None:
        """The same; None where there is no such object."""
        try:
            return self.stat(path)
        except errors.Missing:
            return None

    def below(self, folder: PathLike) -> list[Stat]:
        """All objects below a folder, however deep, in the order of names; [] where there are none.

        Raises:
          errors.Missing: no such bucket.
          errors.NoPermission, errors.Unreachable.
        """
        bucket, prefix = paths.prefix(folder)

        def collect() -> list[Stat]:
            found = self.client().list_blobs(bucket, prefix=prefix, **self.options())
            return [_stat(blob) for blob in found if not _is_mark(blob.name)]

        return self.call(folder, LIST, collect)

    def children(self, folder: PathLike) -> tuple[list[Stat], list[str]]:
        """(objects, paths of folders) directly in a folder.

        Raises:
          errors.Missing: no such bucket.
          errors.NoPermission, errors.Unreachable.
        """
        bucket, prefix = paths.prefix(folder)

        def collect() -> tuple[list[Stat], list[str]]:
            found = self.client().list_blobs(bucket, prefix=prefix, delimiter="/", **self.options())
            objects = [_stat(blob) for blob in found if not _is_mark(blob.name)]
            return objects, [paths.join(bucket, name.rstrip("/")) for name in found.prefixes]

        objects, folders = self.call(folder, LIST, collect)
        return objects, sorted(folders)

    def is_folder(self, path: PathLike) -> bool:
        """Whether any object is below the path; a bucket is a folder, too, if it exists.

        Raises:
          errors.NoPermission, errors.Unreachable.
        """
        bucket, prefix = paths.prefix(path)

        def first() -> bool:
            found = self.client().list_blobs(bucket, prefix=prefix, max_results=1, **self.options())
            return bool(list(found)) or not prefix

        try:
            return self.call(path, LIST, first)
        except errors.Missing:
            return False

    def delete(self, path: PathLike, generation: int | None = None) -> None:
        """Deletes an object; with `generation` only if that is the current one.

        Raises:
          errors.Missing: no such object, unless a repeated request has deleted it.
          errors.Conflict: the object has another generation.
          errors.NoPermission, errors.Unreachable.
        """
        attempts = []

        def delete() -> None:
            from google.api_core import exceptions

            attempts.append(1)
            try:
                self.blob(path).delete(if_generation_match=generation, **self.options())
            except exceptions.NotFound:
                if len(attempts) == 1:
                    raise

        self.call(path, DELETE, delete)

    def copy(self, source: PathLike, target: PathLike) -> int:
        """Copies an object within Google's storage; returns the new generation.

        Raises:
          errors.Missing, errors.NoPermission, errors.Unreachable.
        """

        def rewrite() -> int:
            new = self.blob(target)
            token = None
            while True:
                token, *_ = new.rewrite(self.blob(source), token=token, **self.options())
                if token is None:
                    return int(new.generation)

        return self.call(source, CREATE, rewrite)

    def bucket_location(self, path: PathLike) -> tuple[str, tuple[str, ...]]:
        """(location, regions that it consists of if Google lists them) of a bucket, in lower case.

        Raises:
          errors.Missing, errors.NoPermission, errors.Unreachable.
        """
        bucket, _ = paths.split(path)

        def get() -> tuple[str, tuple[str, ...]]:
            found = self.client().get_bucket(bucket, **self.options())
            return found.location.lower(), tuple(r.lower() for r in found.data_locations or ())

        return self.call(path, GET_BUCKET, get)


def _is_mark(name: str) -> bool:
    """Other programs mark an empty folder by an object whose name ends in a slash."""
    return name.endswith("/")


def _stat(blob: "storage.Blob") -> Stat:
    return Stat(
        paths.join(blob.bucket.name, blob.name),
        int(blob.size),
        int(blob.generation),
        blob.crc32c,
        blob.updated,
        blob.metadata or {},
    )


@functools.cache
def default() -> Objects:
    """The client of this program."""
    return Objects()
