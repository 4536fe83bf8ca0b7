"""Run folders of before there was a store: recognised, never emptied, and adopted when asked."""

import json
import os
import shutil

import pytest

from t5x_style import runs
from t5x_style.configuration import gin_checks
from t5x_style.workflow import adoption, fingerprints, links, stages
from t5x_style.workflow.store import Store, StoreError
from tests.kits.stage_kit import COUNT, MAKE

MADE, COUNTED = "runs/old/made", "runs/old/counted"


def old_stage(folder, text, values, inputs, outputs, finished="2026-11-01 10:00:00"):
    """A folder as a stage left it before there was a store; `finished` None: it was stopped."""
    os.makedirs(folder)
    config = text + f"MODEL_DIR = {folder!r}\n"
    for name, value in values.items():
        lines = [line for line in config.splitlines() if not line.startswith(f"{name} = ")]
        config = "\n".join([*lines, f"{name} = {value!r}"]) + "\n"
    with open(f"{folder}/config.gin", "w") as file:
        file.write(config)
    for name, content in outputs.items():
        with open(f"{folder}/{name}", "w") as file:
            file.write(content)
    flags = gin_checks.Flags((f"{folder}/config.gin",), (), allow=("tests",))
    code = fingerprints.of_code([stages.job_of(flags.read())], flags.read(), ["tests"])
    record = {
        "name": os.path.basename(folder), "entry": stages.job_of(flags.read()),
        "fingerprint": f"old fingerprint of {folder}", "fingerprints": {}, "bindings": {},
        "inputs": inputs, "code": code, "seconds": 0.0,
    }  # fmt: skip
    with open(f"{folder}/stage.started.json", "w") as file:
        json.dump(record, file)
    if finished:
        done = {"seconds": 7.0, "finished": finished, "versions": {"python": "3.11.1"}}
        done |= {"outputs": {name.partition(".")[0]: name for name in outputs}, "hashes": {}}
        with open(f"{folder}/stage.json", "w") as file:
            json.dump(record | done, file)


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A run of two stages, the second made from the first."""
    monkeypatch.chdir(tmp_path)
    old_stage(MADE, MAKE, {}, {}, {"out.txt": "years of work"})
    inputs = {"SOURCE": f"old fingerprint of {MADE}"}
    values = {"SOURCE": f"{MADE}/out.txt"}
    later = "2026-11-02 10:00:00"
    old_stage(COUNTED, COUNT, values, inputs, {"steps.txt": "0\n1\n2\n"}, later)


def plan(link, text, **values):
    with open("a.gin", "w") as file:
        file.write(text)
    flags = gin_checks.Flags(("a.gin",), (("MODEL_DIR", link), *values.items()), allow=("tests",))
    return stages.plan(flags)


def test_an_old_folder_is_recognised_and_left_alone(old):
    with pytest.raises(StoreError, match="made without a store.* Nothing was changed") as error:
        stages.decide(plan(MADE, MAKE))
    assert "python -m t5x_style.runs adopt runs/old" in str(error.value)
    assert sorted(os.listdir(MADE)) == ["config.gin", "out.txt", "stage.json", "stage.started.json"]


def test_what_an_old_folder_holds_is_an_input_all_the_same(old):
    planned = plan("runs/new/counted", COUNT, SOURCE=f"{MADE}/out.txt")
    assert planned.inputs.flat() == {
        "SOURCE": f"made without a store old fingerprint of {MADE}/out.txt"
    }


def test_adopted_folders_are_the_versions_of_their_configuration(old, capsys):
    assert runs.main(["adopt", "runs/old", "--gin_allow=tests"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith(f"{MADE} -> runs/.store/versions/toy_make-")
    made = stages.decide(plan(MADE, MAKE))
    assert (made.status, made.note) == ("done", "")
    assert made.reason == "7 s, finished 2026-11-01 10:00:00"
    counted = stages.decide(plan(COUNTED, COUNT, SOURCE=f"{MADE}/out.txt"))
    assert counted.status == "done" and counted.version.record["made_from"] == [made.version.id]
    with open(f"{MADE}/out.txt") as file:
        assert file.read() == "years of work"
    assert counted.version.manifest["libraries"] == {"python": "3.11.1"}
    assert json.loads((counted.version.folder / adoption.OLD_RECORD).read_text())["seconds"] == 7.0
    assert os.path.islink(MADE) and os.path.islink(COUNTED)
    assert stages.decide(plan("runs/new/made", MAKE)).version.id == made.version.id


def test_what_was_made_from_other_inputs_stays(old, capsys):
    with open(f"{COUNTED}/stage.json") as file:
        record = json.load(file)
    record["inputs"]["SOURCE"] = "old fingerprint of what was there then"
    with open(f"{COUNTED}/stage.json", "w") as file:
        json.dump(record, file)
    assert runs.main(["adopt", "runs/old", "--gin_allow=tests"]) == 1
    output = capsys.readouterr().out
    assert f"{COUNTED} was not adopted: input SOURCE is" in output and os.path.islink(MADE)
    assert os.path.isdir(COUNTED) and not os.path.islink(COUNTED)


def test_what_was_made_with_other_defaults_stays(old, capsys):
    with open(f"{MADE}/operative_config.gin", "w") as file:
        file.write(MAKE + "gin_toys.Size.rate = 0.1\n")
    with open(f"{COUNTED}/operative_config.gin", "w") as file:
        file.write("from __gin__ import dynamic_registration\nfrom tests.kits import gin_toys\n")
        file.write("gin_toys.count.steps = 3\ngin_toys.count.stop_at = 7\n")
    assert runs.main(["adopt", "runs/old", "--gin_allow=tests"]) == 1
    output = capsys.readouterr().out
    assert (
        f"{COUNTED} was not adopted: it was made with other defaults: stop_at 7, now -1" in output
    )
    assert os.path.islink(MADE) and not os.path.islink(COUNTED)


def test_a_stopped_old_stage_continues(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").write_text("x")
    inputs = {"SOURCE": fingerprints.content(tmp_path / "source")}
    old_stage(COUNTED, COUNT, {"SOURCE": "source"}, inputs, {"steps.txt": "0 1\n"}, None)
    assert runs.main(["adopt", "runs/old", "--gin_allow=tests"]) == 0
    assert stages.decide(plan(COUNTED, COUNT, SOURCE="source")).status == "resume"
    with open(f"{COUNTED}/steps.txt") as file:
        assert file.read() == "0 1\n"


def test_a_kill_between_the_record_and_the_move_is_repaired_by_the_same_command(old, monkeypatch):
    def killed(folder, store):
        raise SystemExit(f"killed before {folder} was moved")

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(adoption, "_move", killed)
        runs.main(["adopt", "runs/old", "--gin_allow=tests"])
    assert not os.path.islink(MADE)
    assert runs.main(["adopt", "runs/old", "--gin_allow=tests"]) == 0
    assert stages.decide(plan(MADE, MAKE)).status == "done"


def test_a_copy_of_versions_is_adopted_where_their_store_is_not(old, tmp_path, capsys):
    assert runs.main(["adopt", "runs/old", "--gin_allow=tests"]) == 0
    shutil.copytree("runs/old", "far/away")  # links are followed
    assert runs.main(["adopt", "far/away", f"--store={tmp_path}/far/.store"]) == 0
    found = links.all_of(Store(tmp_path / "far/.store"))
    assert {link.name for link in found} == {"made", "counted"}
    capsys.readouterr()
    shutil.copytree("runs/old", "runs/again")
    assert runs.main(["adopt", "runs/again"]) == 1
    output = capsys.readouterr().out
    assert output.count("the store has this version already") == 2
    assert os.path.isfile("runs/again/made/out.txt")


def test_a_configuration_that_is_gone_or_unknown_stays(old, capsys):
    os.unlink(f"{MADE}/config.gin")
    assert runs.main(["adopt", "runs/old", "--gin_allow=tests"]) == 1
    assert f"{MADE} was not adopted: command line: no gin file" in capsys.readouterr().out
    with open(f"{MADE}/out.txt") as file:
        assert file.read() == "years of work"
