"""Which checkpoints stay, during a training and after it; and what a crash in between leaves."""

import dataclasses
import functools
import shutil

import numpy as np
import pytest

from t5x_style.checkpoints import checkpoint_directory, checkpointing, checksums, restored_model
from t5x_style.checkpoints.checkpoint_directory import Shared
from t5x_style.checkpoints.checkpointing import CheckpointError
from t5x_style.step import optimizers
from tests.kits.checkpoint_helpers import (
    META,
    assert_equal,
    created,
    data_file,
    flip,
    keeper,
    names,
    saved,
    state_at,
)
from tests.t5x_style.training import test_trainer


class Killed(BaseException):
    """Simulates a process that is gone."""


def values(folder, steps, keep=2, shared=None):
    """Saves checkpoints with these development metrics: step -> value."""
    checkpointer = keeper(folder, keep)
    checkpointer.shared = shared
    for step, value in steps.items():
        checkpointer.save(state_at(step), META, value)
    checkpointer.close()
    return checkpointer


def items(folder, step):
    return {name for name in names(folder / str(step)) if (folder / str(step) / name).is_dir()}


BARE = {"parameters", "variables", "progress", "meta"}
FULL = BARE | {"optimizer"}


def test_what_a_longer_training_continues_from_stays(tmp_path):
    steps = {1: 0.5, 2: 0.8, 3: 0.7, 4: None, 5: 0.9, 6: 0.1, 7: 0.1, 8: 0.1}
    values(tmp_path, steps, keep=1, shared=Shared(3, 1))
    # 3: from there; 2: the best up to there; 5: the best of all
    assert names(tmp_path) == ["2", "3", "5", "8"]


def test_a_value_that_the_longer_training_does_not_measure_does_not_replace_one_that_it_does(
    tmp_path,
):
    checkpointer = values(tmp_path, {4: 0.5, 8: 0.4, 9: 0.9}, keep=1, shared=Shared(9, 4))
    assert names(tmp_path) == ["4", "9"] and checkpointer.best() == (9, 0.9)
    checkpointer.thin()
    assert items(tmp_path, 4) == BARE and items(tmp_path, 9) == FULL
    assert checkpoint_directory.best(tmp_path, Shared(9, 4).includes) == (4, 0.5)


@pytest.mark.parametrize(
    ("steps", "shared", "full", "bare"),
    [
        ({1: 0.1, 2: 0.9, 3: 0.2, 4: 0.1}, Shared(4, 1), [4], [2]),
        ({1: 0.1, 2: 0.2, 3: 0.1, 4: 0.9}, Shared(4, 1), [4], []),  # the last is the best
        ({1: 0.1, 2: 0.9, 3: 0.1, 4: 0.1}, Shared(2, 1), [2, 4], []),  # the branch is the best
        ({1: 0.5, 2: 0.1, 3: 0.9, 4: 0.1}, Shared(2, 1), [2, 4], [1, 3]),
        ({1: None, 2: None, 3: None}, Shared(3, 1), [3], []),
        ({1: 0.9, 2: None, 3: None}, None, [3], [1]),
        ({3: None, 4: None}, Shared(2, 1), [4], []),  # resumed after the branch
    ],
)
def test_what_a_finished_training_keeps(tmp_path, steps, shared, full, bare):
    checkpointer = values(tmp_path, steps, keep=9, shared=shared)
    best = checkpointer.best()
    checkpointer.thin()
    assert names(tmp_path) == [str(step) for step in sorted([*full, *bare])]
    assert all(items(tmp_path, step) == FULL for step in full)
    assert all(items(tmp_path, step) == BARE for step in bare)
    again = keeper(tmp_path)
    assert again.best() == best and again.latest() == again.last_saved == max(steps)
    assert_equal(again.restore(*created())[0], state_at(max(steps)))
    for step in (*full, *bare):
        arrays = checkpointing.read_parameters(tmp_path, step)
        np.testing.assert_array_equal(arrays["scale"], state_at(step).params["scale"][...])


def test_keep_may_change_in_the_middle(tmp_path):
    steps = {step: None for step in range(1, 6)}
    shared = Shared(2, 1)
    values(tmp_path, steps, keep=9, shared=shared)
    assert names(tmp_path) == ["1", "2", "3", "4", "5"]
    values(tmp_path, {6: None}, keep=1, shared=shared)
    assert names(tmp_path) == ["2", "6"]
    values(tmp_path, {7: None, 8: None}, keep=2, shared=shared).thin()
    assert names(tmp_path) == ["2", "8"]


@pytest.mark.parametrize("where", ["replace", "rmtree"])
def test_killed_while_an_optimizer_is_deleted(tmp_path, monkeypatch, where):
    """Before the record is replaced it is complete with it, afterwards without it."""
    saved(tmp_path, 1)
    fingerprint = checksums.recorded(tmp_path / "1")

    def killed(path, *_, **__):
        if where == "rmtree":
            next(path.rglob("_METADATA")).unlink()  # some of it is gone already
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checksums.os if where == "replace" else checksums.shutil, where, killed)
        with pytest.raises(Killed):
            checkpoint_directory.drop_optimizer(tmp_path / "1")
    assert checkpoint_directory.complete_steps(tmp_path) == [1]
    assert checksums.problems(tmp_path / "1") == []
    assert (tmp_path / "1/optimizer").exists()
    if where == "replace":
        assert_equal(keeper(tmp_path).restore(*created())[0], state_at(1))
    else:
        assert keeper(tmp_path).latest() is None
    for _ in range(2):
        checkpoint_directory.drop_optimizer(tmp_path / "1")
        assert checkpoint_directory.complete_steps(tmp_path) == [1]
        assert checksums.problems(tmp_path / "1") == []
        assert items(tmp_path, 1) == BARE
        assert checksums.recorded(tmp_path / "1") == fingerprint


@pytest.mark.parametrize("call", range(1, 7))
def test_killed_while_thinning(tmp_path, monkeypatch, call):
    """At each deletion and each new record: what stays is readable, and thinning continues."""
    values(tmp_path, {1: 0.5, 2: 0.1, 3: 0.9, 4: 0.1, 5: 0.1}, keep=9)
    (tmp_path / "6.orbax-checkpoint-tmp").mkdir()
    calls = 0

    def counted(original, *args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        for owner, name in ((checksums.os, "replace"), (shutil, "rmtree")):
            patch.setattr(owner, name, functools.partial(counted, getattr(owner, name)))
        with pytest.raises(Killed):
            checkpoint_directory.thin(tmp_path, {2, 5}, {1, 3})
    for step in (1, 2, 3, 5):
        assert checksums.problems(tmp_path / str(step)) == []
    assert checkpoint_directory.best(tmp_path) == (3, 0.9)
    assert checkpoint_directory.resumable_steps(tmp_path)[-1] == 5
    checkpoint_directory.thin(tmp_path, {2, 5}, {1, 3})
    assert names(tmp_path) == ["1", "2", "3", "5"]
    assert [items(tmp_path, step) for step in (1, 2, 3, 5)] == [BARE, FULL, BARE, FULL]


def test_nobody_resumes_without_an_optimizer(tmp_path):
    values(tmp_path, {1: 0.1, 2: 0.9}, keep=9)
    checkpoint_directory.drop_optimizer(tmp_path / "2")
    checkpointer = keeper(tmp_path)
    assert checkpointer.latest() == checkpointer.last_saved == 1
    assert_equal(checkpointer.restore(*created())[0], state_at(1))
    flip(data_file(tmp_path / "1"))
    with pytest.raises(CheckpointError, match=r"There is none before it"):
        keeper(tmp_path).restore(*created())
    checkpoint_directory.drop_optimizer(tmp_path / "1")
    with pytest.raises(CheckpointError, match=r"with its optimizer, found none among \[1, 2\]"):
        keeper(tmp_path).restore(*created())


def test_all_optimizers_of_a_finished_training(tmp_path):
    checkpointer = values(tmp_path / "checkpoints", {1: 0.9, 2: None, 3: None}, 9, Shared(2, 1))
    checkpointer.thin()
    gone = ["checkpoints/2/optimizer", "checkpoints/3/optimizer"]
    assert checkpoint_directory.drop_optimizers(tmp_path) == gone
    assert all(items(tmp_path / "checkpoints", step) == BARE for step in (1, 2, 3))
    assert checkpoint_directory.drop_optimizers(tmp_path) == []
    assert checkpoint_directory.drop_optimizers(tmp_path / "another") == []
    arrays = checkpointing.read_parameters(tmp_path, 3)
    np.testing.assert_array_equal(arrays["scale"], state_at(3).params["scale"][...])


def test_damage_is_found_without_the_optimizer(tmp_path):
    saved(tmp_path, 1, 2)
    checkpoint_directory.drop_optimizer(tmp_path / "2")
    flip(data_file(tmp_path / "2"))
    with pytest.raises(CheckpointError, match=r"2 is damaged: .*expected sha256"):
        checkpoint_directory.find(tmp_path, 2)


@pytest.mark.parametrize("damage", [flip, lambda path: path.unlink()])
def test_an_optimizer_of_what_is_not_complete(tmp_path, damage):
    saved(tmp_path, 1)
    (tmp_path / "1" / checksums.FILE_NAME).write_text("{")
    damage(tmp_path / "1" / checksums.FILE_NAME)
    with pytest.raises(CheckpointError, match=r"1: expected a complete checkpoint.*Move the"):
        checkpoint_directory.drop_optimizer(tmp_path / "1")


def test_the_fingerprint_of_a_model_stays_when_its_training_is_thinned(tmp_path):
    checkpointer = values(tmp_path / "checkpoints", {1: 0.1, 2: 0.9, 3: 0.2}, keep=9)
    before = restored_model.fingerprint(str(tmp_path))
    checkpointer.thin()
    assert restored_model.fingerprint(str(tmp_path)) == before


def test_the_trainer_saves_where_the_decay_begins(tmp_path, monkeypatch):
    stable = dataclasses.replace(test_trainer.OPTIMIZER, decay="warmup_stable_decay", decay_steps=5)
    monkeypatch.setattr(test_trainer, "OPTIMIZER", stable)
    test_trainer.train(tmp_path / "whole")  # saves at 5, 7, 10 and 12; keeps 2
    assert checkpoint_directory.complete_steps(tmp_path / "whole/checkpoints") == [7, 10, 12]
    short = dataclasses.replace(test_trainer.CADENCE, steps=6)
    test_trainer.train(tmp_path / "short", cadence=short)  # ends before the decay begins
    assert checkpoint_directory.complete_steps(tmp_path / "short/checkpoints") == [5, 6]
    monkeypatch.setattr(
        test_trainer, "OPTIMIZER", optimizers.AdamW(0.05, 2, 12, no_decay=("scale",))
    )
    test_trainer.train(tmp_path / "linear")
    assert checkpoint_directory.complete_steps(tmp_path / "linear/checkpoints") == [10, 12]
