"""The command line of a stage: which job it runs, its errors and its exit codes."""

import os
import subprocess
import sys
import textwrap

import pytest

from t5x_style.configuration import gin_checks, gin_reader
from t5x_style.workflow import stage_runner, stages
from tests.kits import gin_toys
from tests.kits.stage_kit import (  # noqa: F401  a fixture for every test here
    COUNT,
    HEAD,
    MAKE,
    clean_process,
    decision,
    flags_of,
    record,
    run,
)  # fmt: skip


def test_which_job(tmp_path):
    with pytest.raises(gin_reader.GinError, match="No job: bind"):
        stages.plan(flags_of("", tmp_path))
    with pytest.raises(gin_reader.GinError, match="but this entry point runs tests.x.y"):
        stages.plan(flags_of(MAKE, tmp_path), "tests.x.y")
    with pytest.raises(gin_reader.GinError, match="stage.run.job must be a reference"):
        stages.plan(flags_of(MAKE.replace("@gin_toys.make\n", "'make'\n"), tmp_path))
    with pytest.raises(gin_reader.GinError, match="No folder to write to"):
        stages.plan(gin_checks.Flags((flags_of(MAKE, tmp_path).files), (), allow=("tests",)))
    with pytest.raises(gin_reader.GinError, match="MODEL_DIR must be a path, found 3"):
        stages.plan(flags_of(MAKE, tmp_path, MODEL_DIR="3"))


def test_jobs_declare_their_program():
    assert stages.entry_of("t5x_style.train.train") == "t5x_style.train"
    assert stages.entry_of("tests.kits.gin_toys.make") == "t5x_style.stage"


def test_an_entry_point_with_its_own_job(tmp_path):
    text = MAKE.replace("stage.run.job = @gin_toys.make\n", "")
    flags = flags_of(text, tmp_path)
    assert stage_runner.run_stage(flags, "tests.kits.gin_toys.make") == 0
    assert record(tmp_path)["outputs"] == {"text": "out.txt"}


def test_errors_of_ours_are_short(tmp_path, capsys):
    def action(ours):
        return lambda flags: gin_toys.fails("", ours) and 0

    assert stage_runner.guarded(action(True), []) == 1
    assert capsys.readouterr().err.startswith("error: expected a corpus, found nothing\n(--trace")
    with pytest.raises(ValueError, match="expected a corpus"):
        stage_runner.guarded(action(True), ["--traceback"])

    def within_gin(flags):
        raise ValueError("no\n  In call to configurable 'f' (<function f at 0x7f>) in scope 's'")

    assert stage_runner.guarded(within_gin, []) == 1
    assert "no\n  In call to configurable 'f' in scope 's'\n" in capsys.readouterr().err
    assert stage_runner.guarded(lambda flags: os.stat("/no/such/file"), []) == 1


def test_the_command(tmp_path):
    """One real process: flags, exit codes, and a short error on stderr."""
    (tmp_path / "a.gin").write_text(textwrap.dedent(MAKE))
    env = os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)}
    command = [sys.executable, "-m", "t5x_style.stage", "--gin_file=a.gin", "--gin_allow=tests"]
    found = subprocess.run([*command, "--gin.MODEL_DIR=out"], env=env, capture_output=True)
    assert found.returncode == 0 and (tmp_path / "out" / "stage.json").exists()
    wrong = [*command, "--gin.MODEL_DIR=out", "--gin.WITDH=4"]
    found = subprocess.run(wrong, env=env, capture_output=True, text=True)
    assert found.returncode == 1 and "did you mean WIDTH?" in found.stderr
    assert len(found.stderr.splitlines()) == 2
