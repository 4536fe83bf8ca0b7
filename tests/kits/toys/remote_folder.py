"""A folder of gs://bucket on a fake server, and machines that come and go."""

import shutil

import pytest

from t5x_style.storage import mirror, objects, places, remote_inputs
from t5x_style.workflow import links


@pytest.fixture
def bucket(server, tmp_path_factory, monkeypatch):
    """The server of `storage_fixtures`, which has the bucket `bucket`, and a disk for copies."""
    monkeypatch.setenv(places.CACHE, str(tmp_path_factory.mktemp("cache")))
    another_process()
    yield server
    another_process()


def another_process():
    """Forgets what this process knows of object storage."""
    remote_inputs.fetch.cache_clear()
    links.follow.cache_clear()
    mirror.forget()


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
