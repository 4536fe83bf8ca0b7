"""A client that uses the objects of the fake server without HTTP, for thousands of requests."""

from collections.abc import Mapping
from typing import BinaryIO

from t5x_style.storage import errors, paths
from t5x_style.storage.objects import Objects, PathLike, Stat
from tests.kits.toys.stored_objects import ObjectStore, Refused, Stored


class DirectObjects(Objects):
    """`Objects` on an `ObjectStore`; `lose` answers of writes are lost, and repeated."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__()
        self.store, self.lose = store, 0

    def _upload(
        self, path: PathLike, data: bytes, metadata: Mapping[str, str], generation: int | None
    ) -> int:
        query = {} if generation is None else {"ifGenerationMatch": str(generation)}
        lost, self.lose = self.lose, 0
        for _ in range(lost + 1):
            try:
                new = self.store.put(*paths.split(path), data, query, {"metadata": metadata})
            except Refused as refused:
                raise errors.Conflict(str(refused)) from None
        return new.generation

    def _find(self, path: PathLike) -> Stored:
        try:
            return self.store.get(*paths.split(path), {})
        except Refused as refused:
            raise errors.Missing(str(refused)) from None

    def stat(self, path: PathLike) -> Stat:
        found = self._find(path)
        about = (found.generation, found.crc32c, found.updated, dict(found.metadata))
        return Stat(str(path), len(found.data), *about)

    def read(self, path: PathLike) -> tuple[bytes, int]:
        found = self._find(path)
        return found.data, found.generation

    def download(self, stat: Stat, file: BinaryIO) -> None:
        found = self._find(stat.path)
        if found.generation != stat.generation:
            raise errors.Missing(stat.path)
        file.write(found.data)
