"""Checkpoints: equal after a round trip on any mesh, complete or ignored, what is kept."""

import dataclasses
import functools
import logging
import shutil

import jax
import numpy as np
import pytest

from t5x_style.checkpoints import checkpointing, checksums
from t5x_style.checkpoints.checkpointing import CheckpointError, Checkpointing
from tests.kits.checkpoint_helpers import (
    META,
    TEXT,
    Wider,
    assert_equal,
    created,
    data_file,
    flat,
    flip,
    keeper,
    names,
    saved,
    state_at,
)
from tests.kits.toys.toy_objective import Corpus, Toy


@pytest.mark.parametrize(
    ("saved_on", "mesh"),
    [
        ((2, 2, 2), (2, 2, 2)),
        ((2, 2, 2), (1, 1, 1)),
        ((2, 2, 2), (8, 1, 1)),
        ((1, 1, 1), (2, 2, 2)),
    ],
)
def test_round_trip_onto_any_mesh(tmp_path, saved_on, mesh):
    before = state_at(5, mesh=saved_on)
    checkpointer = keeper(tmp_path)
    checkpointer.save(before, META, 0.5)
    checkpointer.close()

    fresh, shardings = created(mesh)
    found, meta = keeper(tmp_path).restore(fresh, shardings)
    assert_equal(found, before)
    assert meta["plan"] == "abc"
    assert isinstance(found.variables["corpus"], Corpus)
    assert found.variables["corpus"][...].dtype == np.uint16
    for array, sharding in zip(jax.tree.leaves(found), jax.tree.leaves(shardings), strict=True):
        assert array.sharding == sharding


def test_the_target_may_be_abstract(tmp_path):
    saved(tmp_path, 5)
    fresh, shardings = created()
    abstract = jax.eval_shape(lambda: fresh)
    assert_equal(keeper(tmp_path).restore(abstract, shardings)[0], state_at(5))


def test_what_is_frozen_may_change(tmp_path):
    checkpointer = keeper(tmp_path)
    before = state_at(5)
    checkpointer.save(before, META)
    frozen, meta = keeper_restore(checkpointer, frozen=("table",))
    np.testing.assert_array_equal(frozen.variables["table"][...], before.params["table"][...])
    np.testing.assert_array_equal(
        frozen.opt_state[1].mu["scale"][...], before.opt_state[1].mu["scale"][...]
    )
    assert "table" not in frozen.opt_state[1].mu and meta["plan"] == "abc"

    checkpointer.save(dataclasses.replace(frozen, step=frozen.step + 1), META)
    checkpointer.wait()
    thawed, _ = keeper_restore(checkpointer)
    np.testing.assert_array_equal(thawed.params["table"][...], before.params["table"][...])
    np.testing.assert_array_equal(
        thawed.opt_state[1].nu["scale"][...], before.opt_state[1].nu["scale"][...]
    )
    assert not np.any(thawed.opt_state[1].mu["table"][...])  # it starts from 0
    assert int(thawed.opt_state[1].count) == int(before.opt_state[1].count)
    checkpointer.close()


def keeper_restore(checkpointer, **kwargs):
    checkpointer.wait()
    return checkpointer.restore(*created(**kwargs))


def test_donating_right_after_save_does_not_reach_the_checkpoint(tmp_path):
    wide = functools.partial(Toy, TEXT, 2**16, 64, 16)  # 16 MiB, so that writing takes a while
    before = state_at(5, make=wide)
    expected = {path: array.copy() for path, array in flat(before.params, before.opt_state).items()}
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    checkpointer = keeper(tmp_path)
    checkpointer.save(before, META)
    trees = (before.params, before.opt_state)
    for _ in range(3):
        trees = jax.block_until_ready(overwrite(trees))
    checkpointer.close()
    found, _ = keeper(tmp_path).restore(*created(make=wide))
    for path, array in flat(found.params, found.opt_state).items():
        np.testing.assert_array_equal(array, expected[path], err_msg=path)


def test_half_written_is_never_used_and_deleted_by_the_next_save(tmp_path, caplog):
    saved(tmp_path, 1, 2)
    (tmp_path / "2" / checksums.FILE_NAME).unlink()
    shutil.copytree(tmp_path / "2", tmp_path / "3.orbax-checkpoint-tmp-17")
    with caplog.at_level(logging.WARNING):
        checkpointer = keeper(tmp_path)
    assert checkpointer.latest() == 1
    for name in ("2", "3.orbax-checkpoint-tmp-17"):
        assert f"ignoring {tmp_path / name}: a checkpoint that was never finished" in caplog.text
    assert_equal(checkpointer.restore(*created())[0], state_at(1))
    checkpointer.save(state_at(2), META)
    checkpointer.close()
    assert names(tmp_path) == ["1", "2"]
    assert_equal(keeper(tmp_path).restore(*created())[0], state_at(2))


def test_strays_are_named_and_spared(tmp_path, caplog):
    saved(tmp_path, 1)
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "thesis.txt").write_text("mine")
    (tmp_path / "8").mkdir()
    (tmp_path / "9").write_text("a file")
    (tmp_path / "notes").mkdir()
    with caplog.at_level(logging.WARNING):
        checkpointer = keeper(tmp_path)
    assert checkpointer.latest() == 1
    for name in ("3", "8", "9", "notes"):
        assert f"ignoring {tmp_path / name}:" in caplog.text
    checkpointer.save(state_at(3), META)
    checkpointer.close()
    assert checkpointer.latest() == 3
    assert (tmp_path / "3.stray" / "thesis.txt").read_text() == "mine"
    assert names(tmp_path) == ["1", "3", "3.stray", "9", "notes"]  # '8' was empty


def test_another_architecture_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    monkeypatch.setattr(checkpointing, "_read", None)
    with pytest.raises(CheckpointError, match="another architecture") as error:
        keeper(tmp_path).restore(*created(make=Wider))
    message = str(error.value)
    assert "parameters table: expected float32[32, 16], found float32[32, 8]" in message
    assert "parameters bias: expected float32[16], missing in the checkpoint" in message
    assert "parameters scale: not expected, the checkpoint has float32[8]" in message
    assert "optimizer 1/mu/table: expected float32[32, 16], found float32[32, 8]" in message
    assert "variables index: expected float32[64, 16], found float32[64, 8]" in message
    assert "initialise_from" in message


def test_newest_and_best_are_kept(tmp_path):
    checkpointer = keeper(tmp_path, keep=2)
    for step, value in [(1, 0.1), (2, 0.9), (3, None), (4, 0.9), (5, 0.2)]:
        checkpointer.save(state_at(step), META, value)
    assert checkpointer.best() == (2, 0.9)  # the first of equals
    checkpointer.close()
    assert names(tmp_path) == ["2", "4", "5"]
    assert keeper(tmp_path).best() == (2, 0.9)
    assert keeper(tmp_path).latest() == keeper(tmp_path).last_saved == 5


def test_a_saved_step_is_not_saved_again(tmp_path):
    saved(tmp_path, 1)
    before = (tmp_path / "1" / checksums.FILE_NAME).stat().st_mtime_ns
    saved(tmp_path, 1)
    assert (tmp_path / "1" / checksums.FILE_NAME).stat().st_mtime_ns == before


def abstract(**kwargs):
    """What an objective's parameters and its other variables look like, and where they go."""
    fresh, shardings = created(**kwargs)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        (fresh.params, fresh.variables),
        (shardings.params, shardings.variables),
    )


def test_loading_without_the_optimizer(tmp_path):
    checkpointer = keeper(tmp_path / "checkpoints")
    for step, value in [(1, 0.9), (2, 0.1)]:
        checkpointer.save(state_at(step, mesh=(2, 2, 2)), META, value)
    checkpointer.close()
    shutil.rmtree(tmp_path / "checkpoints" / "1" / "optimizer")
    best, newest = state_at(1, mesh=(2, 2, 2)), state_at(2, mesh=(2, 2, 2))
    for folder, step, expected in [
        (tmp_path, None, best),
        (tmp_path / "checkpoints", None, best),
        (tmp_path, 2, newest),
    ]:
        found = flat(*checkpointing.load(folder, *abstract(), step))
        wanted = flat(expected.params, expected.variables)
        assert found.keys() == wanted.keys()
        for path, array in wanted.items():
            np.testing.assert_array_equal(found[path], array, err_msg=path)
    arrays = checkpointing.read_parameters(tmp_path, 2)
    assert arrays.keys() == {"scale", "table"}
    np.testing.assert_array_equal(arrays["scale"], newest.params["scale"][...])


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(CheckpointError, match="expected a finished checkpoint, found none"):
        checkpointing.load(tmp_path, *abstract())
    saved(tmp_path, 1, 2)
    with pytest.raises(CheckpointError, match="no checkpoint of step 7; complete are \\[1, 2\\]"):
        checkpointing.load(tmp_path, *abstract(), 7)
    with pytest.raises(CheckpointError, match="scale: not expected"):
        checkpointing.load(tmp_path, *abstract(make=Wider))
    flip(data_file(tmp_path / "2"))
    with pytest.raises(CheckpointError, match="2 is damaged: parameters/.*Name another.*\\[1\\]"):
        checkpointing.load(tmp_path, *abstract())


def test_settings():
    with pytest.raises(ValueError, match="Checkpointing.keep: expected at least 1, found 0"):
        Checkpointing(keep=0)


def test_synchronous_saves_are_complete_at_once(tmp_path):
    checkpointer = keeper(tmp_path, asynchronous=False)
    checkpointer.save(state_at(1), META)
    assert checkpointer.latest() == 1
    checkpointer.close()
