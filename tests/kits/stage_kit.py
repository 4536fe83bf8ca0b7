"""Stages of the toy jobs, run in the test's own process."""

import dataclasses
import json
import signal

import pytest
from gin import config as gin_config

from t5x_style.configuration import gin_checks
from t5x_style.workflow import stage_runner, stages

HEAD = (
    "from __gin__ import dynamic_registration\nfrom t5x_style import stage\n"
    "from tests.kits import gin_toys\n"
)
MAKE = HEAD + (
    "WIDTH = 3\nstage.run.job = @gin_toys.make\ngin_toys.make.size = @gin_toys.Size()\n"
    "gin_toys.Size.width = %WIDTH\n"
)
COUNT = HEAD + (
    "STEPS = 3\nstage.run.job = @gin_toys.count\nstage.run.inputs = [%SOURCE]\n"
    "gin_toys.count:\n  source = %SOURCE\n  steps = %STEPS\n"
)


@pytest.fixture(autouse=True)
def clean_process(monkeypatch, tmp_path):
    """Gin's state and signal handlers are the process's; every test starts with fresh ones."""
    monkeypatch.chdir(tmp_path)
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    prefixes = list(gin_config._LOCATION_PREFIXES)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    gin_config._set_config_is_locked(False)
    gin_config.clear_config()
    gin_config._LOCATION_PREFIXES[:] = prefixes


def flags_of(text, tmp_path, **overrides):
    (tmp_path / "a.gin").write_text(text)
    pairs = {"MODEL_DIR": str(tmp_path / "out"), **overrides}
    return gin_checks.Flags(("a.gin",), tuple(pairs.items()), allow=("tests",))


def run(text, tmp_path, **overrides):
    """Runs a stage in this process and returns its exit code."""
    gin_config._set_config_is_locked(False)
    gin_config.clear_config()
    return stage_runner.run_stage(flags_of(text, tmp_path, **overrides), "")


def decision(text, tmp_path, rerun=(), strict_code=False, **overrides):
    flags = flags_of(text, tmp_path, **overrides)
    flags = dataclasses.replace(flags, rerun=rerun, strict_code=strict_code)
    return stages.decide(stages.plan(flags))


def record(tmp_path, name="out"):
    return json.loads((tmp_path / name / "stage.json").read_text())
