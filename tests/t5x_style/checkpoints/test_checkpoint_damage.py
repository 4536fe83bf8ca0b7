"""Damaged checkpoints are named and stepped over if allowed; a full disk costs only the new one."""

import errno
import json
import resource
import shutil
from collections import namedtuple

import orbax.checkpoint as ocp
import pytest

from t5x_style.checkpoints import checksums
from t5x_style.checkpoints.checkpointing import CheckpointError
from t5x_style.workflow import stage_runner
from tests.kits.checkpoint_helpers import (
    META,
    assert_equal,
    created,
    cut,
    data_file,
    flip,
    keeper,
    names,
    saved,
    state_at,
)
from tests.t5x_style.training import test_trainer

DAMAGE = {
    "flipped": (flip, "expected sha256"),
    "cut": (cut, "expected [0-9]+ bytes, found [0-9]+"),
    "missing": (lambda path: path.unlink(), "expected [0-9]+ bytes, found no file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_falls_back_if_allowed(tmp_path, damage, capsys):
    saved(tmp_path, 1, 2, 3)
    do, message = DAMAGE[damage]
    victim = data_file(tmp_path / "3")
    do(victim)
    with pytest.raises(CheckpointError, match=message) as error:
        keeper(tmp_path).restore(*created())
    assert str(victim.relative_to(tmp_path / "3")) in str(error.value)
    assert "continue from step 2" in str(error.value) and "fall_back = True" in str(error.value)

    checkpointer = keeper(tmp_path, fall_back=True)
    state, _ = checkpointer.restore(*created())
    assert_equal(state, state_at(2))
    assert "WARNING" in capsys.readouterr().out
    assert names(tmp_path) == ["1", "2", "3.damaged"]
    checkpointer.save(state_at(3), META)  # training comes by there again
    checkpointer.close()
    assert_equal(keeper(tmp_path).restore(*created())[0], state_at(3))


@pytest.mark.parametrize("damage", [flip, cut])
def test_damage_of_the_record_itself(tmp_path, damage):
    saved(tmp_path, 1, 2)
    damage(tmp_path / "2" / checksums.FILE_NAME)
    with pytest.raises(CheckpointError, match="integrity.json: expected"):
        keeper(tmp_path).restore(*created())
    assert int(keeper(tmp_path, fall_back=True).restore(*created())[0].step) == 1


def test_nothing_undamaged_is_left(tmp_path):
    saved(tmp_path, 1)
    flip(data_file(tmp_path / "1"))
    with pytest.raises(CheckpointError, match="There is none before it"):
        keeper(tmp_path).restore(*created())
    with pytest.raises(CheckpointError, match="none among \\[1\\]"):
        keeper(tmp_path, fall_back=True).restore(*created())
    assert names(tmp_path) == ["1"]


def test_too_little_room_is_seen_before_writing(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2000, 1000, 1000))
    with pytest.raises(CheckpointError) as error:
        keeper(tmp_path).save(state_at(2), META)
    message = str(error.value)
    assert str(tmp_path) in message and "1,000 bytes are free" in message
    assert "It needs about" in message and "Step 1 is intact" in message
    assert names(tmp_path) == ["1"]


def test_disk_full_while_the_record_is_written(tmp_path, monkeypatch):
    saved(tmp_path, 1)

    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpointer = keeper(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checksums, "write", full)
        checkpointer.save(state_at(2), META, 0.5)
        with pytest.raises(CheckpointError, match="No space left on device") as error:
            checkpointer.save(state_at(3), META)  # says what became of the one before
    assert "step 2 could not be saved" in str(error.value) and "Step 1 is intact" in str(
        error.value
    )
    assert names(tmp_path) == ["1"]
    resumed = keeper(tmp_path)
    assert_equal(resumed.restore(*created())[0], state_at(1))
    resumed.save(state_at(2), META)
    resumed.close()
    assert resumed.latest() == 2


def test_disk_full_while_arrays_are_written(tmp_path):
    """The system refuses to write more than 2,000 bytes into any file."""
    saved(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpointer = keeper(tmp_path)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        with pytest.raises(CheckpointError, match="step 2 could not be saved") as error:
            checkpointer.save(state_at(2), META)
            checkpointer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "Step 1 is intact" in str(error.value)
    assert keeper(tmp_path).latest() == 1
    assert_equal(keeper(tmp_path).restore(*created())[0], state_at(1))


@pytest.mark.parametrize("where", ["save", "wait_until_finished"])
def test_disk_full_inside_orbax(tmp_path, monkeypatch, where):
    checkpointer = keeper(tmp_path, keep=1)
    checkpointer.save(state_at(1), META, 0.5)
    checkpointer.wait()

    def full(*_, **__):
        (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ocp.AsyncCheckpointer, where, full)
        with pytest.raises(CheckpointError, match="No space left on device") as error:
            checkpointer.save(state_at(2), META, 0.9)
            checkpointer.wait()
    assert "step 2 could not be saved" in str(error.value) and "Step 1 is" in str(error.value)
    assert checkpointer.best() == (1, 0.5) and checkpointer.last_saved == 1
    assert_equal(keeper(tmp_path).restore(*created())[0], state_at(1))
    checkpointer.save(state_at(3), META, 0.1)  # space was freed; 1 is the best still
    checkpointer.close()
    assert names(tmp_path) == ["1", "3"]


def test_disk_full_ends_training_which_resumes_later(tmp_path, monkeypatch):
    """As the job of a stage sees it: reported in a few lines, and no steps lost but the last."""
    record = checksums.write

    def full(folder):
        if folder.name == "10":
            raise OSError(errno.ENOSPC, "No space left on device")
        record(folder)

    whole, _ = test_trainer.train(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(checksums, "write", full)
        with pytest.raises(CheckpointError, match="Step 5 is intact") as error:
            test_trainer.train(tmp_path / "cut")
    assert stage_runner.is_users(error.value)
    run, finished = test_trainer.train(tmp_path / "cut")
    expected = test_trainer.digest(whole, tmp_path / "whole")
    assert finished and test_trainer.digest(run, tmp_path / "cut") == expected


def test_nobody_waits_for_a_failed_save_in_vain(tmp_path, monkeypatch):
    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checksums, "write", full)
    checkpointer = keeper(tmp_path)
    checkpointer.save(state_at(1), META)
    with pytest.raises(CheckpointError, match="There is none before it"):
        checkpointer.close()
    checkpointer.close()  # reported once
    with pytest.raises(CheckpointError, match="step 1 could not be saved"):
        keeper(tmp_path, asynchronous=False).save(state_at(1), META)


def test_killed_between_deleting_a_record_and_its_arrays(tmp_path):
    checkpointer = keeper(tmp_path)
    for step, value in [(1, 0.9), (2, 0.1)]:
        checkpointer.save(state_at(step), META, value)
    checkpointer.close()
    (tmp_path / "1" / checksums.FILE_NAME).unlink()
    shutil.rmtree(tmp_path / "1" / "optimizer")
    checkpointer = keeper(tmp_path)
    assert checkpointer.best() == (2, 0.1) and checkpointer.latest() == 2
    checkpointer.save(state_at(3), META, 0.0)
    checkpointer.close()
    assert names(tmp_path) == ["2", "3"]


def test_integrity_record(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"content")
    (tmp_path / checksums.TEMPORARY).write_text("from a write that was killed")
    assert not checksums.is_complete(tmp_path)
    checksums.write(tmp_path)
    assert checksums.is_complete(tmp_path) and checksums.problems(tmp_path) == []
    record = json.loads((tmp_path / checksums.FILE_NAME).read_text())
    assert list(record["files"]) == ["a/b"] and record["files"]["a/b"]["bytes"] == 7
    (tmp_path / "a" / "b").write_bytes(b"contenu")
    assert "a/b: expected sha256" in checksums.problems(tmp_path)[0]
    assert checksums.problems(tmp_path, ("c",)) == []
