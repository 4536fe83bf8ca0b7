"""Stages: skipped when nothing changed, run again when something did; foreign folders are safe."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from gin import config as gin_config

from t5x_style import fingerprints, gin_reader, gin_utils, stage, stage_main
from tests import gin_toys

HEAD = (
    "from __gin__ import dynamic_registration\nfrom t5x_style import stage\n"
    "from tests import gin_toys\n"
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
    return gin_utils.Flags(("a.gin",), tuple(pairs.items()), allow=("tests",))


def run(text, tmp_path, **overrides):
    """Runs a stage in this process and returns its exit code."""
    gin_config._set_config_is_locked(False)
    gin_config.clear_config()
    return stage_main.run_stage(flags_of(text, tmp_path, **overrides), "")


def decision(text, tmp_path, **overrides):
    return stage.decide(stage.plan(flags_of(text, tmp_path, **overrides)))


def record(tmp_path):
    return json.loads((tmp_path / "out" / "stage.json").read_text())


def test_a_stage_leaves_its_record_and_is_skipped(tmp_path, capsys):
    assert run(MAKE, tmp_path) == 0
    written = record(tmp_path)
    assert written["entry"] == "tests.gin_toys.make" and written["outputs"] == {"text": "out.txt"}
    assert written["bindings"]["tests.gin_toys.Size.width"] == "3"
    assert set(written["fingerprints"]) == {"bindings", "inputs", "code"}
    assert {"name", "fingerprint", "seconds", "finished", "versions"} <= set(written)
    assert set(written["code"]) == {"tests.gin_toys", "t5x_style"}
    assert "gin_toys.Size.rate = 0.1" in (tmp_path / "out" / "operative_config.gin").read_text()
    capsys.readouterr()
    assert run(MAKE, tmp_path) == 0
    assert "] done:" in capsys.readouterr().out
    assert record(tmp_path) == written


def test_the_saved_configuration_is_the_same_stage(tmp_path):
    run(MAKE, tmp_path)
    saved = (tmp_path / "out" / "config.gin").read_text()
    assert decision(saved, tmp_path).status == "done"


def test_what_counts_as_a_change(tmp_path):
    run(MAKE, tmp_path)
    same = MAKE.replace("WIDTH = 3", "# a remark\nW = 3").replace("%WIDTH", "%W")
    assert decision(same, tmp_path).status == "done"
    changed = decision(MAKE, tmp_path, WIDTH="4")
    assert changed.changes == {"bindings": ["tests.gin_toys.Size.width"]}
    assert run(MAKE, tmp_path, WIDTH="4") == 0
    assert "width=4" in (tmp_path / "out" / "out.txt").read_text()


def test_how_checkpoints_are_kept_is_no_change(tmp_path):
    """The advice to fall back to an older checkpoint, or keep fewer, must not empty the folder."""
    kept = HEAD + (
        "from t5x_style import checkpointing\nstage.run.job = @gin_toys.make\n"
        "gin_toys.make.size = @checkpointing.Checkpointing()\n"
        "checkpointing.Checkpointing.keep = 2\n"
    )
    before = stage.plan(flags_of(kept, tmp_path))
    name = "checkpointing.Checkpointing."
    changed = {name + "keep": "1", name + "fall_back": "True"}
    assert stage.plan(flags_of(kept, tmp_path, **changed)).fingerprint == before.fingerprint


def test_a_changed_input_and_a_moved_one(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x").write_text("1")
    run(COUNT, tmp_path, SOURCE="source")
    (tmp_path / "source").rename(tmp_path / "elsewhere")
    assert decision(COUNT, tmp_path, SOURCE="elsewhere").status == "done"
    (tmp_path / "elsewhere" / "x").write_text("2")
    assert decision(COUNT, tmp_path, SOURCE="elsewhere").changes == {"inputs": ["SOURCE"]}


def test_another_stages_output_counts_by_its_fingerprint(tmp_path):
    run(MAKE, tmp_path, MODEL_DIR="made")
    run(COUNT, tmp_path, SOURCE="made/out.txt")
    made = json.loads((tmp_path / "made" / "stage.json").read_text())
    assert record(tmp_path)["inputs"] == {"SOURCE": made["fingerprint"]}
    assert fingerprints.of_path("made", "X") == made["fingerprint"]
    (tmp_path / "made" / "out.txt").write_text("edited by hand")
    assert decision(COUNT, tmp_path, SOURCE="made/out.txt").changes == {"inputs": ["SOURCE"]}
    (tmp_path / "made" / "stage.json").unlink()
    with pytest.raises(fingerprints.InputError, match="has not finished"):
        decision(COUNT, tmp_path, SOURCE="made/out.txt")


def test_inputs_that_cannot_be(tmp_path):
    with pytest.raises(fingerprints.InputError, match="Input SOURCE does not exist: gone"):
        decision(COUNT, tmp_path, SOURCE="gone")
    with pytest.raises(fingerprints.InputError, match="must be a path, found 3"):
        decision(COUNT, tmp_path, SOURCE="3")
    assert fingerprints.of_inputs({"A": None, "B": ["", ""]}, {}) == {
        "A": "none",
        "B": "none",
        "B[1]": "none",
    }
    with pytest.raises(gin_reader.GinError, match="must be a list of macros"):
        decision(MAKE + "stage.run.inputs = ['a']\n", tmp_path)


def test_a_path_into_a_stage_must_be_declared(tmp_path):
    run(MAKE, tmp_path, MODEL_DIR="made")
    text = COUNT.replace("stage.run.inputs = [%SOURCE]\n", "")
    with pytest.raises(fingerprints.InputError, match=r"gin_toys.count.source is 'made/out.txt'"):
        decision(text, tmp_path, SOURCE="made/out.txt")


def test_large_files_count_by_size_and_time(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "HASHED_BYTES", 3)
    (tmp_path / "large").write_text("12345")
    assert fingerprints.content(tmp_path / "large").startswith("size 5 modified ")


def test_code_counts_without_comments_and_docstrings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "toyhouse"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "job.py").write_text("def f():\n  from .deep import g\n  return g()\n")
    (package / "deep.py").write_text("def g():\n  return 1\n")
    (package / "apart.py").write_text("")
    empty = gin_reader.Config()

    def code():
        return fingerprints.of_code(["toyhouse.job.f"], empty, ["toyhouse"])

    first = code()
    assert set(first) == {"toyhouse", "toyhouse.job", "toyhouse.deep"}
    (package / "deep.py").write_text('"""Words."""\n\n# remark\ndef g():\n  "Doc."\n  return 1\n')
    assert code() == first
    (package / "deep.py").write_text("def g():\n  return 22\n")
    assert fingerprints.differences(first, code()) == ["toyhouse.deep"]
    (package / "job.py").write_text(
        "def f(): pass\nif __name__ == '__main__':\n  import toyhouse.apart\n"
    )
    assert "toyhouse.apart" not in code()


def test_stopped_early_and_continued(tmp_path, capsys):
    (tmp_path / "source").write_text("x")
    options = {"SOURCE": "source", "gin_toys.count.stop_at": "1"}
    assert run(COUNT, tmp_path, **options) == 0
    assert "stopped early; the same command continues it" in capsys.readouterr().out
    assert not (tmp_path / "out" / "stage.json").exists()
    assert decision(COUNT, tmp_path, **options).status == "resume"
    assert run(COUNT, tmp_path, **options) == 0
    lines = (tmp_path / "out" / "steps.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    assert record(tmp_path)["seconds"] >= 0


def test_a_stopped_stage_under_another_configuration_starts_afresh(tmp_path):
    (tmp_path / "source").write_text("x")
    run(COUNT, tmp_path, SOURCE="source", **{"gin_toys.count.stop_at": "1"})
    assert decision(COUNT, tmp_path, SOURCE="source").status == "changed"
    run(COUNT, tmp_path, SOURCE="source")
    lines = (tmp_path / "out" / "steps.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]


@pytest.mark.parametrize("job", ["stops", "interrupts"])
def test_none_and_interrupted_write_no_record(tmp_path, job):
    assert run(HEAD + f"stage.run.job = @gin_toys.{job}\n", tmp_path) == 0
    assert not (tmp_path / "out" / "stage.json").exists()


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ("3", "must return its outputs"),
        ("{'a': 1}", "must return its outputs"),
        ("{'a': 'none'}", "promised output 'a' at 'none'"),
        ("{'a': '/etc'}", "promised output 'a'"),
        ("{'a': '..'}", "promised output 'a'"),
    ],
)
def test_outputs_must_exist(tmp_path, outputs, message):
    text = HEAD + f"stage.run.job = @gin_toys.promises\ngin_toys.promises.outputs = {outputs}\n"
    with pytest.raises(stage.StageError, match=message):
        run(text, tmp_path)
    assert not (tmp_path / "out" / "stage.json").exists()


def test_a_vanished_output_runs_again(tmp_path):
    run(MAKE, tmp_path)
    (tmp_path / "out" / "out.txt").unlink()
    assert decision(MAKE, tmp_path).changes == {"outputs": ["out.txt"]}
    run(MAKE, tmp_path)
    assert decision(MAKE, tmp_path).status == "done"


def test_a_kill_while_emptying_never_leads_to_a_resume(tmp_path, monkeypatch):
    (tmp_path / "source").write_text("x")
    run(COUNT, tmp_path, SOURCE="source", **{"gin_toys.count.stop_at": "1"})

    def killed(path):
        raise SystemExit(f"killed before {path} was removed")

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(stage.Path, "unlink", lambda path, missing_ok=False: killed(path))
        run(COUNT, tmp_path, SOURCE="source")
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        unlink = stage.Path.unlink
        patch.setattr(
            stage.Path,
            "unlink",
            lambda path, missing_ok=False: unlink(path, missing_ok) if missing_ok else killed(path),
        )
        run(COUNT, tmp_path, SOURCE="source")
    for options in ({}, {"gin_toys.count.stop_at": "1"}):
        found = decision(COUNT, tmp_path, SOURCE="source", **options)
        assert found.status == "changed"


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(stage.StageError, match=r"holds files, but no stage.started.json"):
        run(MAKE, tmp_path)
    assert (tmp_path / "out" / "thesis.txt").exists()


def test_a_folder_with_other_stages_inside_is_not_emptied(tmp_path):
    run(MAKE, tmp_path)
    run(MAKE, tmp_path, MODEL_DIR=str(tmp_path / "out" / "inner"))
    with pytest.raises(stage.StageError, match="inner is the folder of another stage"):
        run(MAKE, tmp_path, WIDTH="4")
    assert (tmp_path / "out" / "out.txt").exists()


def test_a_wrong_type_costs_no_data(tmp_path):
    run(MAKE, tmp_path)
    with pytest.raises(gin_reader.GinError, match="must be int, found 'four'"):
        run(MAKE, tmp_path, WIDTH="four")
    assert decision(MAKE, tmp_path).status == "done"


def test_a_job_without_its_configuration_costs_no_data(tmp_path):
    assert run(MAKE, tmp_path) == 0
    alone = HEAD + "stage.run.job = @gin_toys.make\n"
    with pytest.raises(gin_reader.GinError, match=r"gin_toys.make needs size, which nothing sets"):
        run(alone, tmp_path)
    assert (tmp_path / "out" / "out.txt").exists()


def test_the_gin_file_of_a_run_is_not_deleted_by_it(tmp_path):
    assert run(MAKE, tmp_path) == 0
    own = gin_utils.Flags((str(tmp_path / "out" / "config.gin"),), (), allow=("tests",))
    assert stage.decide(stage.plan(own)).status == "done"
    changed = dataclasses.replace(own, overrides=(("WIDTH", "4"),))
    gin_config._set_config_is_locked(False)
    with pytest.raises(stage.StageError, match=r"config.gin is read for this run. Copy it"):
        stage_main.run_stage(changed, "")
    assert (tmp_path / "out" / "out.txt").exists()


def test_a_second_process_is_kept_out(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom t5x_style import stage\n"
        "try:\n  with stage.lock(Path(sys.argv[1])): pass\n"
        "except stage.StageError as e: print(e)\n"
    )
    env = os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)}
    with stage.lock(tmp_path / "out"):
        command = [sys.executable, "-c", code, str(tmp_path / "out")]
        found = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert f"Process {os.getpid()} is running in" in found.stdout


def test_which_job(tmp_path):
    with pytest.raises(gin_reader.GinError, match="No job: bind"):
        stage.plan(flags_of("", tmp_path))
    with pytest.raises(gin_reader.GinError, match="but this entry point runs tests.x.y"):
        stage.plan(flags_of(MAKE, tmp_path), "tests.x.y")
    with pytest.raises(gin_reader.GinError, match="stage.run.job must be a reference"):
        stage.plan(flags_of(MAKE.replace("@gin_toys.make\n", "'make'\n"), tmp_path))
    with pytest.raises(gin_reader.GinError, match="No folder to write to"):
        stage.plan(gin_utils.Flags((flags_of(MAKE, tmp_path).files), (), allow=("tests",)))
    with pytest.raises(gin_reader.GinError, match="MODEL_DIR must be a path, found 3"):
        stage.plan(flags_of(MAKE, tmp_path, MODEL_DIR="3"))


def test_entry_points_are_read_without_importing():
    assert stage.entry_job("tests.gin_toys") == "tests.gin_toys.make"
    assert stage.entry_job("t5x_style.stage") == ""
    assert stage.declared_outputs("tests.gin_toys.make") == {"text"}
    assert stage.declared_outputs("tests.gin_toys.promises") is None
    with pytest.raises(stage.StageError, match="No module 't5x_style.trian'"):
        stage.entry_job("t5x_style.trian")
    with pytest.raises(stage.StageError, match="not an entry point"):
        stage.entry_job("t5x_style.gin_types")


def test_an_entry_point_with_its_own_job(tmp_path):
    text = MAKE.replace("stage.run.job = @gin_toys.make\n", "")
    flags = flags_of(text, tmp_path)
    assert stage_main.run_stage(flags, "tests.gin_toys.make") == 0
    assert record(tmp_path)["outputs"] == {"text": "out.txt"}


def test_errors_of_ours_are_short(tmp_path, capsys):
    def action(ours):
        return lambda flags: gin_toys.fails("", ours) and 0

    assert stage_main.guarded(action(True), []) == 1
    assert capsys.readouterr().err.startswith("error: expected a corpus, found nothing\n(--trace")
    with pytest.raises(ValueError, match="expected a corpus"):
        stage_main.guarded(action(True), ["--traceback"])

    def within_gin(flags):
        raise ValueError("no\n  In call to configurable 'f' (<function f at 0x7f>) in scope 's'")

    assert stage_main.guarded(within_gin, []) == 1
    assert "no\n  In call to configurable 'f' in scope 's'\n" in capsys.readouterr().err
    assert stage_main.guarded(lambda flags: os.stat("/no/such/file"), []) == 1


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
