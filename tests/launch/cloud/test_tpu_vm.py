"""The command `kennel tpu`: verbs against a fake gcloud, printed commands, exit codes."""

import argparse
import json
import shlex
import subprocess

import pytest

from launch import tpu_vm
from launch.cloud import recipe_job, tpu_flags
from launch.cloud.endings import MEANINGS, Ending
from launch.cloud.gcloud import Completed, Gcloud
from launch.cloud.requests import RequestError
from t5x_style.configuration.gin_reader import REPOSITORY
from t5x_style.storage import errors
from tests.launch.cloud import google
from tests.launch.cloud.google import Life
from tests.launch.cloud.histories import HISTORIES, google_of, suspended
from tests.launch.cloud.tpu_command import (
    BEIR,
    NAMED,
    SPOT,
    UP,
    WHERE,
    Forbidden,
    active,
    call,
    near,
    printed,
)

pytestmark = pytest.mark.usefixtures("in_repository")


def test_up_runs_a_recipe_until_it_is_done_and_says_what_is_left(world, capsys):
    assert call(world, *UP) == Ending.DONE
    said = capsys.readouterr().err
    assert "the job is done (exit code 0)" in said and "COSTS MONEY" in said
    assert world.saved == world.work and world.made == 1 and world.deleted == []
    assert world.resource.labels["kennel-run"] == "mine"  # the last part of RUN_DIR


def test_up_recovers_and_deletes_where_it_was_asked_to(world, capsys):
    world.lives = (Life(suspended(700.0)), Life())
    assert call(world, *UP, "--delete_at_end") == Ending.DONE
    assert world.made == 2 and "nothing is left of mine" in capsys.readouterr().err


@pytest.mark.parametrize("name", HISTORIES)
def test_the_exit_code_is_that_of_the_history(name, world, capsys):
    there = google_of(HISTORIES[name])
    slices = f"--slice={there.slices}x v5e:4x4"
    argv = [*UP, slices, "--delete_at_end", "--valid_until=1h"]
    assert call(there, *argv) == HISTORIES[name].ending
    assert f"(exit code {HISTORIES[name].ending:d})" in capsys.readouterr().err


def test_a_bucket_in_another_region_is_warned_of_and_one_that_is_not_seen_is_said(world, capsys):
    def far(path, zone):
        return f"{path} is far from {zone}"

    def unseen(path, zone):
        raise errors.NoPermission(f"{path}: you lack storage.buckets.get")

    assert call(world, *UP, distance=far) == Ending.DONE
    assert "warning: gs://bucket/mine is far from us-west4-a" in capsys.readouterr().err
    assert call(world, *UP, distance=unseen) == Ending.DONE
    assert "cannot be seen from here: gs://bucket/mine: you lack" in capsys.readouterr().err


def test_data_of_this_machine_is_refused_before_anything_is_asked(world, tmp_path, capsys):
    here = [word for word in UP if "CORPUS" not in word]
    assert call(world, *here, f"--gin.CORPUS='{tmp_path}'") == Ending.REFUSED
    said = capsys.readouterr().err
    assert f"CORPUS={tmp_path} is a path of a disk" in said and "gcloud storage cp" in said
    assert world.made == 0


def test_up_stopped_by_the_user_leaves_the_job_alone(world, capsys):
    def sleep(seconds):
        world.now += seconds
        if world.now > google.START + 600.0:
            raise KeyboardInterrupt

    gcloud = Gcloud(world, sleep, world.clock, "gcloud")
    assert tpu_vm.main(UP, gcloud, near) == Ending.INTERRUPTED
    said = capsys.readouterr().err
    assert "the same command continues" in said and "COSTS MONEY" in said
    assert world.deleted == []
    assert call(world, *UP) == Ending.DONE and world.made == 1 and world.resource.starts == 1


def test_create_run_status_delete_one_by_one(world, capsys):
    assert call(world, "run", *BEIR, "--gin.RUN_DIR=gs://bucket/mine", *WHERE) == 2
    assert "there is no mine" in capsys.readouterr().err
    assert call(world, "create", "--slice=v5e:4x4", *NAMED) == 0
    assert "mine in us-west4-a of my-project waits" in capsys.readouterr().err
    assert call(world, "run", *BEIR, "--gin.RUN_DIR=gs://bucket/mine", *WHERE) == 2
    assert "is WAITING_FOR_RESOURCES" in capsys.readouterr().err
    world.sleep(200.0)
    assert call(world, "run", *BEIR, "--gin.RUN_DIR=gs://bucket/mine", *WHERE) == 0
    assert call(world, "status", *NAMED) == 0
    out = capsys.readouterr().out
    assert "mine: ACTIVE, 1x v5litepod-16" in out and "4 of 4 hosts answered" in out
    assert out.count("job running") == 4
    assert call(world, "status", *WHERE) == 0
    assert call(world, "delete", *NAMED) == 0
    world.sleep(60.0)
    assert call(world, "delete", *NAMED) == 0 and len(world.deleted) == 1
    assert "nothing is left" in capsys.readouterr().err


def test_run_refuses_a_folder_that_hosts_do_not_share(world, capsys):
    active(world)
    assert call(world, "run", *BEIR, "--gin.RUN_DIR=runs/mine", *WHERE) == 2
    assert "which share no disk" in capsys.readouterr().err


@pytest.mark.parametrize("labels", [{}, {"kennel-run": "other"}])
def test_delete_never_touches_what_is_not_the_runs(labels, world, capsys):
    world.resource = google.Resource("mine", Life(), world.now, labels)
    assert call(world, "delete", *NAMED) == Ending.NAME_TAKEN
    assert call(world, *UP) == Ending.NAME_TAKEN
    assert world.calls["delete"] == world.calls["create"] == world.calls["ssh"] == 0


def test_zone_and_project_come_from_gcloud_and_that_is_said(world, capsys):
    settings = {"project": "my-project\n", "compute/zone": "us-west4-a\n"}

    def run(argv, timeout):
        if argv[1:3] == ["config", "get"]:
            return Completed(0, settings[argv[3]], "")
        return world(argv, timeout)

    gcloud = Gcloud(run, world.sleep, world.clock, "gcloud")
    assert tpu_vm.main(["create", "--slice=v5e:4x4", "--name=mine"], gcloud) == 0
    said = capsys.readouterr().err
    assert "zone us-west4-a: from gcloud's configuration (compute/zone)" in said
    settings["compute/zone"] = "(unset)\n"
    assert tpu_vm.main(["create", "--slice=v5e:4x4", "--name=mine"], gcloud) == 2
    assert "no zone: pass --zone=" in capsys.readouterr().err


def test_flags_of_a_recipe_reach_the_hosts():
    given = ("--until=passages", "--strict_code", "--initialization_timeout=60")
    options, gin = tpu_vm.read([*UP, *given])
    described = recipe_job.read(gin)
    assert described.flags.until == "passages" and described.flags.strict_code
    assert described.several["KENNEL_INITIALIZATION_TIMEOUT"] == "60"
    words = recipe_job.host_commands("mine", described, 4).start
    assert "--until=passages" in words and "--strict_code" in words
    options, gin = tpu_vm.read(["run", *BEIR, "--gin.RUN_DIR=gs://bucket/mine", "--rerun=index"])
    assert options.verb == "run" and recipe_job.read(gin).flags.rerun == ("index",)
    with pytest.raises(RequestError, match="up takes no --rerun"):
        tpu_vm.read([*UP, "--rerun=index"])
    with pytest.raises(ValueError, match="initialization_timeout .*expected a whole number"):
        recipe_job.read([*gin, "--initialization_timeout=soon"])


def test_settings_reach_the_hosts_unchanged():
    given = [
        BEIR[0],
        '--gin.CORPUS=gs://bucket/it\'s  $HOME %d "x" \u65e5\u672c',
        "--gin.LEARNING_RATE=3e-4",
        "--gin.RUN_DIR=gs://bucket/mine",
    ]
    job = recipe_job.read(given)
    commands = recipe_job.host_commands("mine", job, 4)
    described = json.loads(shlex.split(commands.start)[-1])
    assert described["command"][:2] == ["-m", "launch.recipe"]
    assert set(given) <= set(described["command"])
    assert described["environment"] == recipe_job.SEVERAL_HOSTS
    assert recipe_job.host_commands("mine", job, 1).identity != commands.identity
    assert recipe_job.host_commands("mine", job, 4).identity == commands.identity


def test_a_wrong_setting_is_found_before_anything_is_asked(capsys):
    assert call(Forbidden(), *UP, "--gin.STPES=3") == 2
    assert "STPES" in capsys.readouterr().err


def test_print_prints_commands_to_copy_and_calls_nothing(capsys):
    lines = printed(capsys, *UP)
    verbs = [google.verb_of(one) for one in lines]
    assert verbs == ["create", "describe", "nodes", "scp", "ssh", "ssh", "ssh", "delete"]
    for verb in ("status", "logs", "ssh", "delete"):
        assert printed(capsys, verb, *NAMED)
    (line,) = printed(capsys, "ssh", *NAMED, "--command=echo 'a  b' $HOME", "--worker=all")
    assert "--command=echo 'a  b' $HOME" in line and "--worker=all" in line
    (line,) = printed(capsys, "fetch", *NAMED, "--source=gs://bucket/mine")
    assert line[-2:] == ["gs://bucket/mine", "runs/mine"]
    (line,) = printed(capsys, "create", *NAMED, "--slice=2x v6e-16", "--reserved")
    assert {"--node-count=2", "--reserved"} <= set(line)
    group = ("create", *NAMED, "--slice=v6e-16", "--service=instance_groups", "--spot")
    assert len(printed(capsys, *group)) == 6


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("create", *NAMED), "no slice: pass --slice=v5e:2x4"),
        (("create", *NAMED, "--slice=v99-8"), "no slice 'v99-8'"),
        ((*SPOT, "--gin.RUN_DIR=gs://bucket/2024"), "'2024' is no name"),
        (("create", *NAMED, "--slice=v4-8", "--flex_start"), "v4 has no flex_start"),
        (("create", *NAMED, "--slice=v6e-8", "--valid_until=6"), "'6' has no unit"),
        (("create", *NAMED, "--slice=v6e-8", "--label=team"), "expected KEY=VALUE"),
        (("create", *WHERE, "--slice=v6e-8"), "no name: pass --name"),
        (
            ("create", *NAMED, "--slice=v6e-8", "--service=instance_groups"),
            "printed only: add --print",
        ),
        (("delete", *NAMED, "--slice=v6e-8"), "kennel tpu delete takes no --slice"),
        (("logs", *NAMED, "--gin_file=a"), "kennel tpu logs takes no --gin_file"),
        (("fetch", *NAMED), "no source"),
        (("fetch", *NAMED, "--source=runs/mine", "--to=docs"), "docs is there already"),
        ((*SPOT, "--gin.RUN_DIR=runs/mine"), "which share no disk"),
        ((*SPOT, "--gin.RUN_DIR=gcs://bucket/mine"), "Write gs://bucket/mine"),
        (
            ("up", *BEIR, "--gin.RUN_DIR=runs/a", "--slice=v5e-8", *WHERE, "--delete_at_end"),
            "would delete RUN_DIR",
        ),
    ],
)
def test_what_is_refused_before_anything_is_asked(argv, message, capsys):
    assert call(Forbidden(), *argv) == Ending.REFUSED
    assert message in capsys.readouterr().err


def test_two_provisionings_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        tpu_vm.read(["create", "--spot", "--reserved"])
    assert ended.value.code == 2 and "not allowed with" in capsys.readouterr().err


def test_every_flag_is_taken_by_some_verb():
    parser = argparse.ArgumentParser()
    tpu_flags.add_tpu(parser)
    taken = {name for verb in tpu_flags.VERBS.values() for name in verb.flags}
    assert {one.dest for one in parser._actions} - {"help", "verb"} <= taken
    assert all(hasattr(tpu_vm.Launcher, verb) for verb in tpu_flags.VERBS)


def test_logs_and_ssh_run_on_our_terminal_with_gclouds_exit_code(monkeypatch):
    calls = []

    def run(argv):
        calls.append(argv)
        return subprocess.CompletedProcess(argv, 7)

    monkeypatch.setattr(subprocess, "run", run)
    assert call(Forbidden(), "logs", *NAMED, "--follow", "--worker=1") == 7
    assert call(Forbidden(), "ssh", *NAMED) == 7
    assert "--worker=1" in calls[0] and calls[0][0] == "gcloud"
    assert not [word for word in calls[1] if word.startswith("--command")]


def test_the_page_has_every_verb_and_exit_code_and_says_what_nobody_has_tried():
    page = (REPOSITORY / "docs/tpu_vms.md").read_text(encoding="utf-8")
    for ending, meaning in MEANINGS.items():
        assert f"| {ending:d} | {meaning} |" in page
    for verb in tpu_flags.VERBS:
        assert f"| `{verb}" in page
    assert "Nobody has run this against Google's servers" in page
    assert f"{len(HISTORIES)} histories" in page
