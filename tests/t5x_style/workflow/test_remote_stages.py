"""Stages in a store on object storage: all that they do on a disk, and no disk need last."""

import contextlib
import functools
import json
import os

import pytest

from t5x_style.distributed import startup as startup  # before a test hides JAX
from t5x_style.leases.lease import LeaseLost
from t5x_style.leases.object_leases import ObjectLeases
from t5x_style.storage import errors, fetched, objects, places
from t5x_style.storage.objects import Objects
from t5x_style.workflow import files, links, making, remote_store, stage_runner, stages
from t5x_style.workflow.store import StoreError
from tests.kits.stage_kit import (  # noqa: F401  clean_process: a fixture
    COUNT,
    MAKE,
    clean_process,
    flags_of,
    record,
    run,
)
from tests.kits.toys.remote_folder import (
    another_machine,
    another_process,
    content,
    names,
    put,
)
from tests.kits.toys.storage_faults import forbidden
from tests.kits.toys.storage_fixtures import QUICK
from tests.t5x_style.workflow.test_stage import *  # noqa: F403  every test, in a remote store
from tests.t5x_style.workflow.test_stage_leases import *  # noqa: F403

# what has another meaning there, see below
del test_a_vanished_output_is_made_again_next_to_what_is_left  # noqa: F821
del test_a_silent_holder_is_followed_in_a_copy_and_its_result_is_refused  # noqa: F821
del test_a_second_process_waits_and_finds_it_made  # noqa: F821

WORK = "gs://bucket/work"


@pytest.fixture
def tmp_path(bucket):
    """The local copy of a folder of the bucket, in which every test works."""
    return machine()


def machine():
    """The folder on a machine that has nothing yet."""
    folder = places.local(WORK)
    folder.mkdir(parents=True)
    os.chdir(folder)
    return folder


def moved():
    """The machine before is gone; the folder on another one."""
    os.chdir("/")
    another_machine()
    return machine()


def test_nothing_of_a_finished_stage_need_be_on_the_next_machine(tmp_path, bucket):
    assert run(MAKE, tmp_path, MODEL_DIR=f"{WORK}/out") == 0
    made = record(tmp_path)
    versions = [(name, content(bucket, name)) for name in names(bucket) if "/versions/" in name]
    tmp_path = moved()
    assert run(MAKE, tmp_path, MODEL_DIR=f"{WORK}/out") == 0
    assert record(tmp_path) == made
    assert versions == [(name, content(bucket, name)) for name, _ in versions]
    assert not (tmp_path / "out" / "out.txt").exists()  # nobody has read it
    reads = {"SOURCE": f"{WORK}/out/out.txt", "MODEL_DIR": f"{WORK}/counted"}
    assert run(COUNT, tmp_path, **reads) == 0
    assert (tmp_path / "out" / "out.txt").read_text().startswith("Size(")
    assert record(tmp_path, "counted")["made_from"] == [os.path.basename(os.readlink("out"))]
    assert names(bucket, "work/")[-2:] == ["counted.link", "out.link"]


def test_a_stage_that_was_stopped_continues_on_another_machine(tmp_path, bucket):
    put("work/source", b"x")
    options = {"SOURCE": f"{WORK}/source", "MODEL_DIR": f"{WORK}/out"}
    run(COUNT, tmp_path, **options, **{"gin_toys.count.stop_at": "1"})
    folder = tmp_path / "out"
    assert not (folder / "stage.json").exists()
    pushed = (folder / "steps.txt").read_text()
    assert len(pushed.splitlines()) == 2
    tmp_path = moved()
    assert run(COUNT, tmp_path, **options) == 0
    steps = (tmp_path / "out" / "steps.txt").read_text()
    assert steps.startswith(pushed) and [one[0] for one in steps.splitlines()] == list("012")
    version = os.path.basename(os.readlink(tmp_path / "out"))
    assert content(bucket, f"work/.store/versions/{version}/steps.txt").decode() == steps


def test_a_stage_that_was_continued_elsewhere_comes_back(tmp_path, bucket):
    put("work/source", b"x")
    options = {"SOURCE": f"{WORK}/source", "MODEL_DIR": f"{WORK}/out"}
    options["gin_toys.count.stop_at"] = "0"
    run(COUNT, tmp_path, **options)
    version = f"work/.store/versions/{os.path.basename(os.readlink('out'))}"
    started = json.loads(content(bucket, f"{version}/stage.started.json"))
    # another machine has continued, and was stopped
    started["token"] += 1
    put(f"{version}/stage.started.json", json.dumps(started).encode())
    put(f"{version}/steps.txt", b"0 there\n1 there\n")
    another_process()
    assert run(COUNT, tmp_path, **options) == 0
    steps = (tmp_path / "out/steps.txt").read_text()
    assert steps == f"0 there\n1 there\n2 {os.getpid()}\n"


def test_what_another_machine_finished_does_not_pass_for_edited_where_it_was_stopped(
    tmp_path, bucket
):
    assert run(MAKE, tmp_path, MODEL_DIR=f"{WORK}/out") == 0
    made = tmp_path / "out/out.txt"
    (tmp_path / "out/stage.json").unlink()  # as if this machine had been stopped before
    made.write_text("half of it")
    another_process()
    planned = stages.plan(flags_of(MAKE, tmp_path, MODEL_DIR=f"{WORK}/out"), fresh=True)
    version = stages.decide(planned).version
    assert version.manifest is not None and files.changed_files(version) == []
    with remote_store.fetched([version]):
        assert made.read_text().startswith("Size(")


def test_an_input_there_is_the_same_as_on_a_disk_and_copied_once(tmp_path, bucket):
    def fingerprint(source):
        return stages.plan(flags_of(COUNT, tmp_path, SOURCE=source)).fingerprint

    put("data/corpus/a.txt", b"a")
    put("data/corpus/b/b.txt", b"b")
    local = tmp_path / "corpus"
    (local / "b").mkdir(parents=True)
    (local / "a.txt").write_text("a")
    (local / "b" / "b.txt").write_text("b")
    there = "gs://bucket/data/corpus"
    assert fingerprint(there) == fingerprint(str(local))
    read = functools.partial(bucket.count, "read")
    another_process()
    assert fingerprint(there) == fingerprint(str(local)) and read("data/corpus/a.txt") == 1
    put("data/corpus/a.txt", b"A")
    another_process()
    assert fingerprint(there) != fingerprint(str(local))
    assert read("data/corpus/a.txt") == 2 and read("data/corpus/b/b.txt") == 1


@pytest.mark.parametrize(
    "path,said",
    [
        ("gs://bucket/none", "Input SOURCE does not exist: gs://bucket/none"),
        ("gcs://bucket/data", "Write gs://bucket/data"),
        ("gs://", "found no bucket"),
        ("gs://nobody/data", "gs://nobody/data: .*bucket"),
    ],
)
def test_inputs_that_are_not_there(tmp_path, path, said):
    with pytest.raises(ValueError, match=said):
        stages.plan(flags_of(COUNT, tmp_path, SOURCE=path))


def test_a_bucket_without_permission_is_named_before_anything_is_made(tmp_path, bucket):
    bucket.faults.add(forbidden("storage.objects.create", operations=("insert",)))
    with pytest.raises(errors.NoPermission, match=r"objects.create on bucket bucket"):
        run(MAKE, tmp_path, MODEL_DIR=f"{WORK}/out")
    assert names(bucket) == []


def test_a_file_that_vanished_here_is_fetched_again_and_one_that_vanished_there_is_named(
    tmp_path,
    bucket,
):
    assert run(MAKE, tmp_path, MODEL_DIR=f"{WORK}/out") == 0
    (tmp_path / "out" / "out.txt").unlink()
    reads = {"SOURCE": f"{WORK}/out/out.txt", "MODEL_DIR": f"{WORK}/counted"}
    assert run(COUNT, tmp_path, **reads) == 0
    name = next(one for one in names(bucket) if one.endswith("/out.txt"))
    put(name, b"Size(somebody wrote this)")
    (tmp_path / "out" / "out.txt").unlink()
    with pytest.raises(fetched.FetchError, match=f"{name}: expected the .* written once"):
        run(COUNT, tmp_path, **reads, STEPS="4")
    bucket.objects.delete("bucket", name, {})
    with pytest.raises(fetched.FetchError, match=f"{name}: expected a file .* found none"):
        run(COUNT, tmp_path, **reads, STEPS="4")


def test_a_holder_that_returns_after_its_lease_expired_is_refused(tmp_path, bucket):
    put("work/source", b"x")
    planned = stages.plan(flags_of(COUNT, tmp_path, SOURCE=f"{WORK}/source"))
    free = ObjectLeases(f"{WORK}/.store/leases", expiry=0.0)
    sleeper = free.acquire(planned.id, lambda holder: None, lambda: None)
    asleep = making.begin(planned, stages.decide(planned), sleeper)
    (asleep / "steps.txt").write_text("0 1\n1 1\n")
    with remote_store.pushed(planned.store, asleep, print):
        pass
    second = free.acquire(planned.id, lambda holder: None, lambda: None)
    assert second.before == "silent"
    folder = making.begin(planned, stages.decide(planned), second)
    assert folder != asleep and (folder / "steps.txt").read_text() == "0 1\n1 1\n"
    (asleep / "steps.txt").write_text("woke up")
    remote_store.push(planned.store, asleep)
    with pytest.raises(LeaseLost, match="acquired the lease"):
        making.finish(planned, asleep, {"steps": "steps.txt"}, 1.0, sleeper)
    with remote_store.pushed(planned.store, folder, print):
        pass
    making.finish(planned, folder, {"steps": "steps.txt"}, 1.0, second)
    tmp_path = moved()
    planned = stages.plan(flags_of(COUNT, tmp_path, SOURCE=f"{WORK}/source"), fresh=True)
    assert stages.decide(planned).version.id == folder.name
    for lease in (sleeper, second):
        lease.release()


def test_a_stage_that_two_machines_want_is_made_once(tmp_path, bucket, capsys):
    planned = stages.plan(flags_of(MAKE, tmp_path))
    other = ObjectLeases(f"{WORK}/.store/leases")
    lease = other.acquire(planned.id, lambda holder: None, lambda: None)
    folder = making.begin(planned, stages.decide(planned), lease)
    (folder / "out.txt").write_text("made elsewhere")
    with remote_store.pushed(planned.store, folder, print):
        pass
    making.finish(planned, folder, {"text": "out.txt"}, 1.0, lease)
    lease.release()
    tmp_path = moved()
    late = stages.plan(flags_of(MAKE, tmp_path))  # planned before the other's records were copied
    with stage_runner._lease(late) as own:
        stage_runner._make(flags_of(MAKE, tmp_path), late, own)
    assert "done: 1 s" in capsys.readouterr().out
    assert json.loads(content(bucket, f"work/.store/versions/{folder.name}/stage.json"))


def test_a_link_that_another_machine_moved_is_followed(tmp_path, bucket):
    assert run(MAKE, tmp_path, MODEL_DIR=f"{WORK}/out") == 0
    first = places.cache()
    assert run(MAKE, tmp_path, MODEL_DIR=f"{WORK}/out", WIDTH="5") == 0
    moved_to = content(bucket, "work/out.link")
    assert run(MAKE, tmp_path, MODEL_DIR=f"{WORK}/out") == 0  # the local link is the first one's
    put("work/out.link", moved_to)  # as another machine does
    another_process()
    inputs = stages.plan(flags_of(COUNT, tmp_path, SOURCE=f"{WORK}/out/out.txt")).inputs
    assert inputs.versions == (moved_to.decode(),) and first == places.cache()
    tmp_path = moved()
    found = stages.plan(flags_of(COUNT, tmp_path, SOURCE=f"{WORK}/out/out.txt")).inputs
    assert found.identities == inputs.identities


def test_a_run_with_another_store_finds_it_on_the_next_machine(tmp_path, bucket):
    store = {"stage.run.store": "'gs://bucket/other/.store'"}
    assert run(MAKE, tmp_path, MODEL_DIR=f"{WORK}/out", **store) == 0
    tmp_path = moved()
    assert links.of_run(links.run_here(WORK)).url == "gs://bucket/other/.store"
    planned = stages.plan(flags_of(MAKE, tmp_path, MODEL_DIR=f"{WORK}/out"), fresh=True)
    assert stages.decide(planned).status == "done"


@pytest.mark.parametrize("other", ["another bucket's folder", "a disk"])
def test_an_input_may_be_a_version_of_another_store(tmp_path, tmp_path_factory, bucket, other):
    disk = tmp_path_factory.mktemp("disk")
    place = str(disk) if other == "a disk" else "gs://bucket/elsewhere"
    assert run(MAKE, tmp_path, MODEL_DIR=f"{place}/out") == 0
    if other != "a disk":
        tmp_path = moved()
    reads = {"SOURCE": f"{place}/out/out.txt", "MODEL_DIR": f"{WORK}/counted"}
    assert run(COUNT, tmp_path, **reads) == 0
    (made,) = record(tmp_path, "counted")["made_from"]
    assert os.path.basename(os.readlink(places.local(f"{place}/out"))) == made


def begun(tmp_path, leases):
    """A version that somebody has begun, with progress that is there."""
    planned = stages.plan(flags_of(COUNT, tmp_path, SOURCE=f"{WORK}/source"), fresh=True)
    lease = leases.acquire(planned.id, lambda holder: None, lambda: None)
    return planned, lease, making.begin(planned, stages.decide(planned), lease)


@pytest.mark.parametrize("killed", ["after the fence", "before the copy counts", "after it counts"])
def test_a_takeover_that_is_killed_loses_no_progress(tmp_path, bucket, monkeypatch, killed):
    put("work/source", b"x")
    free = ObjectLeases(f"{WORK}/.store/leases", expiry=0.0)
    planned, first, folder = begun(tmp_path, free)
    (folder / "steps.txt").write_text("0 1\n1 1\n")
    remote_store.push(planned.store, folder)
    tmp_path = moved()

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    if killed == "after the fence":
        monkeypatch.setattr(making.remote_store, "pull", die)
    elif killed == "before the copy counts":
        monkeypatch.setattr(making.remote_store, "push", die)
    with contextlib.suppress(Killed):
        begun(tmp_path, free)
    monkeypatch.undo()
    restore(monkeypatch, bucket, tmp_path)
    tmp_path = moved()
    _, last, folder = begun(tmp_path, free)
    assert (folder / "steps.txt").read_text() == "0 1\n1 1\n"
    for lease in (first, last):
        lease.release()


def restore(monkeypatch, bucket, tmp_path):
    """What `undo` undid besides."""
    monkeypatch.setenv(places.CACHE, str(tmp_path.parents[2]))
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)
    quick = Objects(QUICK)
    monkeypatch.setattr(objects, "default", lambda: quick)


def test_a_manifest_names_nothing_that_is_not_there(tmp_path, bucket):
    put("work/source", b"x")
    leases = ObjectLeases(f"{WORK}/.store/leases")
    planned, lease, folder = begun(tmp_path, leases)
    (folder / "steps.txt").write_text("0 1\n")
    (folder / ".left.0123.tmp").write_text("of a process that was killed")
    with pytest.raises(StoreError, match="expected all files of the version there"):
        making.finish(planned, folder, {"steps": "steps.txt"}, 1.0, lease)
    remote_store.push(planned.store, folder)
    making.finish(planned, folder, {"steps": "steps.txt"}, 1.0, lease)
    lease.release()
    assert list(record(tmp_path)["files"]) == ["steps.txt"]
