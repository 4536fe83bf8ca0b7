"""`kennel tpu` where something is missing, hosts are silent, or the job is to end."""

import pytest

from launch import tpu_vm
from launch.cloud.endings import Ending
from launch.cloud.gcloud import Gcloud
from t5x_style.storage import errors
from tests.launch.cloud import google
from tests.launch.cloud.google import Life
from tests.launch.cloud.histories import DENIED
from tests.launch.cloud.tpu_command import BEIR, NAMED, UP, WHERE, active, call, near, printed

pytestmark = pytest.mark.usefixtures("in_repository")


@pytest.mark.parametrize("verb", ["up", "run"])
def test_a_bucket_that_does_not_exist_is_refused(verb, world, capsys):
    def missing(path, zone):
        raise errors.Missing(f"{path}: no such bucket")

    active(world)
    made = world.made
    argv = UP if verb == "up" else ("run", *BEIR, "--gin.RUN_DIR=gs://bucket/mine", *WHERE)
    assert call(world, *argv, distance=missing) == Ending.REFUSED
    said = capsys.readouterr().err
    assert "gcloud storage buckets create gs://bucket --location=us-west4" in said
    assert world.made == made and world.calls["ssh"] == 0


def test_a_bucket_that_takes_no_note_at_the_end_does_not_keep_the_slices(world, capsys):
    world.faults = {("cp", n): DENIED for n in range(2, 99)}
    assert call(world, *UP, "--delete_at_end") == Ending.DONE
    said = capsys.readouterr().err
    assert "could not take a note" in said and "storage.objects.create" in said
    assert world.calls["cp"] == 2 and len(world.deleted) == 1 and world.made == 1


def test_stop_ends_the_job_and_keeps_the_slices(world, capsys):
    active(world)
    run = ("run", *BEIR, "--gin.RUN_DIR=gs://bucket/mine", *WHERE)
    assert call(world, *run) == 0
    assert call(world, "stop", *NAMED) == 0
    shown = capsys.readouterr()
    assert shown.out.count("job failed, exit code 143") == 4
    assert "COSTS MONEY" in shown.err and "stop it, too" in shown.err
    assert world.deleted == [] and world.state() == "ACTIVE"


def test_stop_says_which_hosts_it_did_not_reach_and_touches_no_other_run(world, capsys):
    world.lives = (Life(dead_worker=0.0),)
    active(world)
    assert call(world, "stop", *NAMED) == Ending.UNREACHABLE
    said = capsys.readouterr().err
    assert "1 hosts did not answer" in said and "ssh: no route" in said
    world.resource.labels = {"kennel-run": "other"}
    assert call(world, "stop", *NAMED) == Ending.NAME_TAKEN and world.calls["ssh"] == 1


def test_a_job_that_failed_ends_with_what_to_do(world, capsys):
    world.lives = (Life(exit_codes=(1,)),)
    assert call(world, *UP) == Ending.JOB_FAILED
    said = capsys.readouterr().err
    flags = "--name=mine --zone=us-west4-a --project=my-project"
    assert f"kennel tpu logs {flags}" in said
    assert f"kennel tpu run RECIPE [NAME=VALUE ...] {flags}" in said


def test_up_and_status_say_why_hosts_do_not_answer(world, capsys):
    world.lives = (Life(dead_worker=0.0), Life())
    active(world)
    assert call(world, "status", *NAMED) == 0
    assert "gcloud says: Using ssh batch size of 64.\nssh: no route" in capsys.readouterr().err
    world.resource = None
    world.made = 0
    assert call(world, *UP) == Ending.DONE
    assert "1 of 4 hosts do not answer. gcloud says:\nUsing ssh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("echo The agent has no identities.; exit 1", True),
        ("echo 'Could not open a connection' >&2; exit 2", True),
        ("echo 256 SHA256:abc me", False),
        (None, True),
    ],
)
def test_a_key_that_several_hosts_need_is_missed_before_slices_are_asked_for(
    text, warns, world, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", str(tmp_path))
    if text is not None:
        (tmp_path / "ssh-add").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "ssh-add").chmod(0o755)
    for argv in (UP, ("create", "--slice=v5e:4x4", *NAMED)):
        world.resource, world.bucket = None, {}
        call(world, *argv)
        said = capsys.readouterr().err
        assert ("warning: ssh-add -l finds no key" in said) == warns
        if warns:
            assert said.index("ssh-add") < said.index("COSTS" if argv is UP else "waits")
    one = ("create", "--name=mine", "--slice=v5e-8", *WHERE)
    world.resource = None
    call(world, *one)
    assert "ssh-add" not in capsys.readouterr().err


def test_hosts_without_external_addresses_are_reached_through_iap(capsys):
    for verb in ("logs", "ssh", "stop"):
        (line,) = printed(capsys, verb, *NAMED, "--internal_ips")
        assert "--tunnel-through-iap" in line
        (line,) = printed(capsys, verb, *NAMED)
        assert "--tunnel-through-iap" not in line
    lines = printed(capsys, *UP, "--internal_ips")
    tunnels = [google.verb_of(one) for one in lines if "--tunnel-through-iap" in one]
    assert tunnels == ["scp", "ssh", "ssh", "ssh"]
    assert "--internal-ips" in lines[0]


@pytest.mark.parametrize("verb", ["up", "status", "logs", "ssh", "stop", "create", "delete"])
def test_without_gcloud_a_verb_ends_at_once_with_what_to_install(verb, tmp_path, capsys):
    def sleep(seconds):
        raise AssertionError("waits")

    program = Gcloud(sleep=sleep, name=str(tmp_path / "gcloud"))
    argv = {"up": UP, "create": ("create", "--slice=v5e:4x4", *NAMED)}.get(verb, (verb, *NAMED))
    assert tpu_vm.main(argv, program, near) == Ending.REFUSED
    said = capsys.readouterr().err
    assert "install the Google Cloud CLI" in said and "(exit code 2)" in said
