"""Versions of an index in a bucket: published by one machine, copied by others with other disks."""

import json

import pytest

from t5x_style.interfaces.index import IndexDamaged
from t5x_style.retrieval import remote_versions, versioned_folder
from t5x_style.storage import errors, mirror, objects, places
from t5x_style.storage.errors import StorageError
from t5x_style.storage.objects import Objects
from tests.kits.toys.remote_folder import another_process, content, names, put
from tests.kits.toys.storage_faults import Fault, forbidden
from tests.kits.toys.storage_fixtures import HASTY

URL = "gs://bucket/index"


def publish(folder, text, run="a", keep=2):
    """Builds a version and uploads it."""
    with versioned_folder.new_version(folder, {"run": run}, keep) as version:
        (version / "vectors").write_text(text)
        (version / "more").mkdir()
        (version / "more" / "ids").write_text("ids")
    remote_versions.push(folder, URL)


@pytest.fixture
def work(tmp_path, bucket):
    folder = tmp_path / "work"
    remote_versions.begin(folder, URL)
    return folder


@pytest.fixture
def copies(bucket):
    """The local copy of the folder, on the disk of a training's host."""
    return places.local(URL)


def text_of(folder, number):
    return (versioned_folder.version_folder(folder, number) / "vectors").read_text()


def of_run(name):
    return lambda manifest: manifest["run"] == name


def test_a_version_counts_once_its_manifest_is_there(work, copies, bucket):
    bucket.faults.add(forbidden("storage.objects.create", objects="index/versions/1/manifest.json"))
    with pytest.raises(errors.NoPermission):
        publish(work, "one")
    assert remote_versions.published(URL) == {}
    assert {"index/versions/1/vectors", "index/versions/1/more/ids"} <= set(names(bucket))
    bucket.faults.clear()
    remote_versions.push(work, URL)
    assert list(remote_versions.published(URL)) == [1]
    remote_versions.fetch(copies, URL, 1)
    assert text_of(copies, 1) == "one" and versioned_folder.published(copies) == [1]
    assert versioned_folder.read_manifest(versioned_folder.version_folder(copies, 1))


def test_the_newest_of_the_run_is_copied_and_what_goes_there_goes_here(work, copies):
    kept = remote_versions.Copies(copies, of_run("a"), pytest.fail)
    for number in range(1, 4):
        publish(work, str(number))
        kept.look()
        assert text_of(copies, number) == str(number)
    assert list(remote_versions.published(URL)) == [2, 3] == versioned_folder.published(copies)
    publish(work, "of another", run="b", keep=9)
    kept.look()
    assert versioned_folder.published(copies) == [2, 3]
    assert [path.name for path in copies.rglob("*.tmp")] == []


def test_a_builder_on_another_disk_goes_on_with_the_numbers(work, tmp_path, bucket):
    for number in range(1, 4):
        publish(work, str(number))
    put("index/versions/4/vectors", b"of a builder that was killed")
    put("index/versions/4/strange", b"likewise")
    another_process()
    other = tmp_path / "other"
    remote_versions.begin(other, URL)
    publish(other, "four")
    assert list(remote_versions.published(URL)) == [3, 4]
    assert content(bucket, "index/versions/4/vectors") == b"four"
    assert "index/versions/4/strange" not in names(bucket)
    assert not [name for name in names(bucket) if name.startswith("index/versions/2/")]


def test_of_two_builders_one_is_refused(work, tmp_path, copies):
    other = tmp_path / "other"
    remote_versions.begin(other, URL)
    with versioned_folder.new_version(other, {"run": "a"}, 2) as version:
        (version / "vectors").write_text("two")
    real = objects.default().write_if

    def slow(path, data, generation, metadata=None):
        mirror.clear(f"{URL}/versions")  # as if both had begun to upload
        publish(work, "one")
        return real(path, data, generation, metadata)

    with pytest.MonkeyPatch.context() as patch:
        calls = iter([slow])
        patch.setattr(
            objects.default(), "write_if", lambda *given: next(calls, real)(*given), raising=False
        )
        with pytest.raises(StorageError, match="another process has published this version"):
            remote_versions.push(other, URL)
    remote_versions.fetch(copies, URL, 1)
    assert text_of(copies, 1) == "one"


def test_bytes_that_changed_there_are_refused(work, copies, bucket):
    publish(work, "one")
    put("index/versions/1/vectors", b"two")
    with pytest.raises(IndexDamaged, match="its bytes changed"):
        remote_versions.fetch(copies, URL, 1)
    assert versioned_folder.published(copies) == [] and not list(copies.rglob("*.tmp"))
    with pytest.raises(errors.Missing):
        remote_versions.fetch(copies, URL, 2)


def test_a_number_that_was_used_twice_is_copied_again(work, copies, tmp_path, bucket):
    publish(work, "one")
    remote_versions.fetch(copies, URL, 1)
    mirror.clear(URL)  # somebody deletes the folder, and begins again
    remote_versions.begin(work, URL)
    publish(work, "another one")
    remote_versions.fetch(copies, URL, 1)
    assert text_of(copies, 1) == "another one"
    reads = bucket.count("read")
    remote_versions.fetch(copies, URL, 1)
    assert bucket.count("read") == reads + 1, "its manifest alone"


def test_a_copy_counts_while_storage_does_not_answer(work, copies, monkeypatch):
    publish(work, "one")
    remote_versions.fetch(copies, URL, 1)

    def away(*_):
        raise errors.Unreachable("away")

    monkeypatch.setattr(remote_versions, "read_manifest", away)
    remote_versions.fetch(copies, URL, 1)
    assert text_of(copies, 1) == "one"
    (versioned_folder.version_folder(copies, 1) / "manifest.json").unlink()
    with pytest.raises(errors.Unreachable):
        remote_versions.fetch(copies, URL, 1)


def test_what_an_outage_kept_from_being_published_is_by_the_next_push(work, bucket, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(errors.Unreachable):
        patch.setattr(objects, "default", lambda: Objects(HASTY))
        bucket.faults.add(Fault("status", 503, operations=("insert",), times=None))
        publish(work, "one")
    bucket.faults.clear()
    assert remote_versions.published(URL) == {}
    remote_versions.push(work, URL)
    assert list(remote_versions.published(URL)) == [1]


def test_an_outage_is_said_once_and_what_is_published_then_comes_later(work, copies, bucket):
    said = []
    kept = remote_versions.Copies(copies, of_run("a"), said.append)
    looks = iter([StorageError("away"), StorageError("away"), None])

    def look():
        error = next(looks, None)
        if error is not None:
            raise error
        remote_versions.Copies.look(kept)
        kept._ended.set()

    publish(work, "one")
    kept.look = look
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_versions, "POLL_SECONDS", 0.001)
        kept.start()
        kept._thread.join()
    assert said == [f"{URL}: away; this is tried again"]
    assert text_of(copies, 1) == "one"
    kept.close()


def test_manifests_alone_are_on_the_disk_of_the_builder(work):
    publish(work, "one")
    place = versioned_folder.version_folder(work, 1)
    assert [path.name for path in place.rglob("*") if path.is_file()] == ["manifest.json"]
    assert json.loads((place / "manifest.json").read_text())["run"] == "a"
