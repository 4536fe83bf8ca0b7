"""Copies of finished folders: shared by readers, checked, and dropped when space is needed."""

import hashlib
import os
import subprocess
import sys
import threading

import pytest

from t5x_style.storage import fetched, places
from t5x_style.storage.fetched import FetchError, File
from tests.kits.toys.remote_folder import put

DATA = {"a": b"1" * 1000, "b/c": b"2" * 500}


def folder_of(name):
    """A folder of the bucket with DATA, and what its files must be."""
    for path, data in DATA.items():
        put(f"{name}/{path}", data)
    wanted = {
        path: File(len(data), 10**18, hashlib.sha256(data).hexdigest())
        for path, data in DATA.items()
    }
    return places.local(f"gs://bucket/{name}"), wanted


def read(folder, wanted):
    with fetched.kept(folder, wanted):
        pass


def present(folder):
    return sorted(name for name in DATA if (folder / name).exists())


def test_readers_share_a_copy_while_they_read(bucket):
    folder, wanted = folder_of("one")
    inside = threading.Barrier(2, timeout=20)

    def wait():
        with fetched.kept(folder, wanted):
            inside.wait()  # never, if one of them excluded the other

    other = threading.Thread(target=wait)
    other.start()
    wait()
    other.join()
    assert present(folder) == sorted(DATA) and bucket.count("read") == len(DATA)
    assert (folder / "a").stat().st_mtime_ns == 10**18


def test_another_process_reads_meanwhile(bucket, tmp_path):
    folder, wanted = folder_of("one")
    code = (
        "import pathlib, sys\nfrom t5x_style.storage import fetched\n"
        "with fetched.kept(pathlib.Path(sys.argv[1]), {'a': fetched.File(1000, 10**18, '')}):\n"
        "    print((pathlib.Path(sys.argv[1]) / 'a').stat().st_size)\n"
    )
    with fetched.kept(folder, wanted):
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            capture_output=True, text=True, timeout=60, env=os.environ,
        )  # fmt: skip
    assert done.stdout == "1000\n", done.stderr


def test_what_was_read_longest_ago_goes_first_and_nothing_that_is_read(bucket, monkeypatch):
    monkeypatch.setenv(fetched.LIMIT, "3100")
    first, wanted = folder_of("first")
    second, _ = folder_of("second")
    third, _ = folder_of("third")
    read(first, wanted)
    with fetched.kept(second, wanted):
        os.utime(first / fetched.LIST, (1, 1))
        with fetched.kept(third, wanted):
            assert present(first) == [] and present(second) == sorted(DATA)
            with pytest.raises(FetchError, match="being read, with KENNEL_CACHE_LIMIT=3100"):
                read(first, wanted)
    with fetched.kept(first, wanted):
        assert present(first) == sorted(DATA)


def test_a_limit_that_is_no_size(bucket, monkeypatch):
    folder, wanted = folder_of("one")
    monkeypatch.setenv(fetched.LIMIT, "much")
    with pytest.raises(FetchError, match="KENNEL_CACHE_LIMIT: expected a size such as 200GB"):
        read(folder, wanted)


def test_a_cache_that_is_no_absolute_path(monkeypatch):
    monkeypatch.setenv(places.CACHE, "cache")
    with pytest.raises(places.PathError, match="KENNEL_CACHE=cache: expected an absolute path"):
        places.local("gs://bucket/a")
