"""What changes while a stage waits or runs: no version is recorded that does not follow from it."""

import json
import os

import pytest

from t5x_style.configuration import signatures
from t5x_style.storage import records
from t5x_style.workflow import fingerprints, making, stages
from tests.kits import store_kit
from tests.kits.stage_kit import (  # noqa: F401  a fixture for every test here
    COUNT,
    MAKE,
    clean_process,
    decision,
    flags_of,
    record,
    run,
)  # fmt: skip


def test_a_gin_file_that_is_edited_while_a_stage_waits(tmp_path, monkeypatch):
    """The version would hold what the new file says, under the fingerprint of the old one."""
    real = making.begin

    def meanwhile(*arguments):
        (tmp_path / "a.gin").write_text(MAKE.replace("WIDTH = 3", "WIDTH = 4"))
        return real(*arguments)

    monkeypatch.setattr(making, "begin", meanwhile)
    with pytest.raises(stages.StageError, match="since this command read them: size.width 3 -> 4"):
        run(MAKE, tmp_path)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert not (tmp_path / "out/stage.json").exists()
    assert run(MAKE, tmp_path) == 0 and "width=3" in (tmp_path / "out/out.txt").read_text()


def test_an_input_that_changes_while_a_stage_runs(tmp_path, monkeypatch):
    (tmp_path / "source").write_text("one")
    real = making.check_outputs

    def meanwhile(*arguments):
        (tmp_path / "source").write_text("another")
        return real(*arguments)

    monkeypatch.setattr(making, "check_outputs", meanwhile)
    with pytest.raises(stages.StageError, match="inputs changed while the stage ran: SOURCE"):
        run(COUNT, tmp_path, SOURCE="source")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    spoiled = (tmp_path / "out").resolve()
    assert not (spoiled / "stage.json").exists()
    (tmp_path / "source").write_text("one")
    assert decision(COUNT, tmp_path, SOURCE="source").status == "changed"  # it is not continued
    assert run(COUNT, tmp_path, SOURCE="source") == 0
    assert (tmp_path / "out").resolve() != spoiled and spoiled.is_dir()


def test_a_version_that_is_edited_while_its_reader_runs(tmp_path, monkeypatch):
    run(MAKE, tmp_path, MODEL_DIR="made")
    real = making.check_outputs

    def meanwhile(*arguments):
        (tmp_path / "made/out.txt").write_text("edited")
        return real(*arguments)

    monkeypatch.setattr(making, "check_outputs", meanwhile)
    with pytest.raises(stages.StageError, match=r"inputs changed .*out.txt changed since"):
        run(COUNT, tmp_path, SOURCE="made/out.txt")


def test_what_links_inside_an_input_lead_to_counts(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/x").write_text("one")
    (tmp_path / "source").mkdir()
    os.symlink("../disk", tmp_path / "source/linked")
    os.symlink("../disk", tmp_path / "disk/circle")
    run(COUNT, tmp_path, SOURCE="source")
    assert decision(COUNT, tmp_path, SOURCE="source").status == "done"
    (tmp_path / "disk/x").write_text("another")
    assert decision(COUNT, tmp_path, SOURCE="source").status == "changed"


def test_a_link_to_a_stage_must_be_declared(tmp_path):
    run(MAKE, tmp_path, MODEL_DIR="made")
    text = COUNT.replace("stage.run.inputs = [%SOURCE]\n", "")
    with pytest.raises(fingerprints.InputError, match="gin_toys.count.source is 'made'"):
        decision(text, tmp_path, SOURCE="made")


def test_a_version_made_again_by_the_same_code_is_the_same_input(tmp_path):
    run(MAKE, tmp_path, MODEL_DIR="made")
    run(COUNT, tmp_path, SOURCE="made/out.txt")
    (tmp_path / "made/out.txt").unlink()
    run(MAKE, tmp_path, MODEL_DIR="made")
    assert (tmp_path / "made").resolve().name.endswith(".2")
    assert decision(COUNT, tmp_path, SOURCE="made/out.txt").status == "done"


def test_a_version_made_again_by_other_code_is_another_input(tmp_path, monkeypatch):
    run(MAKE, tmp_path, MODEL_DIR="made")
    run(COUNT, tmp_path, SOURCE="made/out.txt")
    (tmp_path / "made/out.txt").unlink()
    real = fingerprints.of_code
    monkeypatch.setattr(
        fingerprints, "of_code", lambda *a: real(*a) | {"tests.kits.gin_toys": "edited"}
    )
    run(MAKE, tmp_path, MODEL_DIR="made")
    assert decision(COUNT, tmp_path, SOURCE="made/out.txt").status == "changed"


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_record_is_repaired_by_the_same_command(tmp_path, monkeypatch, after):
    """Before or after each record that a run writes: lease, start, link, store, manifest."""
    real, calls = records.write_json, []
    run(MAKE, tmp_path)
    before = record(tmp_path)
    for number in range(20):
        calls.clear()

        def killed(path, value, number=number):
            if value.get("holder", "") is None:  # a lease is released: a process that ends need not
                return real(path, value)
            calls.append(path.name)
            if len(calls) == number + 1:
                if after:
                    real(path, value)
                raise Killed
            return real(path, value)

        with monkeypatch.context() as patch:
            patch.setattr(records, "write_json", killed)
            try:
                run(MAKE, tmp_path, WIDTH=str(10 + number))
            except Killed:
                for path in (tmp_path / ".store/leases").glob("*.json"):  # its process is gone
                    state = json.loads(path.read_text())
                    gone = state["holder"] and state["holder"] | {"started": "gone"}
                    real(path, state | {"holder": gone})
            else:
                break  # there are fewer records than that
        assert run(MAKE, tmp_path, WIDTH=str(10 + number)) == 0
        assert f"width={10 + number}" in (tmp_path / "out/out.txt").read_text()
        assert not (tmp_path / "out").resolve().name.endswith(".2")
        assert run(MAKE, tmp_path) == 0 and record(tmp_path) == before
    assert number >= 4 and "stage.json" in calls, calls


@pytest.mark.parametrize("name", ["a/b", "A", "1a", "", "a b"])
def test_names_of_jobs(monkeypatch, tmp_path, name):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "toyjob.py").write_text(
        f"JOBS = {{'f': {{'name': {name!r}, 'version': 1}}}}\ndef f(model_dir): ...\n"
    )
    with pytest.raises(signatures.DeclarationError, match="expected JOBS"):
        signatures.job("toyjob.f")


def test_a_run_continued_from_other_code_is_of_no_one_code(tmp_path):
    """What --strict_code promises: no part of a version was made by other code."""
    job = signatures.Job("toy", 1, length=("steps",))
    link = tmp_path / "runs/a"

    def plan(steps, code):
        made = store_kit.plan(link, "toy", store=tmp_path / "store", code=code, steps=steps)
        return stages.Plan(**vars(made) | {"job": job})

    store_kit.finished(plan(1, "old"), {}, {})
    folder = store_kit.started(plan(2, "new"))
    making.continues(str(folder), making.parent_of(str(folder)))
    longer = store_kit.finished(plan(2, "new"), {}, {})
    assert longer.manifest["mixed_code"] and longer.manifest["parent"]
    strict = stages.Plan(**vars(plan(2, "new")) | {"strict": True})
    assert stages.decide(strict).status == "code"
