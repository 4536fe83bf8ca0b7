"""Calls of `kennel tpu` against the fake gcloud, for its tests."""

import itertools
import shlex

import pytest

from launch import tpu_vm
from launch.cloud import recipe_job
from launch.cloud.gcloud import Gcloud
from launch.cloud.remote_job import HostCommands
from t5x_style.configuration.gin_reader import REPOSITORY
from tests.launch.cloud import google
from tests.launch.cloud.google import Google, Life
from tests.launch.cloud.histories import NoFollower

WHERE = ("--zone=us-west4-a", "--project=my-project")
NAMED = ("--name=mine", *WHERE)
BEIR = ("--gin_file=gin_configs/recipes/beir.gin", "--gin.CORPUS=gs://bucket/beir")
SPOT = ("up", *BEIR, "--slice=v5e:4x4", "--spot", *WHERE)
UP = (*SPOT, "--gin.RUN_DIR=gs://bucket/mine")


@pytest.fixture(name="in_repository")
def enter_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


@pytest.fixture(name="world")
def make_world(monkeypatch):
    """Google with one run after another; hosts understand START and STATUS."""
    commands = HostCommands(google.JOB, [("code.tar", "code.tar")], "START", "STATUS", str, "STOP")
    monkeypatch.setattr(recipe_job, "host_commands", lambda name, job, hosts: commands)
    monkeypatch.setattr(recipe_job, "started", lambda name: commands)
    monkeypatch.setattr(tpu_vm, "LogFollower", lambda job, gcloud: NoFollower())
    return Google((Life(),))


def near(path, zone):
    """The bucket is where the slices are."""
    del path, zone
    return ""


def call(world, *argv, distance=near):
    gcloud = Gcloud(world, world.sleep, world.clock, "gcloud")
    return tpu_vm.main(argv, gcloud, distance)


def active(world):
    """Creates slices and waits for them."""
    assert call(world, "create", "--slice=v5e:4x4", *NAMED) == 0
    world.sleep(200.0)


class Forbidden:
    """A gcloud that may not be called."""

    def __call__(self, argv, timeout):
        raise AssertionError(f"calls {argv}")

    def sleep(self, seconds):
        raise AssertionError("waits")

    clock = sleep


def printed(capsys, *argv):
    """The commands that `--print` prints, as words, without one call of gcloud."""
    assert call(Forbidden(), *argv, "--print") == 0
    text = "\n".join(
        line for line in capsys.readouterr().out.splitlines() if not line.startswith("# ")
    )
    words = shlex.split(text)
    starts = [n for n, word in enumerate(words) if word == "gcloud"] + [len(words)]
    return [words[a:b] for a, b in itertools.pairwise(starts)]
