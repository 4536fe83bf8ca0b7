"""Garbage collection, and the commands that list and collect: nothing that is needed goes."""

import json
import os
import sys

import pytest

from t5x_style import gc, runs
from t5x_style.workflow import collection, files, links
from t5x_style.workflow.store import Store
from tests.kits import store_kit

LONG_AGO = 1_000_000_000


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Versions that nobody has used for years; returns `make(name, *inputs, **parameters)`."""
    monkeypatch.chdir(tmp_path)

    def make(name, *inputs, job="toy", old=True, **parameters):
        root = tmp_path / "runs/.store"
        plan = store_kit.plan(tmp_path / "runs/a" / name, job, *inputs, store=root, **parameters)
        version = store_kit.finished(plan, {"out.txt": "x" * 100}, {"text": "out.txt"})
        if old:
            age(version)
        return version

    return make


def age(version):
    for path in (*version.folder.iterdir(), version.folder):
        os.utime(path, (LONG_AGO, LONG_AGO))


def store():
    return Store(links.Path("runs/.store"))


def reasons():
    return {entry.version.id: entry.stays for entry in collection.plan(store()).entries}


def test_what_stays_and_why(house, tmp_path):
    used = house("corpus", width=1)
    unused = house("corpus", width=2)
    house("corpus", width=1)
    recent = house("corpus", width=3, old=False)
    pinned = house("corpus", width=4)
    collection.pin(pinned, True)
    needed = house("tokenizer", job="tokens", width=5)
    house("tokenizer", job="tokens", width=6)
    current = house("model", needed.output("text"), job="train", width=7)
    house("corpus", width=1)
    age(used)
    age(needed)
    found = reasons()
    assert found[used.id] == f"current in {tmp_path}/runs/a/corpus"
    assert found[unused.id] == ""
    assert found[recent.id] == "used recently"
    assert found[pinned.id] == "pinned"
    assert found[needed.id] == f"{current.id} was made from it"
    collection.pin(pinned, False)
    age(pinned)
    assert reasons()[pinned.id] == ""


def test_what_is_being_made_stays(house, tmp_path):
    root = tmp_path / "runs/.store"
    plan = store_kit.plan(tmp_path / "runs/a/model", "toy", store=root, width=1)
    folder = store_kit.started(plan)
    os.unlink(tmp_path / "runs/a/model")
    age(store().read(folder))
    assert reasons() == {plan.id: ""}
    lease = store().leases.acquire(plan.id, print, lambda: None)
    assert reasons()[plan.id] == f"being made by process {os.getpid()} on {os.uname().nodename}"
    lease.release()


def test_a_version_that_came_into_use_meanwhile_is_not_deleted(house):
    old = house("corpus", width=1)
    house("corpus", width=2)
    (entry,) = collection.plan(store()).removable
    lease = store().leases.acquire(old.id, print, lambda: None)
    assert not collection.delete(store(), entry)
    lease.release()
    store().mark_used(old.folder)
    assert not collection.delete(store(), entry) and old.folder.is_dir()
    age(old)
    house("corpus", width=1)  # linked to again
    age(old)
    assert not collection.delete(store(), entry) and old.folder.is_dir()
    house("corpus", width=2)
    age(old)
    assert collection.delete(store(), entry) and not old.folder.exists()


def test_a_deletion_that_is_killed_leaves_no_version(house, monkeypatch):
    old = house("corpus", width=1)
    house("corpus", width=2)
    (entry,) = collection.plan(store()).removable

    def killed(folder):
        raise SystemExit(f"killed before {folder} was removed")

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(collection, "remove", killed)
        collection.delete(store(), entry)
    assert old.id not in {version.id for version in store().all()}
    (left,) = collection.leftovers(store())
    assert gc.main(["--store=runs/.store", "--delete", "--yes"]) == 0
    assert not left.exists()


def test_collecting_is_a_dry_run_and_asks(house, capsys, monkeypatch):
    old = house("corpus", width=1)
    current = house("corpus", width=2)
    command = ["--store=runs/.store"]
    assert gc.main(command) == 0
    output = capsys.readouterr().out
    assert f"{old.id}  finished  " in output and current.id not in output
    assert "1 stay" in output and "--delete deletes, after asking" in output and old.folder.is_dir()
    assert gc.main([*command, "--delete"]) == 1
    assert "Cannot ask: stdin is not a terminal" in capsys.readouterr().err and old.folder.is_dir()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, code in (("n", 1), ("", 1), ("y", 0)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        assert gc.main([*command, "--delete"]) == code
        assert old.folder.is_dir() == (answer != "y")
    assert current.folder.is_dir()
    assert "freed" in capsys.readouterr().out


def test_half_written_manifests_are_reported_and_collected(house, capsys):
    old = house("corpus", width=1)
    house("corpus", width=2)
    (old.folder / "stage.json").write_text('{"format": 2, "finge')
    age(old)
    assert gc.main(["--store=runs/.store"]) == 0
    assert f"{old.id}  its manifest was cut short" in capsys.readouterr().out
    assert gc.main(["--store=runs/.store", "--delete", "--yes"]) == 0
    assert not old.folder.exists()


@pytest.fixture
def training(house):
    """An old version with what continues a training, and one more that is current."""
    root = links.Path("runs/.store").absolute()
    plan = store_kit.plan(links.Path("runs/a/corpus").absolute(), "toy", store=root, width=1)
    made = {"checkpoints/6/optimizer/part": "y" * 1000, "checkpoints/6/integrity.json": "{}"}
    version = store_kit.finished(plan, made | {"out.txt": "x"}, {"text": "out.txt"})
    age(version)
    house("corpus", width=2)
    return version


DROPPED = ("checkpoints/6/optimizer/part", "checkpoints/6/integrity.json")


def drop(folder):
    (folder / DROPPED[0]).unlink(missing_ok=True)
    (folder / DROPPED[1]).write_text('{"dropped": ["optimizer"]}')


def test_slimming_keeps_a_version_that_counts(training):
    (entry,) = collection.plan(store()).removable
    assert gc._optimizer_bytes(entry) == 1000

    def killed(folder):
        drop(folder)
        raise SystemExit("killed after a part was removed")

    with pytest.raises(SystemExit):
        collection.slim(store(), entry, DROPPED, killed)
    half = store().read(training.folder)
    assert files.changed_files(half) == [] and not half.missing_outputs()
    (training.folder / "out.txt").write_text("edited")
    assert files.changed_files(half) == ["out.txt"]  # of the rest everything is still checked
    (training.folder / "out.txt").write_text("x")
    age(training)
    assert collection.slim(store(), entry, DROPPED, drop) == 1000 - 24
    after = store().read(training.folder)
    assert after.manifest["slimmed"] and files.changed_files(after, thorough=True) == []
    assert after.manifest["fingerprint"] == training.manifest["fingerprint"]
    assert after.identity == training.identity


def test_what_was_edited_is_not_slimmed(training):
    (entry,) = collection.plan(store()).removable
    (training.folder / "out.txt").write_text("edited by accident")
    age(training)
    assert collection.slim(store(), entry, DROPPED, drop) == 0
    assert files.changed_files(store().read(training.folder)) == ["out.txt"]


def test_what_is_pinned_or_linked_to_meanwhile_is_neither_deleted_nor_slimmed(training, house):
    (entry,) = collection.plan(store()).removable
    collection.pin(training, True)
    assert not collection.delete(store(), entry)
    assert collection.slim(store(), entry, DROPPED, drop) == 0
    collection.pin(training, False)
    reader = house("model", training.output("text"), job="train")
    age(training)
    age(reader)
    assert not collection.delete(store(), entry) and training.folder.is_dir()


def test_versions_go_after_what_was_made_from_them(house):
    data = house("data", width=1)
    model = house("model", data.output("text"), job="train", width=1)
    for link in ("data", "model"):
        os.unlink(f"runs/a/{link}")
    for number, version in enumerate((data, model)):
        age(version)
        os.utime(version.folder / "stage.json", (LONG_AGO + number, LONG_AGO + number))
    found = [entry.version.id for entry in collection.plan(store()).removable]
    assert found == [model.id, data.id]


def test_a_run_that_is_not_here_keeps_its_versions_until_it_is_forgotten(house, capsys):
    """On another machine, or moved away and not run since."""
    version = house("corpus", width=1)
    os.rename("runs/a", "moved")
    age(version)
    assert "which is not here" in reasons()[version.id]
    assert gc.main(["--store=runs/.store", "--delete", "--yes"]) == 0
    assert version.folder.is_dir()
    assert runs.main(["forget", "runs/a", "--store=runs/.store"]) == 0
    assert "forgot 1 links" in capsys.readouterr().out and reasons()[version.id] == ""


def test_listing_says_what_differs(house, capsys):
    old = house("corpus", width=1)
    current = house("corpus", width=2)
    house("tokenizer", job="tokens")
    collection.pin(old, True)
    assert runs.main(["--store=runs/.store"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("runs/.store: 3 versions, ")
    place = lines.index("corpus (job toy)")
    assert lines[place + 1].startswith(f"* {current.id}  finished ")
    assert lines[place + 1].endswith("runs/a/corpus")
    assert lines[place + 2].startswith(f"  {old.id}  finished ") and "pinned" in lines[place + 2]
    assert lines[place + 3].strip() == "width 2 -> 1"
    assert runs.main(["list", "runs/a"]) == 0
    assert "3 versions" in capsys.readouterr().out
    (links.Path("runs/b")).mkdir()
    assert runs.main(["list", "runs/b"]) == 1
    assert "no link in it points to the store" in capsys.readouterr().err


def test_pinning_and_verifying_by_id_start_of_id_or_link(house, capsys):
    version = house("corpus", width=1)
    other = house("corpus", width=2)
    base = ["--store=runs/.store"]
    assert runs.main(["pin", version.id[:10], *base]) == 0
    assert (version.folder / ".pinned").exists()
    assert runs.main(["pin", "runs/a/corpus", *base]) == 0
    assert (other.folder / ".pinned").exists()
    assert runs.main(["unpin", version.id, *base]) == 0
    assert not (version.folder / ".pinned").exists()
    assert runs.main(["verify", *base]) == 0
    (version.folder / "out.txt").write_text("edited")
    capsys.readouterr()
    assert runs.main(["verify", *base]) == 1
    output = capsys.readouterr().out
    assert f"{version.id}: changed: out.txt" in output and f"{other.id}: intact" in output
    assert runs.main(["verify", other.id, *base]) == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["pin", "--store=runs/.store"], "pin: name the versions"),
        (["pin", "toy", "--store=runs/.store"], "2 versions start with this"),
        (["pin", "tox-1", "--store=runs/.store"], "no such version in"),
        (["--store=nowhere"], "expected a store, a folder with versions/, found none"),
        (["adopt", "nowhere"], "expected folders of stages to adopt, found none"),
        (["adopt"], "name one run folder"),
    ],
)
def test_wrong_commands(house, capsys, command, message):
    house("corpus", width=1)
    house("corpus", width=2)
    assert runs.main(command) == 1
    assert message in capsys.readouterr().err


def test_a_manifest_is_json_that_people_can_read(house):
    version = house("corpus", width=1)
    text = (version.folder / "stage.json").read_text()
    assert json.loads(text) == version.manifest and "\n" in text
