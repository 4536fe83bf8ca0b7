"""A folder and its objects: equal after a push or a pull, and no half checkpoint ever counts."""

import itertools
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t5x_style.storage import errors, objects, places
from t5x_style.storage.mirror import Mirror, Pusher
from tests.kits.toys.remote_folder import (
    another_machine,
    content,
    names,
    put,
)
from tests.kits.toys.storage_faults import forbidden

SAME_SERVER = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
URL, FRESH = "gs://bucket/run", itertools.count()


def mirrored(url=URL, **options):
    folder = places.local(url)
    folder.mkdir(parents=True, exist_ok=True)
    return Mirror(folder, url, **options)


def write(one, name, data, at):
    path = one.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, ns=(at, at))


def files(one):
    paths = [path for path in one.folder.rglob("*") if path.is_file()]
    return {path.relative_to(one.folder).as_posix(): path.read_bytes() for path in paths}


def there(bucket, prefix="run/"):
    return {name: content(bucket, prefix + name) for name in names(bucket, prefix)}


edits = st.lists(
    st.tuples(st.sampled_from(["a", "b/c", "b/d", "e"]), st.none() | st.binary(max_size=5)),
    max_size=8,
)


@SAME_SERVER
@given(st.lists(edits, max_size=4))
def test_objects_are_the_files_after_each_push_and_files_the_objects_after_a_pull(
    bucket,
    rounds,
):
    url = f"gs://bucket/{next(FRESH)}"
    one, clock = mirrored(url), 0
    for changes in rounds:
        for name, data in changes:
            clock += 1
            if data is not None:
                write(one, name, data, clock)
            else:
                (one.folder / name).unlink(missing_ok=True)
        one.push()
        assert there(bucket, url.removeprefix("gs://bucket/") + "/") == files(one)
    before = files(one)
    another_machine()
    two = mirrored(url)
    write(two, "left", b"over", 1)
    two.pull()
    assert files(two) == before


def test_nothing_is_uploaded_twice_and_temporary_files_never(bucket):
    one = mirrored(counts=lambda name: name != "stage.json")
    for name in ("a", ".a.7.tmp", "5.orbax-checkpoint-tmp/x", "stage.json", ".out.3.link"):
        write(one, name, b"x", 1)
    one.push()
    one.push()
    assert names(bucket, "run/") == ["a"] and bucket.count("insert") == 1
    two = mirrored(counts=lambda name: name != "stage.json")
    two.pull()
    two.push()
    assert bucket.count("insert") == 1 and bucket.count("read") == 0


def _until(left, call):
    """The same call, as long as the process lives."""

    def counted(*arguments, **options):
        left[0] -= 1
        if left[0] < 0:
            raise errors.Unreachable("killed")
        return call(*arguments, **options)

    return counted


@pytest.mark.parametrize("allowed", range(8))
def test_a_push_that_breaks_off_leaves_no_checkpoint_that_counts_and_is_not_whole(
    bucket,
    allowed,
    monkeypatch,
):
    """Files are written before the record that makes a checkpoint count, and deleted after it."""
    one = mirrored()

    def save(step, at):
        for place, name in enumerate(("arrays/1", "arrays/2", "meta", "integrity.json")):
            write(one, f"{step}/{name}", f"{step} {name}".encode(), at + place)

    save(1, 10)
    one.push()
    save(2, 20)
    for name in ("integrity.json", "meta", "arrays/2", "arrays/1"):
        (one.folder / "1" / name).unlink()
    left = [allowed]
    for name in ("upload", "delete"):
        monkeypatch.setattr(objects.Objects, name, _until(left, getattr(objects.Objects, name)))
    with pytest.raises(errors.Unreachable):
        one.push()
    found = there(bucket)
    for step in ("1", "2"):
        if f"{step}/integrity.json" in found:
            assert {f"{step}/{name}" for name in ("arrays/1", "arrays/2", "meta")} <= found.keys()
    assert "1/integrity.json" in found or "2/integrity.json" in found


def test_a_pusher_tries_again_and_its_end_says_what_is_wrong(bucket, tmp_path):
    one, said = mirrored(), []
    write(one, "a", b"1", 1)
    bucket.faults.add(forbidden("storage.objects.create", objects="run/*"))
    pusher = Pusher(one, 3600.0, said.append)
    with pytest.raises(errors.NoPermission, match="robot@project.* lacks .*objects.create"):
        pusher.end()
    bucket.faults.clear()
    Pusher(one, 3600.0, said.append).end()
    assert names(bucket, "run/") == ["a"]


def test_a_file_that_changes_in_size_alone_is_pulled(bucket):
    put("run/a", b"one")
    one = mirrored()
    write(one, "a", b"two", 1)
    one.pull()
    assert files(one) == {"a": b"one"}
