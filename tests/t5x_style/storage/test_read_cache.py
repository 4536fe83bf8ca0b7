"""The cache of remote files: one download, no file that is read goes, damage is found."""

import hashlib
import os
import shutil
import subprocess
import sys
import threading

import pytest

from t5x_style.configuration import gin_reader
from t5x_style.storage import errors, read_cache
from t5x_style.storage.read_cache import CacheError, ReadCache
from tests.kits.toys.storage_faults import Fault
from tests.kits.toys.storage_fixtures import BUCKET

NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
READER = """
import hashlib, sys
from t5x_style.storage import read_cache
for path in sys.argv[1:]:
    with read_cache.default().local(path) as local:
        print(hashlib.sha256(local.read_bytes()).hexdigest(), flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def cache(tmp_path, client):
    """A cache of 1,000 bytes."""
    return ReadCache(tmp_path / "cache", 1000, client)


def files_of(cache):
    """Names of the cached files."""
    return sorted(path.name for path in (cache.folder / "objects").rglob("*") if path.is_file())


def read(cache, name):
    with cache.local(f"{BUCKET}/{name}") as path:
        return path.read_bytes()


def put(client, **contents):
    for name, content in contents.items():
        client.write(f"{BUCKET}/{name}", content)


def test_a_file_is_downloaded_once_for_each_generation(cache, client, server):
    put(client, a=b"one")
    assert read(cache, "a") == read(cache, "a") == b"one"
    assert server.count("read", "a") == 1
    put(client, a=b"two")
    assert read(cache, "a") == b"two" and server.count("read", "a") == 2


def test_a_local_path_is_itself(cache, tmp_path):
    (tmp_path / "file").write_text("x")
    with cache.local(tmp_path / "file") as path, cache.local_folder(tmp_path) as folder:
        assert (path, folder) == (tmp_path / "file", tmp_path)
    assert not cache.folder.exists()


def test_what_was_used_least_recently_goes_first(cache, client, server):
    put(client, a=b"a" * 400, b=b"b" * 400, c=b"c" * 400, d=b"")
    read(cache, "a"), read(cache, "b"), read(cache, "a"), read(cache, "c")
    assert files_of(cache) == ["a", "c"]
    assert read(cache, "d") == b"" and read(cache, "b") == b"b" * 400
    assert files_of(cache) == ["b", "c", "d"] and server.count("read", "b") == 2


def test_a_file_that_is_read_stays(cache, client, server):
    put(client, a=b"a" * 400, b=b"b" * 400, c=b"c" * 400)
    with cache.local(f"{BUCKET}/a") as path:
        read(cache, "b"), read(cache, "c")
        assert files_of(cache) == ["a", "c"] and path.read_bytes() == b"a" * 400
        with cache.local(f"{BUCKET}/c"), pytest.raises(CacheError) as caught:
            read(cache, "b")
        assert "files of 800 are being read" in str(caught.value)
        assert "KENNEL_CACHE_LIMIT to at least 1,200" in str(caught.value)
    assert read(cache, "b") == b"b" * 400


def test_a_file_above_the_limit_is_refused(cache, client, server):
    put(client, a=b"a" * 1001)
    with pytest.raises(CacheError, match="gs://bucket/a: 1,001 bytes do not fit"):
        read(cache, "a")
    assert files_of(cache) == [] and server.count("read") == 0


@pytest.mark.parametrize("damage", [b"X" * 400, b"", b"a" * 399])
def test_a_damaged_file_is_downloaded_again(cache, client, server, damage):
    put(client, a=b"a" * 400)
    with cache.local(f"{BUCKET}/a") as path:
        path.chmod(0o600)
        path.write_bytes(damage)
    assert read(cache, "a") == b"a" * 400 and server.count("read") == 2


def test_a_file_that_was_only_touched_is_hashed_and_kept(cache, client, server):
    put(client, a=b"a" * 400)
    with cache.local(f"{BUCKET}/a") as path:
        os.utime(path, (1, 1))
    assert read(cache, "a") == b"a" * 400 and server.count("read") == 1


@pytest.mark.parametrize("kind", ["corrupt", "cut", "lose_response"])
def test_a_download_that_arrives_damaged_is_repeated(cache, client, server, kind):
    put(client, a=b"a" * 400)
    server.faults.add(Fault(kind, operations=("read",)))
    assert read(cache, "a") == b"a" * 400 and files_of(cache) == ["a"]


def test_an_object_that_vanishes_leaves_nothing(cache, client, server):
    put(client, a=b"a" * 400)
    server.faults.add(Fault("vanish", operations=("read",)))
    with pytest.raises(errors.Missing, match="gs://bucket/a"):
        read(cache, "a")
    assert files_of(cache) == []


def test_the_remnant_of_a_killed_download_goes_when_room_is_needed(cache, client):
    put(client, a=b"a" * 400, b=b"b" * 900)
    read(cache, "a")
    (path,) = (cache.folder / "objects").rglob("a")
    path.rename(path.with_name(read_cache.PART))
    assert read(cache, "b") == b"b" * 900 and files_of(cache) == ["b"]


def test_a_full_disk_empties_the_cache_before_it_is_an_error(client, server, tmp_path):
    """A disk of 1 MiB, and a limit that is larger."""
    if not shutil.which("unshare") or subprocess.run([*NAMESPACE, "true"]).returncode:
        pytest.skip("needs mount namespaces (unshare --user --mount)")
    put(client, a=b"a" * 600_000, b=b"b" * 600_000, large=b"x" * 2_000_000)
    (tmp_path / "disk").mkdir()
    reader = [sys.executable, "-c", READER, *(f"{BUCKET}/{name}" for name in ("a", "b", "large"))]
    done = subprocess.run(
        [*NAMESPACE, "sh", "-c", 'mount -t tmpfs -o size=1m none disk && exec "$@"', "-", *reader],
        env=os.environ
        | server.environment()
        | {"KENNEL_CACHE": "disk", "PYTHONPATH": str(gin_reader.REPOSITORY)},
        cwd=tmp_path,
        input="\n\n\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    digests = [hashlib.sha256(letter * 600_000).hexdigest() for letter in (b"a", b"b")]
    assert done.stdout.split() == digests and done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "CacheError: gs://bucket/large: the disk of the cache disk is full: 2,000,000" in last
    assert "set KENNEL_CACHE to a folder on a larger disk" in last


def test_a_folder_is_links_to_files_that_stay(cache, client, server):
    for name in ("f/a", "f/deep/b", "f2/c"):
        client.write(f"{BUCKET}/{name}", name.encode() * 50)
    with cache.local_folder(f"{BUCKET}/f") as folder:
        found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
        assert found == {"a", "deep/b"}
        assert (folder / "deep" / "b").read_bytes() == b"f/deep/b" * 50
        put(client, large=b"x" * 800)
        with pytest.raises(CacheError):
            read(cache, "large")
    assert read(cache, "large") == b"x" * 800 and not folder.exists()
    with pytest.raises(errors.Missing), cache.local_folder(f"{BUCKET}/none"):
        pass


def test_the_folder_of_a_dead_process_goes(cache, client):
    put(client, a=b"x")
    client.write(f"{BUCKET}/f/a", b"x")
    dead = cache.folder / "folders" / "dead"
    dead.mkdir(parents=True)
    with cache.local_folder(f"{BUCKET}/f") as first, cache.local_folder(f"{BUCKET}/f") as second:
        assert not dead.exists() and (first / "a").exists() and (second / "a").exists()


def test_threads_share_one_download(cache, client, server):
    put(client, a=b"a" * 900)
    found = []
    threads = [threading.Thread(target=lambda: found.append(read(cache, "a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [b"a" * 900] * 8 and server.count("read", "a") == 1


@pytest.fixture
def reader(tmp_path, server):
    """Starts a process that reads files, each until it gets a line."""
    started = []

    def start(*names, limit="1K"):
        environment = os.environ | server.environment()
        environment |= {"KENNEL_CACHE": str(tmp_path / "cache"), "KENNEL_CACHE_LIMIT": limit}
        process = subprocess.Popen(
            [sys.executable, "-c", READER, *(f"{BUCKET}/{name}" for name in names)],
            env=environment | {"PYTHONPATH": str(gin_reader.REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_two_processes_download_a_file_once_and_keep_it_for_each_other(
    reader, cache, client, server
):
    put(client, a=b"a" * 600, b=b"b" * 600)
    first, second = reader("a"), reader("a")
    assert first.stdout.readline() == second.stdout.readline() != ""
    assert server.count("read", "a") == 1
    with pytest.raises(CacheError, match="files of 600 are being read"):
        read(cache, "b")
    first.kill()
    first.wait()
    with pytest.raises(CacheError, match="files of 600 are being read"):
        read(cache, "b")
    second.communicate("\n")
    assert read(cache, "b") == b"b" * 600 and files_of(cache) == ["b"]


@pytest.mark.parametrize("limit", ["", "64 gigabytes", "-1G"])
def test_a_limit_that_is_no_size(monkeypatch, limit):
    monkeypatch.setenv("KENNEL_CACHE_LIMIT", limit)
    with pytest.raises(CacheError, match=f"found '{limit}'"):
        read_cache.default.__wrapped__()


def test_the_cache_that_the_environment_names(monkeypatch, tmp_path):
    monkeypatch.setenv("KENNEL_CACHE", str(tmp_path))
    monkeypatch.setenv("KENNEL_CACHE_LIMIT", "2M")
    found = read_cache.default.__wrapped__()
    assert (found.folder, found.limit) == (tmp_path, 2 << 20)
