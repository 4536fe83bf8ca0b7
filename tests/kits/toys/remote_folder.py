"""A folder of gs://bucket on a stand-in server, and machines that come and go."""

import shutil

import pytest

from t5x_style.storage import objects, places, remote_inputs
from tests.kits.toys.storage_server import StorageServer


@pytest.fixture
def bucket(tmp_path_factory, monkeypatch):
    """A server with the bucket `bucket`, which this process's client talks to."""
    monkeypatch.setenv(places.CACHE, str(tmp_path_factory.mktemp("cache")))
    with StorageServer() as found:
        found.objects.create_bucket("bucket")
        for name, value in found.environment().items():
            monkeypatch.setenv(name, value)
        another_process()
        yield found
    another_process()


def another_process():
    """Forgets what this process knows of object storage."""
    objects.default.cache_clear()
    remote_inputs.fetch.cache_clear()


def another_machine():
    """The disk is empty: the machine before is gone."""
    another_process()
    shutil.rmtree(places.cache(), ignore_errors=True)


def names(bucket, prefix=""):
    """Names of the objects below a prefix, without it."""
    found = bucket.objects.names("bucket")
    return sorted(name.removeprefix(prefix) for name in found if name.startswith(prefix))


def content(bucket, name):
    """Of an object."""
    return bucket.objects.find("bucket", name).data


def put(name, data):
    """Writes an object."""
    objects.default().write(f"gs://bucket/{name}", data)
