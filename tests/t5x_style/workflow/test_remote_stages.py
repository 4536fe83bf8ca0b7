"""Stages in a store on object storage: all that they do on a disk, and no disk need last."""

import json
import os

import pytest

from t5x_style.distributed import startup as startup  # before a test hides JAX
from t5x_style.leases.lease import LeaseLost
from t5x_style.leases.object_leases import ObjectLeases
from t5x_style.storage import errors, fetched, places
from t5x_style.workflow import making, remote_store, stage_runner, stages
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
from tests.t5x_style.workflow.test_stage import *  # noqa: F403  every test, in a remote store
from tests.t5x_style.workflow.test_stage_leases import *  # noqa: F403

# what has another meaning there, see below
del test_a_vanished_output_is_made_again_next_to_what_is_left  # noqa: F821
del test_a_silent_holder_is_followed_in_a_copy_and_its_result_is_refused  # noqa: F821

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
    reads = bucket.count("read")
    another_process()
    assert fingerprint(there) == fingerprint(str(local)) and bucket.count("read") == reads
    put("data/corpus/a.txt", b"A")
    another_process()
    assert fingerprint(there) != fingerprint(str(local)) and bucket.count("read") == reads + 1


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
    with pytest.raises(LeaseLost, match="took over"):
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
