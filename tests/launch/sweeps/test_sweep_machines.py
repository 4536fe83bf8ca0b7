"""Flags of `kennel sweep` for slices: what is refused before anything is asked, and `--print`."""

import argparse
import shlex

import pytest

from launch import sweep, sweep_machines
from launch.cloud import tpu_flags
from launch.cloud.requests import RequestError
from launch.cloud.sweep_slices import SliceLauncher
from t5x_style.accelerators.slices import SliceError
from t5x_style.configuration import command_flags, gin_checks
from t5x_style.configuration.gin_reader import GinError
from t5x_style.sweeps.launchers import LocalLauncher
from tests.kits.recipe_kit import HEAD
from tests.kits.toys import toy_companion
from tests.kits.toys.sweep_house import SWEEP

SLICES = ("--slice=v5e:2x4", "--spot", "--zone=us-west4-a", "--project=my-project")


def options_of(*argv):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    command_flags.add_sweep(parser)
    tpu_flags.add_slices(parser)
    return parser.parse_args(argv)


def check(house, *argv, folder="gs://bucket/mine", text=SWEEP):
    planner = house.planner(text, SWEEP_DIR=folder)
    sweep_machines.check(options_of(*argv), planner.sweep, planner)
    return planner.sweep


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--spot", "--provisioning"),
        ("--zone=us-west4-a", "--zone"),
        ("--delete_at_end", "--delete_at_end"),
        ("--print", "--print"),
    ],
)
def test_flags_of_slices_need_slices(sweep_house, flag, named):
    with pytest.raises(GinError, match=f"{named}: of slices; name them: --slice=v5e:2x4"):
        check(sweep_house, flag)
    check(sweep_house, flag, *SLICES)


def test_a_local_folder_is_refused_with_what_to_write(sweep_house):
    check(sweep_house, folder="runs/mine")
    with pytest.raises(GinError, match="write SWEEP_DIR=gs://BUCKET/mine"):
        check(sweep_house, *SLICES, folder="runs/mine")


def test_inputs_of_a_disk_are_refused(sweep_house):
    (sweep_house.folder / "learn.gin").write_text(
        (sweep_house.folder / "learn.gin").read_text() + "SOURCE = 'no'\n"
    )
    recipe = (sweep_house.folder / "recipe.gin").read_text()
    (sweep_house.folder / "recipe.gin").write_text(
        recipe.replace("%corpus.text", "%CORPUS") + "CORPUS = 'data/corpus'\n"
    )
    with pytest.raises(GinError, match=r"CORPUS=data/corpus is a path of a disk"):
        check(sweep_house, *SLICES)
    check(sweep_house, *SLICES, text=SWEEP + "CORPUS = 'gs://bucket/corpus'\n")


COMPANION = toy_companion.described("tuned", "%corpus.text")


def test_companions_are_refused_on_several_hosts(sweep_house):
    (sweep_house.folder / "speak.gin").write_text(HEAD + toy_companion.SPEAK)
    with open(sweep_house.folder / "learn.gin", "a") as file:
        file.write("MEET = ''\n")
    with open(sweep_house.folder / "recipe.gin", "a") as file:
        file.write(COMPANION)
    check(sweep_house, *SLICES)
    with pytest.raises(GinError, match=r"has 4 hosts, .* companions \(voice\)"):
        check(sweep_house, *SLICES, "--slice=v5e:4x4")


@pytest.mark.parametrize(
    "flag", ["--companions=elsewhere", "--initialization_timeout=60", "--num_processes=2"]
)
def test_flags_that_no_trial_would_get_are_refused(sweep_house, flag):
    sweep_house.write(SWEEP)
    argv = ["--gin_file=mine.gin", "--gin_allow=tests", flag]
    with pytest.raises(GinError, match=f"{flag.partition('=')[0]}.* of one recipe"):
        sweep.run(gin_checks.parse_flags(argv), options_of(*SLICES), argv)


def test_each_worker_has_slices_named_after_the_folder(sweep_house):
    swept = sweep._with_workers(check(sweep_house, *SLICES), 3)
    found = sweep_machines.launcher(options_of(*SLICES), swept, None, print)
    assert isinstance(found, SliceLauncher) and found.devices == 8
    assert [one.name for one in found.fleet.requests] == ["mine-w0", "mine-w1", "mine-w2"]
    (request, *_) = found.fleet.requests
    assert request.run_dir == "gs://bucket/mine" and request.provisioning == "spot"
    named = sweep_machines.launcher(options_of(*SLICES, "--name=rates"), swept, None, print)
    assert named.fleet.requests[0].name == "rates-w0"
    assert isinstance(sweep_machines.launcher(options_of(), swept, None, print), LocalLauncher)
    with pytest.raises(GinError, match="--workers=0: expected a number above 0"):
        sweep._with_workers(swept, 0)


def test_a_folder_without_a_letter_needs_a_name(sweep_house):
    swept = check(sweep_house, *SLICES, folder="gs://bucket/2024")
    with pytest.raises(RequestError, match=r"last part of SWEEP_DIR 'gs://bucket/2024'"):
        sweep_machines.launcher(options_of(*SLICES), swept, None, print)
    named = sweep_machines.launcher(options_of(*SLICES, "--name=rates"), swept, None, print)
    assert named.fleet.requests[0].name == "rates-w0"


@pytest.mark.parametrize("folder", ["gs://bucket", "gs://bucket/"])
def test_a_whole_bucket_is_no_folder(sweep_house, folder):
    with pytest.raises(GinError, match="gs://bucket is a whole bucket: write gs://bucket/mine"):
        sweep_house.load(SWEEP, SWEEP_DIR=folder)


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ("--slice=v5e:3x3", SliceError, "v5e"),
        ("--zone=us-west4", RequestError, "zone"),
        ("--name=My_Sweep", RequestError, "my-sweep"),
        (f"--name={'a' * 62}", RequestError, "65 characters"),
    ],
)
def test_requests_that_cannot_be_are_refused(sweep_house, wrong, error, said):
    swept = check(sweep_house, *SLICES)
    with pytest.raises(error, match=said):
        sweep_machines.launcher(options_of(*SLICES, wrong), swept, None, print)


def test_print_shows_the_commands_of_the_first_trial_and_runs_none(
    sweep_house,
    bucket,
    capsys,
    monkeypatch,
):
    del bucket
    monkeypatch.setenv("KENNEL_GCLOUD", "/no/such/program")
    flags = sweep_house.flags(SWEEP, SWEEP_DIR="gs://bucket/mine")
    assert sweep.run(flags, options_of(*SLICES, "--print")) == 0
    printed = capsys.readouterr().out
    text = printed[printed.index("# ask for") :]
    words = shlex.split("\n".join(one for one in text.splitlines() if not one.startswith("# ")))
    assert words[:6] == [
        "/no/such/program",
        "compute",
        "tpus",
        "queued-resources",
        "create",
        "mine-w0",
    ]
    start = next(one for one in words if '"launch.recipe"' in one)
    assert "--gin.RUN_DIR=gs://bucket/mine/trials/default/run" in start
    assert "--until=tuned" in start and "--gin.STORE=gs://bucket/.store" in start
    assert isinstance(flags, gin_checks.Flags)
