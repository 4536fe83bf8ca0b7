"""Stages: a version each for what decides their outputs; nothing that exists is changed."""

import ast
import dataclasses
import hashlib
import json
import os
import sys

import pytest
from gin import config as gin_config

from t5x_style.configuration import gin_checks, gin_reader, python_sources, signatures
from t5x_style.workflow import fingerprints, links, stage_runner, stages
from t5x_style.workflow.store import Store, StoreError
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


def test_a_stage_leaves_its_record_and_is_skipped(tmp_path, capsys):
    assert run(MAKE, tmp_path) == 0
    written = record(tmp_path)
    assert written["entry"] == "tests.kits.gin_toys.make" and written["outputs"] == {
        "text": "out.txt"
    }
    assert written["job"] == {"name": "toy_make", "version": 1}
    assert written["parameters"]["size.width"] == "3"
    assert written["parameters"]["size.rate"] == "0.1"  # a default
    assert set(written["code"]) == {"tests.kits.gin_toys", "t5x_style"}
    size, _, digest = written["files"]["out.txt"]
    text = (tmp_path / "out" / "out.txt").read_bytes()
    assert size == len(text) and digest == hashlib.sha256(text).hexdigest()
    assert {"name", "fingerprint", "seconds", "finished", "libraries", "token"} <= set(written)
    assert "gin_toys.Size.rate = 0.1" in (tmp_path / "out" / "operative_config.gin").read_text()
    capsys.readouterr()
    assert run(MAKE, tmp_path) == 0
    assert "] done:" in capsys.readouterr().out
    assert record(tmp_path) == written


def test_a_job_without_an_entry_point_of_its_own_looks_for_no_tpu(tmp_path, monkeypatch):
    for name in ("TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")  # JAX sets it where it finds no chip
    monkeypatch.setitem(sys.modules, "jax", sys.modules.get("jax", sys))
    assert run(MAKE, tmp_path) == 0
    assert os.environ["TPU_WORKER_HOSTNAMES"] == "localhost"


def test_the_folder_is_a_link_into_the_store(tmp_path):
    run(MAKE, tmp_path)
    link = tmp_path / "out"
    name = f"toy_make-{record(tmp_path)['fingerprint'][:16]}"
    assert os.readlink(link) == f".store/versions/{name}"
    assert links.all_of(Store(tmp_path / ".store")) == {link: name}


def test_the_saved_configuration_is_the_same_stage(tmp_path):
    run(MAKE, tmp_path)
    saved = (tmp_path / "out" / "config.gin").read_text()
    assert decision(saved, tmp_path).status == "done"


def test_what_counts_as_a_change(tmp_path):
    run(MAKE, tmp_path)
    same = MAKE.replace("WIDTH = 3", "# a remark\nW = 3").replace("%WIDTH", "%W")
    assert decision(same, tmp_path).status == "done"
    default = MAKE + "gin_toys.Size.rate = 0.1\n"
    assert decision(default, tmp_path).status == "done"
    changed = decision(MAKE, tmp_path, WIDTH="4")
    assert changed.changes == {"parameters": ["size.width 3 -> 4"]}
    assert (changed.status, changed.reason) == ("changed", "size.width 3 -> 4")


def test_a_change_makes_a_second_version_and_going_back_makes_nothing(tmp_path, capsys):
    run(MAKE, tmp_path)
    first = (tmp_path / "out").resolve()
    before = record(tmp_path)
    run(MAKE, tmp_path, WIDTH="4")
    second = (tmp_path / "out").resolve()
    assert "width=4" in (second / "out.txt").read_text()
    assert json.loads((first / "stage.json").read_text()) == before
    assert "width=3" in (first / "out.txt").read_text()
    capsys.readouterr()
    run(MAKE, tmp_path)
    assert (tmp_path / "out").resolve() == first and "] done:" in capsys.readouterr().out


def test_a_changed_default_is_a_change(tmp_path, monkeypatch):
    run(MAKE, tmp_path)
    monkeypatch.setitem(
        python_sources.module("tests.kits.gin_toys").definitions,
        "Size",
        ast.parse("@dataclass\nclass Size:\n  width: int\n  rate: float = 0.2").body[0],
    )
    found = decision(MAKE, tmp_path).changes["parameters"]
    assert found == ["size.kind 'small' -> unset", "size.rate 0.1 -> 0.2"]


def test_a_raised_version_of_the_job_is_a_change(tmp_path, monkeypatch):
    run(MAKE, tmp_path)
    raised = signatures.Job("toy_make", 2)
    monkeypatch.setattr(signatures, "job", lambda target: raised)
    assert decision(MAKE, tmp_path).reason == "job version 1 -> 2"


def test_operational_settings_may_change_in_the_middle_of_a_run(tmp_path):
    (tmp_path / "source").write_text("x")
    run(COUNT, tmp_path, SOURCE="source", **{"gin_toys.count.stop_at": "1"})
    stopped = (tmp_path / "out").resolve()
    changed = {"gin_toys.count.stop_at": "1", "gin_toys.count.report_every": "7"}
    assert decision(COUNT, tmp_path, SOURCE="source", **changed).status == "resume"
    run(COUNT, tmp_path, SOURCE="source", **changed)
    assert (tmp_path / "out").resolve() == stopped
    assert record(tmp_path)["operational"] == {"report_every": "7"}
    again = changed | {"gin_toys.count.report_every": "8"}
    assert decision(COUNT, tmp_path, SOURCE="source", **again).status == "done"


def test_a_changed_input_and_a_moved_one(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x").write_text("1")
    run(COUNT, tmp_path, SOURCE="source")
    (tmp_path / "source").rename(tmp_path / "elsewhere")
    assert decision(COUNT, tmp_path, SOURCE="elsewhere").status == "done"
    (tmp_path / "elsewhere" / "x").write_text("2")
    (change,) = decision(COUNT, tmp_path, SOURCE="elsewhere").changes["parameters"]
    assert change.startswith("source input sha256 ")


def test_an_input_counts_by_its_version_and_is_read_by_its_path(tmp_path):
    """Whatever the link points to by the time that the job runs."""
    run(MAKE, tmp_path, MODEL_DIR="made")
    run(COUNT, tmp_path, SOURCE="made/out.txt")
    version = (tmp_path / "made").resolve()
    code = json.loads((version / "stage.json").read_text())["code_hash"]
    assert record(tmp_path)["inputs"] == {"SOURCE": f"{version.name} by code {code}/out.txt"}
    assert record(tmp_path)["made_from"] == [version.name]
    config = (tmp_path / "out" / "config.gin").read_text()
    assert f"SOURCE = '.store/versions/{version.name}/out.txt'" in config
    run(MAKE, tmp_path, MODEL_DIR="made", WIDTH="4")
    now = (tmp_path / "made").resolve()
    (change,) = decision(COUNT, tmp_path, SOURCE="made/out.txt").changes["parameters"]
    by = f"by code {code}/out.txt"
    assert change == f"source input {version.name} {by} -> input {now.name} {by}"
    run(MAKE, tmp_path, MODEL_DIR="made")
    assert decision(COUNT, tmp_path, SOURCE="made/out.txt").status == "done"


def test_an_input_may_be_another_one(tmp_path):
    """Both are bound to the version; neither becomes a macro that nothing uses."""
    run(MAKE, tmp_path, MODEL_DIR="made")
    text = COUNT.replace("[%SOURCE]", "[%SOURCE, %FOLDER]") + "SOURCE = %FOLDER\n"
    assert run(text, tmp_path, FOLDER="made/out.txt") == 0
    assert set(record(tmp_path)["inputs"]) == {"SOURCE", "FOLDER"}
    assert run(text, tmp_path, FOLDER="made/out.txt") == 0


def test_an_input_that_was_edited_or_is_not_finished(tmp_path):
    run(MAKE, tmp_path, MODEL_DIR="made")
    (tmp_path / "made" / "out.txt").write_text("edited by hand")
    with pytest.raises(fingerprints.InputError, match=r"out.txt changed since .*--rerun=made"):
        decision(COUNT, tmp_path, SOURCE="made/out.txt")
    (tmp_path / "made" / "stage.json").unlink()
    with pytest.raises(fingerprints.InputError, match="has not finished"):
        decision(COUNT, tmp_path, SOURCE="made/out.txt")


def test_inputs_that_cannot_be(tmp_path):
    with pytest.raises(fingerprints.InputError, match="Input SOURCE does not exist: gone"):
        decision(COUNT, tmp_path, SOURCE="gone")
    with pytest.raises(fingerprints.InputError, match="must be a path, found 3"):
        decision(COUNT, tmp_path, SOURCE="3")
    assert fingerprints.of_inputs({"A": None, "B": ["", ""]}).flat() == {
        "A": "none",
        "B[0]": "none",
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


def test_another_configuration_leaves_a_stopped_stage_to_be_continued(tmp_path):
    (tmp_path / "source").write_text("x")
    stops = {"SOURCE": "source", "gin_toys.count.stop_at": "1"}
    run(COUNT, tmp_path, **stops)
    stopped = (tmp_path / "out").resolve()
    assert decision(COUNT, tmp_path, SOURCE="source").status == "changed"
    run(COUNT, tmp_path, SOURCE="source")
    lines = (tmp_path / "out" / "steps.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    run(COUNT, tmp_path, **stops)
    assert (tmp_path / "out").resolve() == stopped and record(tmp_path)["outputs"]


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
    with pytest.raises(stages.StageError, match=message):
        run(text, tmp_path)
    assert not (tmp_path / "out" / "stage.json").exists()


def test_a_vanished_output_is_made_again_next_to_what_is_left(tmp_path):
    run(MAKE, tmp_path)
    damaged = (tmp_path / "out").resolve()
    (tmp_path / "out" / "out.txt").unlink()
    found = decision(MAKE, tmp_path)
    assert (found.status, found.changes) == ("damaged", {"outputs": ["out.txt"]})
    run(MAKE, tmp_path)
    assert decision(MAKE, tmp_path).status == "done"
    assert (tmp_path / "out").resolve().name == f"{damaged.name}.2" and damaged.is_dir()


def edit(monkeypatch, module="tests.kits.gin_toys", digest="edited"):
    real = fingerprints.of_code
    monkeypatch.setattr(fingerprints, "of_code", lambda *a: real(*a) | {module: digest})


def test_changed_code_is_reported_in_one_line_and_reruns_on_request(tmp_path, monkeypatch, capsys):
    run(MAKE, tmp_path)
    first = (tmp_path / "out").resolve()
    edit(monkeypatch)
    found = decision(MAKE, tmp_path)
    assert found.status == "done" and "tests.kits.gin_toys" in found.note
    assert "--rerun=out makes it again, --strict_code" in found.note
    capsys.readouterr()
    run(MAKE, tmp_path)
    assert capsys.readouterr().out.count("code has changed since it was made") == 1
    assert decision(MAKE, tmp_path, strict_code=True).status == "code"
    assert decision(MAKE, tmp_path, rerun=("out",)).status == "rerun"
    with pytest.raises(stages.StageError, match="--rerun=other: this stage is called 'out'"):
        decision(MAKE, tmp_path, rerun=("other",))
    gin_config._set_config_is_locked(False)
    flags = dataclasses.replace(flags_of(MAKE, tmp_path), strict_code=True)
    stage_runner.run_stage(flags, "")
    second = (tmp_path / "out").resolve()
    assert second.name == f"{first.name}.2" and first.is_dir()
    assert decision(MAKE, tmp_path).note == "" and decision(MAKE, tmp_path).version.folder == (
        tmp_path / ".store" / "versions" / second.name
    )
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    back = decision(MAKE, tmp_path, strict_code=True)
    assert back.status == "done" and back.version.id == first.name


def test_what_is_continued_with_other_code_is_of_no_one_code(tmp_path, monkeypatch, capsys):
    (tmp_path / "source").write_text("x")
    options = {"SOURCE": "source", "gin_toys.count.stop_at": "1"}
    run(COUNT, tmp_path, **options)
    edit(monkeypatch)
    assert decision(COUNT, tmp_path, strict_code=True, **options).status == "changed"
    capsys.readouterr()
    run(COUNT, tmp_path, **options)
    assert "it continues with changed code: tests.kits.gin_toys" in capsys.readouterr().out
    assert record(tmp_path)["mixed_code"] is True
    assert decision(COUNT, tmp_path, **options).status == "done"
    assert decision(COUNT, tmp_path, strict_code=True, **options).status == "code"


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreError, match="holds files, but no stage of ours wrote them"):
        run(MAKE, tmp_path)
    assert (tmp_path / "out" / "thesis.txt").exists()


def test_a_folder_inside_a_version_is_refused(tmp_path):
    run(MAKE, tmp_path)
    with pytest.raises(StoreError, match="the folder of another stage"):
        run(MAKE, tmp_path, MODEL_DIR=str(tmp_path / "out" / "inner"))
    assert not (tmp_path / "out" / "inner").exists()


def test_two_stages_bound_to_one_folder(tmp_path):
    (tmp_path / "source").write_text("x")
    run(MAKE, tmp_path)
    with pytest.raises(
        stages.StageError, match="job 'toy_make', and this one runs 'toy_count': two"
    ):
        run(COUNT, tmp_path, SOURCE="source")
    assert record(tmp_path)["job"]["name"] == "toy_make"


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


def test_the_gin_file_of_a_version_may_be_read_for_another(tmp_path):
    assert run(MAKE, tmp_path) == 0
    own = gin_checks.Flags((str(tmp_path / "out" / "config.gin"),), (), allow=("tests",))
    assert stages.decide(stages.plan(own)).status == "done"
    changed = dataclasses.replace(own, overrides=(("WIDTH", "4"),))
    gin_config._set_config_is_locked(False)
    assert stage_runner.run_stage(changed, "") == 0
    assert record(tmp_path)["parameters"]["size.width"] == "4"
