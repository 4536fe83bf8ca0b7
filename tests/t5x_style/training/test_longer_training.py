"""A training that continues a shorter one: the same bits as one that was never interrupted."""

import dataclasses
import errno
import functools
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from t5x_style import train
from t5x_style.checkpoints import checkpoint_directory, checkpointing, checksums
from t5x_style.checkpoints.checkpointing import CheckpointError
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import embedder
from t5x_style.step import optimizers
from t5x_style.training import longer_training, metric_writer, trainer
from t5x_style.workflow import stages
from tests.kits import host_kit
from tests.kits.checkpoint_helpers import data_file, flip, names
from tests.kits.toys.toy_objective import ToyPipeline
from tests.t5x_style.checkpoints.test_checkpoint_retention import values
from tests.t5x_style.model_dependent_data import test_plan_refresh
from tests.t5x_style.training.test_trainer import TEXT, TOY

made = test_plan_refresh.made  # a fixture
CONSTANT = functools.partial(optimizers.AdamW, 0.05, 2, no_decay=("scale",), decay="constant")
STABLE = functools.partial(
    optimizers.AdamW, 0.05, 2, no_decay=("scale",), decay="warmup_stable_decay"
)
LINEAR = functools.partial(optimizers.AdamW, 0.05, 2, no_decay=("scale",))


class Killed(BaseException):
    """Simulates a process that is gone."""


@dataclasses.dataclass
class Measured:
    """An evaluator that gives these values, by step."""

    values: dict
    name: str = "toy"
    metrics: tuple = ("quality",)

    def evaluate(self, functions, step):
        norm = jnp.linalg.norm(embedder(functions, "query")({"tokens": jnp.arange(12)[None]}))
        return {"quality": self.values.get(step, 0.0), "norm": float(norm)}


def finish(folder, steps, optimizer):
    """Writes what a stage writes when its job has ended."""
    parameters = {
        "cadence.steps": repr(steps),
        "optimizer.total_steps": repr(optimizer.total_steps),
        "optimizer.decay": repr(optimizer.decay),
        "optimizer.decay_steps": repr(optimizer.decay_steps),
    }
    (folder / "stage.json").write_text(json.dumps({"parameters": parameters}))


def run(folder, optimizer, monkeypatch, parent=None, steps=None, values=None, **settings):
    """Trains to the end, by the job of a training stage."""
    monkeypatch.setattr(stages, "parent_of", lambda model_dir: parent)
    monkeypatch.setattr(metric_writer, "draw_curves", lambda *_: None)
    steps = steps or optimizer.total_steps
    train.train(
        model_dir=str(folder),
        objective=TOY,
        pipeline=ToyPipeline(TEXT, 32),
        optimizer=optimizer,
        partitioner=partitioning.Partitioner(devices=jax.devices()[:1]),
        checkpointing=checkpointing.Checkpointing(keep=2),
        cadence=trainer.Cadence(steps, log_every=2, evaluate_every=4, save_every=5),
        seed=3,
        evaluators=[Measured(values or {})],
        development_metric="toy/quality" if values else None,
        **settings,
    )
    finish(folder, steps, optimizer)
    return folder


def arrays(folder, step):
    """Everything that a checkpoint holds: parameters, optimizer, variables, step and key."""
    found = {}
    for item in ("parameters", "optimizer", "variables", "progress"):
        path = folder / "checkpoints" / str(step) / item
        if path.is_dir():
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
                tree = reader.restore(path)
            for where, leaf in jax.tree_util.tree_leaves_with_path(tree):
                found[f"{item}{jax.tree_util.keystr(where)}"] = np.asarray(leaf)
    return found


def lines(folder):
    return [
        {k: v for k, v in line.items() if not k.startswith(metric_writer.TIMING)}
        for line in metric_writer.read_lines(folder / metric_writer.JSONL)
    ]


def assert_same(longer, whole):
    """Checkpoints, the best one, and what was logged."""
    folders = [folder / "checkpoints" for folder in (longer, whole)]
    assert names(folders[0]) == names(folders[1])
    assert checkpoint_directory.best(folders[0]) == checkpoint_directory.best(folders[1])
    for step in names(folders[0]):
        found, expected = arrays(longer, step), arrays(whole, step)
        assert found.keys() == expected.keys() and found.keys() > {"progress['key']"}
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"{step} {name}")
    assert lines(longer) == lines(whole)


def test_a_constant_rate_continues_from_the_end(tmp_path, monkeypatch, capsys):
    """Also where the short training measured at its end what the long one does not measure."""
    short, whole, longer = (tmp_path / name for name in ("short", "whole", "longer"))
    values = {4: 0.5, 6: 0.9, 8: 0.4, 12: 0.3}  # every 4 steps, and at the end
    run(short, CONSTANT(6), monkeypatch, values=values)
    assert checkpoint_directory.best(short / "checkpoints") == (6, 0.9)
    assert names(short / "checkpoints") == ["4", "6"]
    run(whole, CONSTANT(12), monkeypatch, values=values)
    capsys.readouterr()
    run(longer, CONSTANT(12), monkeypatch, parent=short, values=values)
    said = capsys.readouterr().out
    assert f"[longer] continues {short} from step 6\n" in said and "resumed at step 6;" in said
    assert names(whole / "checkpoints") == ["12", "4"]
    assert checkpoint_directory.best(whole / "checkpoints") == (4, 0.5)
    assert_same(longer, whole)


def test_a_decay_at_the_end_is_left_out(tmp_path, monkeypatch, capsys):
    """What the short training reached in its decay, its best value too, is not inherited."""
    short, whole, longer = (tmp_path / name for name in ("short", "whole", "longer"))
    run(short, STABLE(8, decay_steps=2), monkeypatch, values={4: 0.5, 8: 0.9})
    assert names(short / "checkpoints") == ["4", "6", "8"]
    assert names(short / "checkpoints/6") == names(short / "checkpoints/8")  # both have all
    values = {4: 0.5, 8: 0.3, 12: 0.1}
    run(whole, STABLE(14, decay_steps=3), monkeypatch, values=values)
    assert names(whole / "checkpoints") == ["11", "14", "4"]
    run(longer, STABLE(14, decay_steps=3), monkeypatch, parent=short, values=values)
    assert f"continues {short} from step 6\n" in capsys.readouterr().out
    assert_same(longer, whole)
    again = run(
        tmp_path / "again", STABLE(16, decay_steps=1), monkeypatch, parent=longer, values=values
    )
    assert "from step 11\n" in capsys.readouterr().out
    assert_same(again, run(tmp_path / "x", STABLE(16, decay_steps=1), monkeypatch, values=values))


def test_a_linear_decay_starts_again(tmp_path, monkeypatch, capsys):
    short = run(tmp_path / "short", LINEAR(6), monkeypatch)
    capsys.readouterr()
    longer = run(tmp_path / "longer", LINEAR(8), monkeypatch, parent=short)
    said = capsys.readouterr().out
    assert "training starts from step 0" in said and "'linear' decay depends on" in said
    assert "'constant' or 'warmup_stable_decay' can be continued" in said
    assert "[longer] from scratch;" in said
    assert_same(longer, run(tmp_path / "whole", LINEAR(8), monkeypatch))


def test_a_longer_training_that_has_begun_resumes_by_itself(tmp_path, monkeypatch, capsys):
    short = run(tmp_path / "short", CONSTANT(6), monkeypatch)
    longer = run(tmp_path / "longer", CONSTANT(8), monkeypatch, parent=short)
    shutil.rmtree(short)
    capsys.readouterr()
    run(longer, CONSTANT(8), monkeypatch, parent=short)
    said = capsys.readouterr().out
    assert "resumed at step 8;" in said and "continues" not in said


def parent_of(tmp_path, steps, optimizer):
    tmp_path.mkdir(exist_ok=True)
    finish(tmp_path, steps, optimizer)
    return tmp_path


@pytest.mark.parametrize(
    ("short", "longer", "expected"),
    [
        ((6, CONSTANT(6)), (12, CONSTANT(12)), 6),
        ((6, CONSTANT(8)), (12, CONSTANT(12)), 6),
        ((8, STABLE(8, decay_steps=2)), (14, STABLE(14, decay_steps=3)), 6),
        ((8, STABLE(8, decay_steps=2)), (14, STABLE(14, decay_steps=8)), 6),
        ((8, STABLE(8, decay_steps=2)), (14, STABLE(14, decay_steps=9)), "of at most 8 it can be"),
        ((5, STABLE(8, decay_steps=2)), (14, STABLE(14, decay_steps=9)), 5),
        ((6, CONSTANT(6)), (12, STABLE(12, decay_steps=3)), 6),
        ((6, LINEAR(6)), (12, LINEAR(12)), "a 'linear' decay depends on the total number"),
        ((6, LINEAR(6, decay="cosine")), (12, LINEAR(12, decay="cosine")), "a 'cosine' decay"),
        ((6, CONSTANT(6)), (12, LINEAR(12)), "a 'linear' decay"),
        ((6, LINEAR(12)), (12, LINEAR(12)), 6),  # the same rates: it merely stopped early
        ((8, STABLE(8, decay_steps=6)), (4, STABLE(8, decay_steps=6)), "has 8 steps, more than"),
    ],
)
def test_how_a_training_can_be_continued(tmp_path, short, longer, expected):
    parent = parent_of(tmp_path / "parent", *short)
    step, said = longer_training.how(parent, longer[1], longer[0])
    if isinstance(expected, int):
        assert (step, said) == (expected, f"continues {parent} from step {expected}")
    else:
        assert step is None and expected in said and "starts from step 0" in said


def test_a_decay_from_step_0_leaves_nothing_to_continue(tmp_path):
    optimizer = optimizers.AdamW(1e-3, 0, 8, decay="warmup_stable_decay", decay_steps=8)
    longer = dataclasses.replace(optimizer, total_steps=9)
    step, said = longer_training.how(parent_of(tmp_path, 8, optimizer), longer, 9)
    assert step is None and "no step before its decay" in said


def test_what_the_record_leaves_out_has_its_default(tmp_path):
    parameters = {"cadence.steps": "6", "optimizer.total_steps": "6"}
    (tmp_path / "stage.json").write_text(json.dumps({"parameters": parameters}))
    assert longer_training.how(tmp_path, LINEAR(12), 12)[0] is None
    parameters["optimizer.decay"] = "'constant'"
    (tmp_path / "stage.json").write_text(json.dumps({"parameters": parameters}))
    assert longer_training.how(tmp_path, CONSTANT(12), 12)[0] == 6


@pytest.mark.parametrize("text", ["", "{}", '{"parameters": {"cadence.steps": "many"}}'])
def test_a_record_that_cannot_be_read(tmp_path, text):
    (tmp_path / "stage.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"stage.json: expected the record .*move it away"):
        longer_training.how(tmp_path, CONSTANT(12), 12)


def test_retrieval_on_the_host_is_not_continued(tmp_path):
    parent = parent_of(tmp_path, 6, CONSTANT(6))
    step, said = longer_training.how(
        parent, CONSTANT(12), 12, host_kit.retrieval(tmp_path / "host")
    )
    assert step is None and "indexes that were built while that training ran" in said


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A finished training of 8 steps; step 4 is the best before its decay from step 6 on."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("short")
        return run(folder, STABLE(8, decay_steps=2), patch, values={4: 0.5, 8: 0.9})


def test_what_is_copied(short, tmp_path):
    copied = longer_training.seed(short, tmp_path, 6, evaluate_every=4)
    assert copied[-3:] == ["metrics.jsonl", "checkpoints/4", "checkpoints/6"]
    assert len(copied) == 4 and copied[0].startswith("tensorboard/events")
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.stat().st_nlink == 1 and not path.is_symlink() for path in found)
    assert names(tmp_path) == ["checkpoints", "metrics.jsonl", "tensorboard"]
    assert names(tmp_path / "checkpoints") == ["4", "6"]
    assert all(line["step"] <= 6 for line in lines(tmp_path)) and lines(tmp_path)
    for step in ("4", "6"):
        one, other = (folder / "checkpoints" / step for folder in (short, tmp_path))
        assert checksums.problems(other) == []
        assert checksums.recorded(one) == checksums.recorded(other)
    assert checkpoint_directory.resumable_steps(tmp_path / "checkpoints") == [6]


def test_the_best_checkpoint_is_copied_without_its_optimizer(tmp_path):
    """With it, it would be one to resume from before the other files are there."""
    values(tmp_path / "short/checkpoints", {1: 0.9, 2: 0.1, 3: 0.2}, keep=3)
    longer_training.seed(tmp_path / "short", tmp_path / "longer", 3)
    copies = tmp_path / "longer/checkpoints"
    assert names(copies) == ["1", "3"] and checkpoint_directory.best(copies) == (1, 0.9)
    assert checkpoint_directory.resumable_steps(copies) == [3]
    assert "optimizer" not in names(copies / "1") and checksums.problems(copies / "1") == []


@pytest.mark.parametrize("step", ["6", "4"])  # what is continued from, and the best up to there
def test_a_damaged_checkpoint_is_not_continued(short, tmp_path, monkeypatch, step):
    shutil.copytree(short, tmp_path / "short")
    victim = data_file(tmp_path / "short/checkpoints" / step)
    flip(victim)
    with pytest.raises(CheckpointError, match="is damaged: .*expected sha256") as error:
        run(
            tmp_path / "x",
            STABLE(14, decay_steps=3),
            monkeypatch,
            tmp_path / "short",
            values={4: 1},
        )
    assert str(victim.relative_to(tmp_path / "short/checkpoints" / step)) in str(error.value)
    assert f"Restore {tmp_path / 'short'} from a copy" in str(error.value)
    assert not (tmp_path / "x/checkpoints").exists()


def test_an_absent_checkpoint_is_not_continued(short, tmp_path):
    shutil.copytree(short, tmp_path / "short")
    shutil.rmtree(tmp_path / "short/checkpoints/6")
    with pytest.raises(CheckpointError, match="6: expected a complete checkpoint, found none. Res"):
        longer_training.seed(tmp_path / "short", tmp_path / "x", 6)


def test_a_checkpoint_whose_optimizer_was_deleted_is_not_continued(short, tmp_path):
    shutil.copytree(short, tmp_path / "short")
    checkpoint_directory.drop_optimizer(tmp_path / "short/checkpoints/6")
    step, said = longer_training.how(tmp_path / "short", STABLE(14, decay_steps=3), 14)
    assert step is None and "step 6, but the optimizer of that checkpoint has been deleted" in said
    with pytest.raises(CheckpointError, match="with its optimizer, which has been deleted"):
        longer_training.seed(tmp_path / "short", tmp_path / "x", 6)


def test_copying_that_is_interrupted_anywhere_continues(short, tmp_path, monkeypatch):
    """No checkpoint counts before the last one is whole; what is left does no harm."""
    target = tmp_path / "longer"
    copyfile, replace = shutil.copyfile, checksums.os.replace
    calls = 0

    def at(call, original):
        def patched(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == call:
                raise Killed
            return original(*args, **kwargs)

        return patched

    kills = 0
    while True:
        calls = 0
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copyfile", at(3 * kills + 1, copyfile))
            patch.setattr(checksums.os, "replace", at(3 * kills + 1, replace))
            try:
                longer_training.seed(short, target, 6, evaluate_every=4)
                break
            except Killed:
                kills += 1
        assert checkpoint_directory.resumable_steps(target / "checkpoints") == []
    assert kills > 5 and names(target / "checkpoints") == ["4", "6"]
    longer = run(target, STABLE(14, decay_steps=3), monkeypatch, values={4: 0.5})
    whole = run(tmp_path / "whole", STABLE(14, decay_steps=3), monkeypatch, values={4: 0.5})
    assert_same(longer, whole)


def test_a_full_disk_is_named_and_nothing_is_left(short, tmp_path, monkeypatch):
    copyfile = shutil.copyfile

    def full(source, target):
        if "checkpoints/6" in str(source):
            raise OSError(errno.ENOSPC, "No space left on device")
        return copyfile(source, target)

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(CheckpointError, match="step 6 .*No space left on device.*Free space"):
        longer_training.seed(short, tmp_path, 6, evaluate_every=4)
    assert names(tmp_path / "checkpoints") == ["4"]  # whole, and not to be resumed from
    assert checkpoint_directory.resumable_steps(tmp_path / "checkpoints") == []


@pytest.mark.slow
@pytest.mark.parametrize(("short", "name"), [(6, "000001.npz"), (8, None)])
def test_a_plan_of_the_model_is_continued(made, tmp_path, monkeypatch, short, name):
    """A plan rules 4 steps: in the middle of one it is copied, at its end the next is made."""
    constant = functools.partial(optimizers.AdamW, 0.01, 2, decay="constant")

    def trained(folder, steps):
        cadence = dataclasses.replace(test_plan_refresh.CADENCE, steps=steps)
        with monkeypatch.context() as patch:
            patch.setattr(optimizers, "AdamW", lambda *_: constant(steps))
            return test_plan_refresh._fit(folder, made, cadence=cadence)

    trained(tmp_path / "short", short)
    every = test_plan_refresh.CADENCE.evaluate_every
    copied = longer_training.seed(
        tmp_path / "short", tmp_path / "longer", short, every, test_plan_refresh._source(made)
    )
    assert [path for path in copied if path.startswith("plans/")] == (
        [f"plans/{name}"] if name else []
    )
    longer, whole = trained(tmp_path / "longer", 10), trained(tmp_path / "whole", 10)
    assert test_plan_refresh._digest(longer) == test_plan_refresh._digest(whole)
    assert lines(tmp_path / "longer") == lines(tmp_path / "whole")


def test_a_plan_that_is_gone(made, short, tmp_path):
    source = test_plan_refresh._source(made)
    with pytest.raises(CheckpointError, match=re.escape("expected plan 1, in the middle of which")):
        longer_training.seed(short, tmp_path, 6, source=source)
    source = dataclasses.replace(source, every=3)
    assert longer_training.seed(short, tmp_path, 6, source=source)[-1] == "checkpoints/6"


def test_the_plan_that_rules_the_next_step_is_copied(made, short, tmp_path):
    shutil.copytree(short, tmp_path / "short")
    (tmp_path / "short/plans").mkdir()
    for version in (0, 1):
        (tmp_path / f"short/plans/{version:06d}.npz").write_bytes(bytes([version]))
    source = test_plan_refresh._source(made)
    copied = longer_training.seed(tmp_path / "short", tmp_path / "longer", 6, source=source)
    assert [path for path in copied if path.startswith("plans/")] == ["plans/000001.npz"]
    assert (tmp_path / "longer/plans/000001.npz").read_bytes() == bytes([1])
