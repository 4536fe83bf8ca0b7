"""Other clients on the fake server, and ours on another server."""

import os
import subprocess
import sys

import gcp_storage_emulator.server
import pytest

from t5x_style.configuration import gin_reader
from t5x_style.storage import epaths
from tests.kits.toys.storage_fixtures import BUCKET

GCSFS = """
import os, sys
import gcsfs
files = gcsfs.GCSFileSystem(token="anon", use_listings_cache=False, skip_instance_cache=True)
for name, size in (("small", 5), ("large", 9_000_000)):
    with files.open(f"bucket/{{name}}", "wb") as file:
        file.write(b"x" * size)
    assert files.cat(f"bucket/{{name}}") == b"x" * size
    assert files.info(f"bucket/{{name}}")["size"] == size
    with files.open(f"bucket/{{name}}", "rb") as file:
        file.seek(3)
        assert file.read(2) == b"xx"
{more}
files.rm("bucket/small")
assert not files.exists("bucket/small")
print("passed")
"""
PRECONDITIONS = """
files.cp_file("bucket/small", "bucket/folder/copy")
assert files.ls("bucket/folder") == ["bucket/folder/copy"]
assert files.find("bucket") == ["bucket/folder/copy", "bucket/large", "bucket/small"]
try:
    files.pipe_file("bucket/small", b"new", mode="create")
except FileExistsError:
    print("refused")
"""


def run(code, environment):
    """Runs code in another process: gcsfs keeps a thread, and the server that it saw first."""
    paths = {"PYTHONPATH": str(gin_reader.REPOSITORY), "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment | paths,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_gcsfs_on_the_stand_in(server):
    assert run(GCSFS.format(more=PRECONDITIONS), server.environment()) == ["refused", "passed"]


def test_gcsfs_reads_what_we_write(server):
    (epaths.of(BUCKET) / "ours").write_text("é")
    code = "import gcsfs; print(gcsfs.GCSFileSystem(token='anon').cat('bucket/ours').decode())"
    assert run(code, server.environment()) == ["é"]


@pytest.fixture
def emulator():
    """The address of the packaged emulator, which has no preconditions, with one bucket."""
    server = gcp_storage_emulator.server.create_server(
        "127.0.0.1", 0, in_memory=True, default_bucket="bucket"
    )
    server.start()
    host, port = server._api._httpd.server_address[:2]
    yield f"http://{host}:{port}"
    server.stop()


def test_gcsfs_on_the_packaged_emulator(emulator):
    assert run(GCSFS.format(more=""), {"STORAGE_EMULATOR_HOST": emulator}) == ["passed"]


OURS = """
from t5x_style.storage import epaths
folder = epaths.of("gs://bucket/run")
(folder / "a.txt").write_text("text")
(folder / "deep" / "large").write_bytes(b"x" * 9_000_000)
assert (folder / "a.txt").read_text() == "text"
assert len((folder / "deep" / "large").read_bytes()) == 9_000_000
assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "deep"]
folder.rmtree()
assert not folder.exists()
print("passed")
"""


def test_our_paths_on_the_packaged_emulator(emulator):
    assert run(OURS, {"STORAGE_EMULATOR_HOST": emulator}) == ["passed"]
