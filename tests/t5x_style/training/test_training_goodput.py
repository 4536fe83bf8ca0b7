"""The account of real trainings: parts add up to the wall time, and nothing else changes."""

import functools
import time

import pytest

from t5x_style.goodput import attempts
from t5x_style.goodput.account import Account
from t5x_style.training import device_watch, metric_writer, progress
from tests.kits.toys.toy_objective import Toy, ToyPipeline
from tests.t5x_style.training import test_trainer
from tests.t5x_style.training.test_trainer import CADENCE, TEXT, Killed, killed_at


def train(folder, evaluators=(), **settings):
    """One attempt, with its account; returns the trainer."""
    run = test_trainer.build(folder, account=Account(folder / attempts.FILE), **settings)
    run.start()
    first = int(run.state.step)
    run.compile()
    run.account.save(first)
    log = metric_writer.MetricLog(folder, first)
    shown = progress.TrainingProgress("toy", first, run.cadence.steps, active=False)
    run.fit(log, shown, {}, evaluators)
    run.checkpointer.close()
    run.account.save()
    return run


def spent(folder):
    return attempts.total(attempts.read(folder / attempts.FILE))


def test_parts_add_up_to_the_wall_time(tmp_path):
    begun = time.time()
    train(tmp_path, [test_trainer.CountingEvaluator()])
    wall = time.time() - begun
    found = spent(tmp_path)
    assert found.total == pytest.approx(wall, rel=0.01)
    assert found.wall == pytest.approx(wall, rel=0.01)
    happened = {part for part, seconds in found.seconds.items() if seconds}
    assert happened >= {"step", "input", "start", "compile", "checkpoint", "evaluation"}
    assert happened <= set(attempts.PARTS) - {"refresh", attempts.LOST}


@pytest.mark.parametrize(("step", "saved", "repeated"), [(3, 0, 2), (7, 5, 1), (11, 10, 0)])
def test_a_killed_and_resumed_training_counts_everything_once(tmp_path, step, saved, repeated):
    """Killed before the first checkpoint, between a checkpoint and the next record, and after."""
    begun = time.time()
    with pytest.raises(Killed):
        train(tmp_path, pipeline=killed_at(step))
    before = attempts.read(tmp_path / attempts.FILE)[0]
    recorded = step - step % CADENCE.log_every
    assert (before.first, before.step) == (0, recorded)
    train(tmp_path)
    wall = time.time() - begun
    first, second = attempts.read(tmp_path / attempts.FILE)
    assert first == before
    assert (second.first, second.step) == (saved, 12)
    found = spent(tmp_path)
    assert (found.restarts, found.repeated) == (1, repeated)
    assert found.away == pytest.approx(second.begun - first.seen)
    assert {"start", "compile"} <= second.lost.keys() and "start" not in second.seconds
    assert ("input" in second.lost) == (repeated > 0)
    back = sum(second.lost.values())
    assert found.seconds[attempts.LOST] == pytest.approx(found.away + back)
    for part in ("step", "input", "checkpoint", "start", "compile"):
        kept = first.seconds.get(part, 0.0) + second.seconds.get(part, 0.0)
        assert found.seconds[part] == kept
    assert found.total == pytest.approx(wall, rel=0.01)


@pytest.mark.parametrize("step", [5, 11])
def test_the_account_changes_nothing(tmp_path, step):
    expected = test_trainer.digest(
        test_trainer.train(tmp_path / "without")[0], tmp_path / "without"
    )
    assert not (tmp_path / "without" / attempts.FILE).exists()
    with pytest.raises(Killed):
        train(tmp_path / "with", [test_trainer.CountingEvaluator()], pipeline=killed_at(step))
    run = train(tmp_path / "with", [test_trainer.CountingEvaluator()])
    assert test_trainer.digest(run, tmp_path / "with") == expected


class Slow(ToyPipeline):
    """Waits for a clock that the test moves, not for time."""

    def batches(self, start_step, rows):
        for batch in super().batches(start_step, rows):
            CLOCK.passed += 100.0
            yield batch


class MovedClock:
    passed = 0.0

    def __call__(self):
        return self.passed


CLOCK = MovedClock()


class SlowEvaluator:
    name = "toy"

    def evaluate(self, functions, step):
        CLOCK.passed += 7.0
        return {"zero": 0.0}


AROUND = {"input": 12 * 100.0, "checkpoint": 3 * 3.0}


@pytest.mark.parametrize(
    ("evaluators", "expected"),
    [([], AROUND), ([SlowEvaluator()], AROUND | {"evaluation": 3 * 7.0})],
)
def test_each_part_is_that_of_its_hook(tmp_path, monkeypatch, evaluators, expected):
    """On a clock that only batches, evaluation and saving move."""
    monkeypatch.setattr(device_watch.DeviceWatch, "busy", lambda self, since: 0.0)
    account = Account(None, None, CLOCK, CLOCK)
    run = test_trainer.build(tmp_path, pipeline=Slow(TEXT, 32), account=account)
    save = run.checkpointer.save

    def slowly(*arguments):
        CLOCK.passed += 3.0
        save(*arguments)

    run.checkpointer.save = slowly
    run.start()
    log = metric_writer.MetricLog(tmp_path, 0)
    run.fit(log, progress.TrainingProgress("toy", 0, 12, active=False), {}, evaluators)
    seconds = {part: value for part, value in account.seconds()[0].items() if value}
    assert seconds == expected


class Embedding(Toy):
    """Embeds its corpus before the first step."""

    def on_train_start(self, key):
        self.index[...] = self.embed(self.corpus[...])


def test_a_refresh_before_the_first_step(tmp_path):
    run = test_trainer.build(tmp_path, functools.partial(Embedding, TEXT, 32, 8, 16))
    run.start()
    assert run.account.seconds()[0]["refresh"] > 0
