"""Waiting for input while the device still computes costs nothing; the watch knows for how long."""

import threading

import pytest

from t5x_style.training import device_watch
from t5x_style.training.device_watch import DeviceWatch


class Step:
    """An array that is ready when the test says so."""

    def __init__(self):
        self.ready = threading.Event()

    def block_until_ready(self):
        self.ready.wait()


class Watch(DeviceWatch):
    """With a clock of the test."""

    time = 0.0

    def __init__(self):
        super().__init__()
        self.stamped = threading.Event()

    def now(self):
        if threading.current_thread().name == "device":  # it holds the lock that `busy` takes
            self.stamped.set()
        return self.time


@pytest.fixture(name="watch")
def make_watch(monkeypatch):
    monkeypatch.setattr(
        device_watch.jax, "block_until_ready", lambda step: step.block_until_ready()
    )
    with Watch() as watch:
        yield watch


def ended(watch, step, moment):
    """Ends a step at a moment, and waits until the watch has seen it."""
    watch.time = moment
    step.ready.set()
    watch.stamped.wait()
    watch.stamped.clear()


def test_before_the_first_step_nothing_runs(watch):
    watch.time = 5.0
    assert watch.busy(3.0) == 0


def test_a_step_that_still_runs_hides_the_whole_wait(watch):
    step = Step()
    watch.step(step)
    watch.time = 5.0
    assert watch.busy(3.0) == 2
    step.ready.set()


def test_a_step_that_ended_meanwhile_hides_the_wait_before_it(watch):
    first, second = Step(), Step()
    watch.step(first)
    ended(watch, first, 2.0)
    watch.step(second)
    ended(watch, second, 4.0)
    watch.time = 9.0
    assert watch.busy(3.0) == 1
    assert watch.busy(6.0) == 0


def test_a_step_that_fails_has_ended(watch):
    class Failed(Step):
        def block_until_ready(self):
            super().block_until_ready()
            raise RuntimeError

    step = Failed()
    watch.step(step)
    ended(watch, step, 2.0)
    watch.time = 9.0
    assert watch.busy(1.0) == 1
