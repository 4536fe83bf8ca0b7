"""Fixtures of tests on object storage: a fake server, and its clients with short timeouts."""

import functools
from collections.abc import Iterator

import pytest

from t5x_style.storage import epaths, objects
from t5x_style.storage.connection import Patience
from t5x_style.storage.objects import Objects
from tests.kits.toys.storage_server import StorageServer

BUCKET = "gs://bucket"
QUICK = Patience(total=30.0, answer=1.0, delay=0.01)
HASTY = Patience(total=0.2, answer=0.05, delay=0.01)  # for what never succeeds


@functools.cache
def the_server() -> StorageServer:
    """One address for all tests: libraries keep the first one that they see."""
    return StorageServer().__enter__()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageServer]:
    """A server with one empty bucket, which all clients of this process use."""
    found = the_server()
    for name, value in found.environment().items():
        monkeypatch.setenv(name, value)
    found.reset()
    found.objects.create_bucket("bucket")
    epaths.set_up()
    from t5x_style.storage.filesystem import ObjectFileSystem

    quick = Objects(QUICK)
    monkeypatch.setattr(objects, "default", lambda: quick)
    monkeypatch.setattr(ObjectFileSystem, "client", quick)
    yield found
    found.reset()


@pytest.fixture
def client(server: StorageServer) -> Objects:
    """A client of the server."""
    del server
    return Objects(QUICK)
