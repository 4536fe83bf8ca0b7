"""The command `kennel health`: what it prints, its exit codes, and trainings that really ran."""

import dataclasses
import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from t5x_style import health
from t5x_style.checkpoints import checkpointing
from t5x_style.configuration.gin_reader import REPOSITORY
from t5x_style.distributed import partitioning
from t5x_style.goodput import attempts
from t5x_style.goodput.attempts import Attempt
from t5x_style.interfaces.objective import GroupShape
from t5x_style.step import optimizers
from t5x_style.training import hooks, metric_writer, progress, trainer
from tests.kits import training_logs
from tests.kits.toys.toy_objective import Toy, ToyPipeline
from tests.kits.training_logs import changed, healthy

LOSS = "train/loss"
TEXT = GroupShape(rows=16, length=12, segments=1)
STEPS = 120


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(capsys, *argv):
    """The exit code, and the lines that were printed."""
    code = health.main(argv)
    output = capsys.readouterr()
    return code, (output.out + output.err).splitlines()


def marks(lines):
    """(mark, check) of each finding."""
    return [tuple(line.split()[:2]) for line in lines if line.startswith("  ")]


def test_a_healthy_run(tmp_path, capsys):
    training_logs.training(tmp_path / "runs/a", healthy())
    code, lines = run(capsys, "runs/a")
    assert code == 0 and lines[0] == "retriever: finished at step 1,000"
    assert lines[-1] == "healthy: 0 wrong, 1 notes, 11 checks passed"
    assert [one for one in marks(lines) if one[0] != "ok"] == [("note", "reference")]


def test_an_unhealthy_run(tmp_path, capsys):
    lines = changed(healthy(), LOSS, lambda step, old: float("nan") if step > 500 else old)
    training_logs.training(tmp_path / "runs/a", lines)
    code, lines = run(capsys, "runs/a")
    assert code == 1 and lines[-1].startswith("not healthy: 1 wrong")
    (wrong,) = [line for line in lines if line.startswith("  WRONG")]
    assert "train/loss is not finite at step 520. That update was not applied" in wrong


def test_a_stage_by_itself_and_a_run_that_was_stopped(tmp_path, capsys):
    training_logs.unfinished(tmp_path / "runs/a", healthy(steps=400))
    for folder in ("runs/a/retriever", "runs/a"):
        code, lines = run(capsys, folder)
        assert code == 0
        assert lines[0].startswith("retriever: stopped at step 400 of 1,000; the command that")


def test_a_training_that_has_logged_nothing_is_not_called_good(tmp_path, capsys):
    training_logs.unfinished(tmp_path / "runs/a", [])
    code, lines = run(capsys, "runs/a")
    assert code == 0 and ("note", "finite") in marks(lines) and "ok" not in dict(marks(lines))


def test_two_runs_of_ones_own_are_compared(tmp_path, capsys):
    training_logs.training(tmp_path / "runs/a", healthy(1))
    training_logs.training(tmp_path / "runs/b", healthy(2), seed=2)
    code, lines = run(capsys, "runs/b", "--reference=runs/a")
    assert code == 0 and marks(lines).count(("ok", "reference")) == 3
    worse = changed(healthy(3), LOSS, lambda step, old: old * 1.6)
    warm = {"objective.embedding_config.temperature": 0.1}
    training_logs.training(tmp_path / "runs/c", worse, seed=3, **warm)
    code, lines = run(capsys, "runs/c", "--reference=runs/a", "--picture=c.png")
    assert code == 1 and marks(lines).count(("WRONG", "reference")) == 1
    assert any('has other settings: embedding_config.temperature "0.07" -> "0.1"' in line
               for line in lines)  # fmt: skip
    assert (tmp_path / "c.png").stat().st_size > 5000


def test_a_reference_is_written_and_used(tmp_path, capsys):
    for seed in (1, 2, 3, 4):
        training_logs.training(tmp_path / f"runs/{seed}", healthy(seed), seed=seed)
    code, lines = run(capsys, "--write=mine.json", "runs/1", "runs/2", "runs/3")
    assert code == 0 and lines == ["mine.json: curves of retriever from 3 runs"]
    assert json.loads((tmp_path / "mine.json").read_text())["seeds"] == ["1", "2", "3"]
    code, lines = run(capsys, "--write=two.json", "runs/1", "runs/2")
    assert code == 0 and lines[1].startswith("note: 2 runs show little of how seeds differ")
    code, lines = run(capsys, "runs/4", "--reference=mine.json")
    assert code == 0 and marks(lines).count(("ok", "reference")) == 3
    assert any("band of mine (3 runs)" in line for line in lines)


def test_trainings_of_one_folder_each_are_compared_whatever_their_names(tmp_path, capsys):
    training_logs.training(tmp_path / "runs/a", healthy(1), name="first")
    training_logs.training(tmp_path / "runs/b", healthy(2), name="second", seed=2)
    assert run(capsys, "runs/b/second", "--reference=runs/a/first")[0] == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("runs/none", "runs/none: expected the folder of a run, such as runs/quickstart"),
        ("runs", "expected a run with a training stage, found none"),
        ("runs/a runs/b", "name one run to check; a second is --reference=RUN_DIR"),
        ("runs/a --reference=none", "--reference=none: expected a file that --write made"),
        ("runs/a --reference=runs/two", "has trainings other, third; the run has retriever"),
        ("--write=a.json runs/a runs/a", "expected runs with different seeds, found ['1', '1']"),
    ],
)
def test_wrong_use_is_exit_code_2(tmp_path, capsys, argv, message):
    training_logs.training(tmp_path / "runs/a", healthy())
    training_logs.training(tmp_path / "runs/two", healthy(2), name="other", seed=2)
    training_logs.training(tmp_path / "runs/two", healthy(3), name="third", seed=3)
    code, lines = run(capsys, *argv.split())
    assert code == 2 and len(lines) == 1 and message in lines[0]


def test_a_damaged_log_is_named(tmp_path, capsys):
    place = training_logs.unfinished(tmp_path / "runs/a", healthy(steps=100))
    log = place / metric_writer.JSONL
    log.write_text(f"cut short\n{log.read_text()}")
    code, lines = run(capsys, "runs/a")
    assert code == 2 and "line 1: not JSON" in lines[0] and "log is damaged" in lines[0]
    log.write_text(
        f"{training_logs.text(healthy(steps=200))}{{'step'"
    )  # a line that is written now
    assert run(capsys, "runs/a")[0] == 0


def test_the_account_of_time_takes_the_place_of_the_estimate(tmp_path, capsys):
    version = training_logs.training(tmp_path / "runs/a", healthy())
    (estimate,) = [line for line in run(capsys, "runs/a")[1] if "goodput" in line]
    assert estimate.endswith("86% of 110 s computed steps (input wait 5%, evaluation 5%, other 5%)")
    parts = {"start": 20.0, "compile": 5.0, "input": 10.0, "step": 60.0, "checkpoint": 5.0}
    attempts.write(version.folder / attempts.FILE, [Attempt(1000.0, 1100.0, 0, 1000, parts, {})])
    lines = run(capsys, "runs/a")[1]
    (exact,) = [line for line in lines if "goodput" in line]
    assert exact.endswith(
        "60% of 100 s computed steps (input wait 10%, start-up 20%, compile 5%, checkpoint 5%)"
    )
    assert any("steps waited for input during 14.3% of their time" in line for line in lines)


def test_a_damaged_account_is_named(tmp_path, capsys):
    version = training_logs.training(tmp_path / "runs/a", healthy())
    (version.folder / attempts.FILE).write_text("{}")
    code, lines = run(capsys, "runs/a")
    assert code == 2 and "goodput.json: expected attempts with begun" in lines[0]


def test_it_needs_no_jax(tmp_path):
    training_logs.training(tmp_path / "runs/a", healthy())
    code = (
        "import sys\nfrom t5x_style import health\ncode = health.main(['runs/a'])\n"
        "print(code, sorted({'jax', 'flax', 'matplotlib', 'tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0 []"


class Poisoned(ToyPipeline):
    """Its batches make the loss infinite at `poison_step`, together with `Fragile`."""

    def batch(self, step, rows=None):
        batch = super().batch(step, rows)
        batch["text"]["tokens"] %= 31
        if step == self.poison_step:
            batch["text"]["tokens"][:] = 31
        return batch


class Fragile(Toy):
    """Its loss is infinite if a token is 31."""

    def loss(self, batch, key):
        mean, metrics = super().loss(batch, key)
        return mean * jnp.where((batch["text"]["target"] == 31).any(), jnp.inf, 1.0), metrics


def really_trained(folder, rate, make=Toy, pipeline=ToyPipeline, poison=-1):
    """Trains a toy for STEPS steps and makes its log that of a run."""
    optimizer = optimizers.AdamW(rate, 5, STEPS, no_decay=("scale",))
    run = trainer.Trainer(
        functools.partial(make, TEXT, 32, 8, 16),
        pipeline(TEXT, 32, poison_step=poison),
        optimizer,
        partitioning.Partitioner(partitioning.MeshShape(1, 1, 1), devices=jax.devices()[:1]),
        checkpointing.Checkpointer(folder / "checkpoints", checkpointing.Checkpointing(keep=1)),
        trainer.Cadence(STEPS, log_every=4, evaluate_every=STEPS, save_every=STEPS),
        seed=3,
    )
    run.start()
    shown = progress.TrainingProgress("toy", 0, STEPS, active=False)
    try:
        run.fit(metric_writer.MetricLog(folder, 0), shown, {})
    except hooks.NonFiniteError:
        assert poison >= 0
    settings = {
        f"optimizer.{field.name}": repr(getattr(optimizer, field.name))
        for field in dataclasses.fields(optimizer)
    }
    settings |= {"cadence.steps": STEPS, "development_metric": "None"}
    lines = metric_writer.read_lines(folder / metric_writer.JSONL)
    training_logs.training(folder / "run", lines, **settings)
    return str(folder / "run")


def wrong(lines):
    return {check for mark, check in marks(lines) if mark == "WRONG"}


def test_trainings_that_really_ran(tmp_path, capsys):
    """A learning rate that fits, one of nearly nothing, one far too high; an infinite loss."""
    good = really_trained(tmp_path / "good", 0.05)
    code, lines = run(capsys, good)
    assert code == 0 and wrong(lines) == set(), lines
    code, lines = run(capsys, really_trained(tmp_path / "still", 1e-9), f"--reference={good}")
    assert code == 1 and wrong(lines) >= {"loss", "reference"}
    code, lines = run(capsys, really_trained(tmp_path / "high", 5.0), f"--reference={good}")
    assert code == 1 and wrong(lines) >= {"reference"} and len(wrong(lines)) > 1, lines
    broken = really_trained(tmp_path / "broken", 0.05, Fragile, Poisoned, 60)
    code, lines = run(capsys, broken)
    assert code == 1 and "finite" in wrong(lines)
    assert any("train/loss is not finite at step 61." in line for line in lines)
