"""`kennel gke`: what it prints, what it starts, and what it refuses to."""

import re
import shlex
import stat
import subprocess
import sys

import pytest
import yaml

from launch import gke
from launch.clusters import gke_flags, job_set, job_set_rules
from launch.clusters.manifest_nodes import Problem
from t5x_style.accelerators.generations import GENERATIONS
from tests.launch import pages
from tests.launch.clusters import cluster_jobs

SLICE = ["--slice=v5e:4x4", f"--image={cluster_jobs.IMAGE}"]
FLAGS = [*SLICE, "--gin.RUN_DIR=gs://my-bucket/runs/mine"]
PRINT = [*FLAGS, "--print"]
RECIPE = ("python", "-m", "launch.recipe", "--gin_file=gin_configs/recipes/quickstart.gin")


def printed(capsys, *words):
    assert gke.main(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys, *words):
    assert gke.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    return captured.err


def test_prints_the_manifest_of_a_recipe(capsys):
    words = ["quickstart", "STEPS=3", "QUESTIONS=$(HOME) 'a'", *PRINT, "--queue=tpus"]
    text = printed(capsys, *words)
    job, _ = gke.read(words)
    assert text == gke.manifest(job)
    assert yaml.safe_load(text) == job_set.manifest(job)
    run_dir = "--gin.RUN_DIR=gs://my-bucket/runs/mine"
    settings = ("--gin.STEPS=3", "--gin.QUESTIONS=$(HOME) 'a'", run_dir)
    assert job.command == (*RECIPE, *settings, "--gin_search_paths=.")
    assert job.name == "mine" and job.run_dir == "gs://my-bucket/runs/mine"
    assert job.queue == "tpus" and job.provisioning == "on_demand"


def test_words_as_the_command_line_translates_them(capsys):
    """`kennel` has turned them into flags already."""
    words = ["--gin_file=gin_configs/recipes/quickstart.gin", "--gin.STEPS=3", *PRINT]
    assert printed(capsys, *words) == printed(capsys, "quickstart", "STEPS=3", *PRINT)


@pytest.mark.parametrize(
    ("flag", "provisioning"),
    [("--spot", "spot"), ("--flex_start", "flex_start"), ("--reservation=ours", "reserved")],
)
def test_provisioning(flag, provisioning):
    job, _ = gke.read(["quickstart", *PRINT, flag])
    assert job.provisioning == provisioning


def test_all_flags_reach_the_run():
    flags = [
        *("--namespace=team", "--service_account=writer", "--max_restarts=7", "--save_seconds=90"),
        *("--grace_seconds=100", "--scales_from_zero", "--env=A=1=2", "--env=B="),
    ]
    job, _ = gke.read(["quickstart", *PRINT, *flags])
    assert (job.namespace, job.service_account, job.max_restarts) == ("team", "writer", 7)
    assert (job.save_seconds, job.grace_seconds, job.scales_from_zero) == (90, 100, True)
    assert job.environment == {"A": "1=2", "B": ""}


REFRESH = ("realm_refresh", "CORPUS=gs://my-bucket/corpus", *PRINT)


def test_the_companions_of_a_recipe_get_a_slice(capsys):
    job, _ = gke.read([*REFRESH, "STEPS=3", "--index_builder=v5e:2x2"])
    assert str(job.index_builder.slices) == "v5e:2x2"
    *trainer, elsewhere = job.command
    *builder, only = job.index_builder.command
    assert builder == trainer and "--gin.STEPS=3" in trainer
    assert (elsewhere, only) == ("--companions=elsewhere", "--companions=only")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "size,said",
    [
        ("v5e:2x4", "realm_index runs next to its stage, on the CPUs of the host"),
        ("v5e:4x4", "realm_index starts on none of several hosts, and its stage waits for it"),
    ],
)
def test_what_becomes_of_companions_without_a_slice(size, said, capsys):
    words = [word for word in REFRESH if not word.startswith("--slice")]
    job, _ = gke.read([*words, f"--slice={size}"])
    assert not any(word.startswith("--companions") for word in job.command)
    message = capsys.readouterr().err
    assert said in message and "--index_builder=SLICE" in message


REFUSED = {
    "a tag": (["--image=kennel:latest"], "image: expected NAME@sha256:DIGEST"),
    "a name": (["--name=My_Run"], "write my-run"),
    "no image": (["--image="], "no image: pass --image=NAME@sha256:DIGEST"),
    "an unknown setting": (["STPES=3"], "STPES"),
    "a value of another type": (["STEPS=many"], "STEPS"),
    "data of this machine": (["CORPUS=gin_configs/../docs"], "CORPUS=gin_configs/../docs"),
    "a flag that became a setting": (["--run_dir=gs://my-bucket/x"], "unknown flag --run_dir"),
    "an old generation": (["--slice=v3-8"], "no slice 'v3-8'"),
    "another generation's topology": (["--slice=v6e:4x4x4"], "nearest: v6e:8x8"),
    "no restart on Spot": (["--spot", "--max_restarts=0"], "at least 1 on spot"),
    "two kinds of nodes": (["--spot", "--flex_start"], "not allowed with argument --spot"),
    "a variable without a value": (["--env=A"], "--env: expected NAME=VALUE, found 'A'"),
    "a slice for no companion": (
        ["--index_builder=v5e:2x2"],
        "expected a recipe whose stages have companions, such as realm_refresh, found none",
    ),
    "a misspelt flag": (["--slices=v5e:4x4"], "unknown flag --slices"),
    "another form to start": (["--as=xpk"], "--as=xpk is printed only"),
    "a missing gin file": (["--gin_file=missing.gin"], "no gin file 'missing.gin'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_before_anything_is_printed(name, capsys):
    words, message = REFUSED[name]
    action = "--apply" if name == "another form to start" else "--print"
    assert message in refused(capsys, "quickstart", *FLAGS, action, *words)


def test_a_gin_file_that_the_image_does_not_have(tmp_path, capsys):
    file = tmp_path / "mine.gin"
    file.write_text("STEPS = 3\n")
    message = refused(capsys, "quickstart", *PRINT, f"--gin_file={file}")
    assert f"{file}: the image has the gin files of" in message and "build the image" in message


def test_gin_files_are_named_as_the_image_has_them(monkeypatch):
    """Wherever the command is called, the pods' folder is the repository's."""
    monkeypatch.chdir(pages.REPOSITORY / "gin_configs")
    job, _ = gke.read(["quickstart", *PRINT, "--gin_file=recipes/smoke.gin"])
    assert job.command[3:5] == (RECIPE[3], "--gin_file=gin_configs/recipes/smoke.gin")


def test_a_recipe_that_needs_data(capsys):
    assert "%CORPUS has no value: pass --gin.CORPUS=VALUE" in refused(capsys, "beir", *PRINT)


RUN_DIRS = {
    "gcs://my-bucket/x": "gs://my-bucket/x",
    "runs/mine": "lost with the pod",
    "gs://my-bucket/1": "has none of a-z: pass --name=NAME",
}


@pytest.mark.parametrize("run_dir", RUN_DIRS)
def test_folders_of_results_that_are_refused(run_dir, capsys):
    message = refused(capsys, "quickstart", f"RUN_DIR={run_dir}", *SLICE, "--print")
    assert RUN_DIRS[run_dir] in message


def test_neither_printed_nor_started(capsys):
    assert "--print --apply is required" in refused(capsys, "quickstart", *FLAGS)


def test_no_recipe(capsys):
    assert "name a recipe" in refused(capsys, *PRINT)
    assert "no recipe 'quickstrt'; did you mean" in refused(capsys, "quickstrt", *PRINT)


def test_a_manifest_that_breaks_a_rule_is_never_printed(monkeypatch, capsys):
    wrong = Problem(3, "spec.x", "4", 5)
    monkeypatch.setattr(job_set_rules, "problems", lambda *_: [wrong])
    message = refused(capsys, "quickstart", *PRINT)
    assert "breaks rules" in message and "spec.x: expected 4, found 5 (rule 3)" in message


@pytest.mark.parametrize(("form", "more"), [("xpk", []), ("skypilot", ["--image="])])
def test_other_launchers_get_the_same_command(form, more, capsys):
    text = printed(capsys, "quickstart", "STEPS=3", *PRINT, f"--as={form}", *more)
    job, _ = gke.read(["quickstart", "STEPS=3", *PRINT])
    assert shlex.join(job.command) in text


@pytest.mark.parametrize("code", [0, 1])
def test_apply_hands_the_manifest_to_kubectl(code, tmp_path, monkeypatch, capfd):
    program = tmp_path / "kubectl"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat > {tmp_path}/text\nexit {code}'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert gke.main(["quickstart", *FLAGS, "--apply"]) == code
    job, _ = gke.read(["quickstart", *PRINT])
    assert (tmp_path / "text").read_text() == gke.manifest(job)
    assert (
        (tmp_path / "words").read_text().startswith("apply --server-side --field-manager=kennel-")
    )
    output = capfd.readouterr().out
    assert ("kubectl delete jobset --selector=kennel-run=mine" in output) == (code == 0)
    assert ("cost money" in output) == (code == 0)


def test_every_form_is_printed_by_something():
    assert sorted(gke.FORMS) == list(gke_flags.FORMS)


def test_without_kubectl(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs kubectl on the PATH" in refused(capsys, "quickstart", *FLAGS, "--apply")


def test_help_lists_flags_and_settings(capsys):
    text = printed(capsys, "--help")
    assert text.startswith("usage: kennel gke RECIPE") and "--scales_from_zero" in text
    assert "NAME=VALUE sets a macro" in text


def test_starts_without_jax():
    code = (
        "import sys, launch.gke; print(sorted({'jax', 'tensorflow', 'numpy'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


COMMANDS = re.findall(r"^kennel gke (?:.*\\\n)*.*$", pages.text_of("docs/gke.md"), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page(command):
    """With names in the places of those in capitals."""
    places = {"BUCKET": "my-bucket", "REGION": "us-west4", "PROJECT": "p", "REGISTRY": "r"}
    text = command.replace("\\\n", "").replace("DIGEST", "0" * 64)
    for name, value in places.items():
        text = re.sub(rf"\b{name}\b", value, text)
    job, _ = gke.read(shlex.split(text)[2:])
    assert job.queue == "tpus" and job.provisioning == "spot"


def test_machines_of_the_page():
    text = pages.text_of("docs/gke.md")
    assert len(COMMANDS) == 2
    for row in GENERATIONS.values():
        assert row.gke_machine.format(chips=row.chips_per_host).rpartition("-")[0] in text
        assert f"`{row.name}:{row.topologies[0]}`" in text
