"""Paths of epath on object storage: what they can do, and what they refuse."""

import functools
import os
import subprocess
import sys

import pytest
from etils.epath import gpath

from t5x_style.configuration import gin_reader
from t5x_style.storage import epaths, errors, paths
from tests.kits.toys.storage_faults import Fault, forbidden
from tests.kits.toys.storage_fixtures import BUCKET, HASTY


@pytest.fixture
def run(server):
    """A folder with `text.txt`, `deep/data.bin` and `deep/er/x`."""
    del server
    folder = epaths.of(f"{BUCKET}/run")
    (folder / "text.txt").write_text("é\nb\n")
    (folder / "deep" / "data.bin").write_bytes(bytes(range(10)))
    (folder / "deep" / "er" / "x").write_text("x")
    return folder


def names(found):
    return sorted(os.fspath(path).removeprefix(f"{BUCKET}/run/") for path in found)


def test_files_and_folders(run):
    assert (run / "text.txt").read_text() == "é\nb\n" and (run / "text.txt").is_file()
    assert (run / "deep" / "data.bin").read_bytes() == bytes(range(10))
    assert run.is_dir() and run.exists() and not run.is_file() and epaths.of(BUCKET).is_dir()
    assert not (run / "dee").exists() and not (run / "text.txt").is_dir()
    assert names(run.iterdir()) == ["deep", "text.txt"]
    assert names(run.glob("*/*.bin")) == ["deep/data.bin"]
    assert names(run.glob("deep/*")) == ["deep/data.bin", "deep/er"]
    walked = [(os.fspath(folder), dirs, files) for folder, dirs, files in run.walk()]
    assert walked == [
        (f"{BUCKET}/run", ["deep"], ["text.txt"]),
        (f"{BUCKET}/run/deep", ["er"], ["data.bin"]),
        (f"{BUCKET}/run/deep/er", [], ["x"]),
    ]
    assert (run / "deep" / "data.bin").stat().length == 10
    assert (run / "deep" / "data.bin").stat().mtime > 1_700_000_000


def test_a_large_file_is_read_in_parts(run, server):
    data = os.urandom(40 << 20)
    (run / "large").write_bytes(data)
    with (run / "large").open("rb") as file:
        assert file.read(10) == data[:10]
        file.seek(30 << 20)
        assert file.read(10) == data[30 << 20 : (30 << 20) + 10]
        file.seek(0)
        assert file.read() == data
    assert server.count("read") > 2


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(run):
    (run / "large").write_bytes(bytes(40 << 20))
    with (run / "large").open("rb") as file:
        file.read(10)
        (run / "large").write_bytes(b"1" * (40 << 20))
        file.seek(35 << 20)
        with pytest.raises(errors.Missing, match="gs://bucket/run/large"):
            file.read(10)


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_a_file_is_whole_or_not_there(run, mode):
    content = "new" if mode == "w" else b"new"
    with pytest.raises(RuntimeError), (run / "text.txt").open(mode) as file:
        file.write(content)
        raise RuntimeError
    assert (run / "text.txt").read_text() == "é\nb\n"
    with (run / "text.txt").open(mode) as file:
        file.write(content)
        file.flush()
        assert (run / "text.txt").read_text() == "é\nb\n"
    assert (run / "text.txt").read_text() == "new"


def test_deletes(run, server):
    (run / "text.txt").unlink()
    with pytest.raises(FileNotFoundError):
        (run / "text.txt").unlink()
    (run / "text.txt").unlink(missing_ok=True)
    with pytest.raises(OSError, match="not an empty folder"):
        (run / "deep").unlink()
    (run / "deep").rmtree()
    assert server.objects.names("bucket") == []
    with pytest.raises(FileNotFoundError):
        (run / "deep").rmtree()
    (run / "deep").rmtree(missing_ok=True)


def test_what_object_storage_cannot_do_is_refused(run):
    """See the docs: nothing here fails later, or does half."""
    with pytest.raises(errors.StorageError, match="not appended to"):
        (run / "text.txt").open("a")
    with pytest.raises(errors.StorageError, match="cannot rename a folder"):
        (run / "deep").rename(run / "deeper")
    with pytest.raises(FileNotFoundError):
        list((run / "nothing").iterdir())
    for lacking in ("symlink_to", "is_symlink", "hardlink_to", "chmod", "samefile", "owner"):
        assert not hasattr(run, lacking)


def test_a_file_is_renamed_by_a_copy(run, server):
    (run / "text.txt").rename(run / "other.txt")
    (run / "other.txt").replace(run / "deep" / "er" / "x")
    assert server.objects.names("bucket") == ["run/deep/data.bin", "run/deep/er/x"]
    assert (run / "deep" / "er" / "x").read_text() == "é\nb\n"
    (run / "deep" / "er" / "x").copy(run / "back")
    assert (run / "back").read_text() == "é\nb\n"


def test_a_folder_is_there_as_long_as_it_has_objects(run):
    (run / "new").mkdir()
    (run / "new" / "er").mkdir(parents=True)
    assert not (run / "new").exists()
    with pytest.raises(FileExistsError):
        (run / "deep").mkdir()
    with pytest.raises(FileExistsError):
        (run / "deep").mkdir(parents=True)
    (run / "deep").mkdir(exist_ok=True)
    (run / "deep").mkdir(parents=True, exist_ok=True)


QUESTIONS = [
    lambda folder: folder.exists(),
    lambda folder: folder.is_dir(),
    lambda folder: list(folder.iterdir()),
    lambda folder: list(folder.glob("*")),
    lambda folder: list(folder.walk()),
    lambda folder: (folder / "text.txt").exists(),
    lambda folder: (folder / "text.txt").read_text(),
    lambda folder: folder.rmtree(),
]


@pytest.mark.parametrize("ask", QUESTIONS)
def test_a_missing_permission_is_not_a_missing_file(run, server, ask):
    server.faults.add(forbidden("storage.objects.list"))
    with pytest.raises(errors.NoPermission):
        ask(run)


@pytest.mark.parametrize("ask", QUESTIONS)
def test_an_outage_is_not_a_missing_file(run, server, monkeypatch, ask):
    from t5x_style.storage import objects
    from t5x_style.storage.filesystem import ObjectFileSystem

    monkeypatch.setattr(ObjectFileSystem, "client", objects.Objects(HASTY))
    server.faults.add(Fault("status", 503, times=None))
    with pytest.raises(errors.Unreachable):
        ask(run)


def test_the_client_of_tensorflow_is_refused(monkeypatch):
    monkeypatch.setattr(gpath, "_is_tf_installed", functools.cache(lambda: True))
    monkeypatch.setattr(gpath, "_is_zonal_gcs_bucket", lambda bucket: False)
    monkeypatch.setenv("EPATH_USE_TF", "true")
    set_up = functools.partial(epaths.set_up.__wrapped__)
    with pytest.raises(RuntimeError, match="used before t5x_style.storage.epaths.set_up"):
        set_up()


@pytest.mark.parametrize("path", ["gcs://bucket/name", "gs:/bucket/name"])
def test_schemes(path):
    with pytest.raises(paths.PathError):
        epaths.of(path)


def test_resolving_leaves_remote_paths_alone(tmp_path):
    """`epath.Path.resolve` puts the working directory before them."""
    assert os.fspath(epaths.resolved("gs://bucket/a/b")) == "gs://bucket/a/b"
    (tmp_path / "link").symlink_to(tmp_path)
    assert os.fspath(epaths.resolved(tmp_path / "link" / "x")) == os.fspath(tmp_path / "x")


def test_local_paths_import_no_client():
    code = (
        "import sys\n"
        "from t5x_style.storage import epaths, fetched, locations, mirror, objects, remote_inputs\n"
        "from t5x_style.leases import object_leases\n"
        "assert epaths.of('/').is_dir()\n"
        "from t5x_style.workflow import links, store\n"
        "links.of_run(store.Path('runs/none')).leases\n"
        "object_leases.ObjectLeases('gs://bucket/leases')\n"
        "bad = {'google.cloud.storage', 'google_crc32c', 'requests', 'fsspec', 'gcsfs', 'jax',\n"
        "       'tensorflow'}\n"
        "assert not bad & set(sys.modules), bad & set(sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
