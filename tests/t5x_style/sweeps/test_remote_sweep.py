"""A sweep whose SWEEP_DIR is on object storage: the same results as on a disk, on any machine."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_style.configuration import gin_reader
from t5x_style.configuration.gin_reader import GinError
from t5x_style.storage import objects, places
from t5x_style.sweeps.outcomes import Outcomes
from t5x_style.sweeps.remote_sweep import LOOK_SECONDS, RemoteSweep
from t5x_style.sweeps.trial_records import LOG, TrialRecords
from t5x_style.sweeps.trials import Configuration, Record, Trial
from t5x_style.workflow import remote_store
from t5x_style.workflow.store import Store
from tests.kits.toys.remote_folder import another_machine, bucket, content, put  # noqa: F401
from tests.kits.toys.storage_fixtures import server  # noqa: F401
from tests.kits.toys.sweep_house import SWEEP, make_sweep_house  # noqa: F401  a fixture

TABLES = ("table.csv", "configurations.csv")
SWEEP_DIR = "gs://bucket/runs/mine"
TRIAL = "runs/mine/trials/default/trial.json"
LINK = "runs/mine/trials/default/run/tuned.link"


@pytest.fixture(name="remote")
def make_remote(bucket):  # noqa: F811
    """What a driver sees, whose clock runs on by more than the time between two looks."""
    del bucket
    clock = itertools.count(step=2 * LOOK_SECONDS).__next__
    folder = places.local(SWEEP_DIR)
    return RemoteSweep(folder, Store(folder.parent / ".store"), clock)


def listings(bucket):  # noqa: F811
    return bucket.count("list")


def test_records_that_others_write_are_copied_and_those_that_vanish_are_forgotten(remote, bucket):  # noqa: F811
    record = places.local(f"gs://bucket/{TRIAL}")
    put(TRIAL, b'{"a": 1}')
    put("runs/mine/asked/000001.json", b"{}")
    put("runs/mine/kennel-tpu/job.json", b"{}")
    put("runs/mine/trials/default/run/.run.json", b"{}")
    remote.look()
    assert json.loads(record.read_text()) == {"a": 1}
    copies = [path.name for path in places.local(SWEEP_DIR).rglob("*.json")]
    assert sorted(copies) == ["000001.json", "trial.json"]
    reads = bucket.count("read")
    remote.look()
    assert bucket.count("read") == reads and listings(bucket) == 2
    put(TRIAL, b'{"a": 2}')
    remote.look()
    assert json.loads(record.read_text()) == {"a": 2} and bucket.count("read") == reads + 1
    objects.default().delete(f"gs://bucket/{TRIAL}")
    remote.look()
    assert not record.exists()


def test_a_record_of_a_machine_before_that_is_not_there_any_more_does_not_count(remote):
    record = places.local(f"gs://bucket/{TRIAL}")
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    remote.look()
    assert not record.exists()


def test_looks_follow_each_other_after_some_time_alone(bucket):  # noqa: F811
    folder = places.local(SWEEP_DIR)
    remote = RemoteSweep(folder, Store(folder.parent / ".store"), lambda: 5.0)
    for _ in range(3):
        remote.look()
    assert listings(bucket) == 1
    remote.look(now=True)
    assert listings(bucket) == 2


def test_the_log_of_a_trial_elsewhere_is_read_as_far_as_it_was_pushed(remote, bucket):  # noqa: F811
    link = places.local(SWEEP_DIR) / "trials/default/run/tuned"
    assert not remote.log(link).exists()
    put(LINK, b"train-1")
    put("runs/.store/versions/train-1/metrics.jsonl", b"1\n")
    remote.look()
    assert os.readlink(link).endswith(".store/versions/train-1")
    assert remote.log(link).read_text() == "1\n"
    put("runs/.store/versions/train-1/metrics.jsonl", b"1\n2\n")
    assert remote.log(link).read_text() == "1\n"  # at the next look
    remote.look()
    assert remote.log(link).read_text() == "1\n2\n"
    here = link / "metrics.jsonl"
    here.parent.resolve().mkdir(parents=True)
    here.write_text("1\n2\n3\n")
    remote.look()
    assert remote.log(link) == here and here.read_text() == "1\n2\n3\n"  # of a trial that runs here
    os.utime(here, (0, 0))  # it runs elsewhere again, from an earlier checkpoint
    assert remote.log(link).read_text() == "1\n2\n"
    remote_store.remove_link(link)
    remote.look()
    assert not link.is_symlink() and LINK not in bucket.objects.names("bucket")


def test_a_local_sweep_asks_for_nothing(bucket, tmp_path):  # noqa: F811
    remote = RemoteSweep(tmp_path / "mine", Store(tmp_path / ".store"))
    remote.look(now=True)
    remote.look_at_store()
    remote.look_at(tmp_path / "trial.json", tmp_path / "log.txt")
    link = tmp_path / "run/tuned"
    assert remote.log(link) == link / "metrics.jsonl" and bucket.requests == []


def test_the_folder_is_the_copy_of_one_there_and_recipes_get_its_address(sweep_house, bucket):  # noqa: F811
    del bucket
    planner = sweep_house.planner(SWEEP, SWEEP_DIR=SWEEP_DIR)
    assert planner.sweep.folder == places.local(SWEEP_DIR)
    run_dir = TrialRecords(planner.sweep.folder).run_dir("default")
    words = planner.command({}, run_dir).arguments()
    assert f"--gin.RUN_DIR={SWEEP_DIR}/trials/default/run" in words
    assert "--gin.STORE=gs://bucket/runs/.store" in words
    with pytest.raises(GinError, match=r"SWEEP_DIR: .*Write gs://bucket/mine"):
        sweep_house.load(SWEEP, SWEEP_DIR="gcs://bucket/mine")


@pytest.mark.parametrize(("folder", "seconds"), [(SWEEP_DIR, 0.0), ("runs/mine", 3600.0)])
def test_times_of_copies_are_no_time_of_a_trial(sweep_house, bucket, folder, seconds):  # noqa: F811
    del bucket
    planner = sweep_house.planner(SWEEP, SWEEP_DIR=folder)
    kept = TrialRecords(planner.sweep.folder)
    trial = Trial(Configuration(0, {}, {}, {}), None)
    for path, time in ((kept.file_of(trial.name), 0), (kept.folder_of(trial.name) / LOG, 3600)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        os.utime(path, (time, time))
    outcomes = Outcomes(planner, kept, RemoteSweep(planner.sweep.folder, None))
    assert outcomes.unrecorded_seconds(trial) == seconds


def run(*arguments, code=0):
    command = ["launch.sweep", "--gin_file=mine.gin", "--gin_allow=tests", *arguments]
    environment = os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_store_on_a_disk_is_refused(sweep_house, bucket):  # noqa: F811
    del bucket
    sweep_house.write(SWEEP)
    output = run(f"--gin.SWEEP_DIR={SWEEP_DIR}", "--gin.STORE=here", code=1)
    assert "STORE here is on this machine: expected both on object storage" in output


@pytest.mark.slow
def test_a_sweep_there_is_reported_as_one_on_a_disk_and_continues_anywhere(sweep_house, bucket):  # noqa: F811
    sweep_house.write(SWEEP.replace("0.1, ", ""))
    run("--gin.SWEEP_DIR=runs/mine")
    assert run(f"--gin.SWEEP_DIR={SWEEP_DIR}").count("starts") == 2
    expected = [Path("runs/mine", name).read_bytes() for name in TABLES]
    assert [content(bucket, f"runs/mine/{name}") for name in TABLES] == expected
    assert (
        "gcloud storage cp gs://bucket/runs/mine/best.gin . && kennel run best.gin"
        in content(bucket, "runs/mine/report.md").decode()
    )
    another_machine()
    sweep_house.write(SWEEP)
    assert run(f"--gin.SWEEP_DIR={SWEEP_DIR}").count("starts") == 1
    found = {name: one.record for name, one in TrialRecords(places.local(SWEEP_DIR)).all().items()}
    assert len(found) == 3 and {one.status for one in found.values()} == {"done"}
    assert all(one.curve and isinstance(one, Record) for one in found.values())
