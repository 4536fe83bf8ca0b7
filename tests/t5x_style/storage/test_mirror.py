"""A folder and its objects: equal after a push or a pull, and no half checkpoint ever counts."""

import concurrent.futures
import itertools
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t5x_style.storage import errors, mirror, objects, places
from t5x_style.storage.mirror import Mirror, Pusher
from tests.kits.toys.remote_folder import (
    another_machine,
    another_process,
    content,
    names,
    put,
)
from tests.kits.toys.storage_faults import forbidden

SAME_SERVER = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
URL, FRESH, GUARD = "gs://bucket/run", itertools.count(), "guard"


def mirrored(url=URL, counts=lambda name: name != GUARD):
    folder = places.local(url)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / GUARD).write_text("")
    return Mirror(folder, url, counts, GUARD)


def write(one, name, data, at):
    path = one.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, ns=(at, at))


def files(one):
    paths = [path for path in one.folder.rglob("*") if path.is_file() and path.name != GUARD]
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
    one = mirrored(counts=lambda name: name not in (GUARD, "stage.json"))
    for name in ("a", ".a.7.tmp", "5.orbax-checkpoint-tmp/x", "stage.json", ".out.3.link"):
        write(one, name, b"x", 1)
    one.push()
    one.push()
    assert names(bucket, "run/") == ["a"] and bucket.count("insert") == 1
    two = mirrored(counts=lambda name: name not in (GUARD, "stage.json"))
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


@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("allowed", range(8))
def test_a_push_that_breaks_off_leaves_no_checkpoint_that_counts_and_is_not_whole(
    bucket,
    allowed,
    pulled,
    monkeypatch,
):
    """Files are written before the record that makes a checkpoint count, and deleted after it."""
    one = mirrored()

    def save(step, at):
        for name in ("integrity.json", "arrays/1", "arrays/2", "meta"):
            write(one, f"{step}/{name}", f"{step} {name}".encode(), at)

    save(1, 10)
    one.push()
    if pulled:  # times of downloads say nothing about the order
        another_machine()
        one = mirrored()
        one.pull()
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


def test_what_others_write_in_a_cleared_folder_outlives_the_next_push(bucket):
    """As a checkpoint that a killed process has left half written, and several write again."""
    put("run/6/process_0", b"half")
    one = mirrored()
    one.pull()
    assert files(one) == {"6/process_0": b"half"}
    shutil.rmtree(one.folder / "6")
    mirror.clear(f"{URL}/6", one.folder / "6")
    assert names(bucket, "run/") == []
    put("run/6/process_0", b"whole")  # not through the mirror
    one.push()
    assert there(bucket) == {"6/process_0": b"whole"}
    one.pull()
    shutil.rmtree(one.folder / "6")
    one.push()  # but what is deleted here goes there, too
    assert names(bucket, "run/") == []


def test_a_disk_that_was_emptied_deletes_no_object(bucket):
    one = mirrored()
    write(one, "a", b"1", 1)
    one.push()
    shutil.rmtree(one.folder)
    one.push()
    assert names(bucket, "run/") == ["a"]


def test_two_mirrors_of_a_folder_do_not_undo_each_other(bucket):
    """The checkpointer pushes a step while the whole folder is being pushed."""
    one = mirrored()
    for number in range(40):
        write(one, f"{number}/x", b"1", 1)
    inner = [Mirror(one.folder / str(number), f"{URL}/{number}") for number in range(40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = [pool.submit(mirror.push) for mirror in [*inner, one] * 2]
    for future in done:
        future.result()
    assert len(names(bucket, "run/")) == 40 and bucket.count("delete") == 0


def test_files_of_the_last_writer_stay_and_those_of_others_go(bucket):
    one = mirrored()
    for name in ("same", "changed", "gone"):
        write(one, name, b"1", 1)
    one.push()
    another_process()
    write(one, "changed", b"2", 2)
    write(one, "new", b"3", 3)
    (one.folder / "gone").unlink()
    uploads = bucket.count("insert")
    one.pull(ours=True)
    one.push()
    assert there(bucket) == {"same": b"1", "changed": b"2", "gone": b"1", "new": b"3"}
    assert bucket.count("insert") == uploads + 2
    another_process()
    write(one, "newer", b"4", 4)
    one.pull()
    assert files(one) == there(bucket)


@pytest.mark.parametrize("name", ["a//b", "../b", "./b"])
def test_a_name_that_leads_out_of_the_folder_is_refused(bucket, name):
    bucket.objects.put("bucket", f"run/{name}", b"x", {}, {})
    with pytest.raises(errors.StorageError, match="Delete this object"):
        mirrored().pull()


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
