"""The driver without machines, or without object storage: no trial fails, and none is lost."""

import itertools

import pytest

from t5x_style.storage.errors import Unreachable
from t5x_style.sweeps import points, pruning, sources
from t5x_style.sweeps.driver import STOPS, Driver
from t5x_style.sweeps.launchers import NOT_RUN, EndedJob
from t5x_style.sweeps.outcomes import STOPPED
from t5x_style.sweeps.remote_sweep import RemoteSweep
from tests.kits.toys.sweep_house import SWEEP, make_sweep_house  # noqa: F401  a fixture

ONE = SWEEP.replace("[0.1, 0.01, 0.001]", "[0.01]")  # the recipe's


class Launcher:
    """Each trial ends at once with the next exit code; without any left there is no machine."""

    devices = 8

    def __init__(self, *codes, waits=0):
        self.codes, self.started, self.waits = list(codes), [], waits
        self.last = None

    def free(self):
        return len(self.codes)

    def is_waiting(self):
        self.waits -= 1
        return self.waits >= 0

    def no_more(self):
        self.last = len(self.started)

    def start(self, trial, arguments, log):
        self.started.append(trial)
        return Waited(self.codes.pop(0))


class Waited(EndedJob):
    """It has waited for its machine all the time."""

    def waited(self):
        return 1000.0


@pytest.fixture(name="driver_of")
def make_drivers(sweep_house):
    said = []

    def make(launcher, text=SWEEP, step=1000):
        planner = sweep_house.planner(text)
        known = points.configurations(planner.sweep, *planner.no_change())
        store = planner.bound({}).recipe.store
        clock = itertools.count(step=step).__next__
        driver = Driver(
            planner, sources.Known(sources.by_seed(known, ())), pruning.pruner("none", {}),
            launcher, store.leases, RemoteSweep(planner.sweep.folder, store), said.append,
            sleep=lambda seconds: None, clock=clock,
        )  # fmt: skip
        return driver, said

    return make


def statuses(driver):
    return [one.status for one in driver.view().values()]


def test_a_trial_without_a_machine_stays_preempted_and_the_driver_ends(driver_of):
    driver, said = driver_of(Launcher(NOT_RUN, NOT_RUN))
    driver.run()
    assert statuses(driver) == ["preempted", "preempted", "queued"]
    assert not driver.has_ended() and not any("failed" in line for line in said)


def test_it_may_lack_machines_more_often_than_somebody_may_stop_it(driver_of):
    launcher = Launcher(*[NOT_RUN] * (STOPS + 1))
    driver, _ = driver_of(launcher, ONE)
    driver.run()
    assert len(launcher.started) == STOPS + 1 and statuses(driver) == ["preempted"]
    driver, _ = driver_of(Launcher(*[STOPPED] * (STOPS + 1)), ONE)
    driver.run()
    assert statuses(driver) == ["failed"]


def test_it_waits_for_machines_that_another_driver_has(driver_of):
    launcher = Launcher(waits=3)
    driver, _ = driver_of(launcher)
    driver.run()
    assert launcher.waits < 0
    driver.stop()
    launcher.waits = 3
    driver.run()
    assert launcher.waits == 3  # nobody wants them any more


def test_it_says_when_no_trial_is_left_to_start(driver_of):
    launcher = Launcher(NOT_RUN)
    driver, _ = driver_of(launcher)
    driver.run()
    assert launcher.last is None
    launcher.codes = [1, 1, 1]
    driver.run()
    assert launcher.last == 4 and set(statuses(driver)) == {"failed"}


def test_waiting_for_a_machine_is_no_time_of_a_trial(driver_of):
    driver, _ = driver_of(Launcher(NOT_RUN))
    driver.run()
    assert next(iter(driver.view().values())).seconds < 5000.0


def lack(monkeypatch, found, name, times):
    """Has a method find no object storage in those calls."""
    real, left = getattr(found, name), iter(times)

    def call(*arguments, **named):
        if next(left, False):
            raise Unreachable("gs://bucket: no answer")
        return real(*arguments, **named)

    monkeypatch.setattr(found, name, call)


@pytest.mark.parametrize("times", [[True], [False, True, True], [False, False, True, True]])
def test_a_driver_continues_after_an_outage(driver_of, monkeypatch, times):
    launcher = Launcher(1)
    driver, said = driver_of(launcher, ONE, step=1)
    lack(monkeypatch, driver._remote, "look", times)
    driver.run()
    assert statuses(driver) == ["failed"] and len(launcher.started) == 1
    assert sum("gs://bucket: no answer" in line for line in said) == 1
    assert said.count("object storage answers again") == 1


def test_a_record_that_cannot_be_written_is_written_later(driver_of, monkeypatch):
    launcher = Launcher(1)
    driver, _ = driver_of(launcher, ONE, step=1)
    lack(monkeypatch, driver.records, "write", [True, True, False, True, True])
    driver.run()
    assert statuses(driver) == ["failed"] and len(launcher.started) == 1
    (record,) = driver.view().values()
    assert record.attempts == 1


def test_an_outage_of_an_hour_ends_the_driver(driver_of, monkeypatch):
    driver, said = driver_of(Launcher(1), ONE, step=100)
    lack(monkeypatch, driver._remote, "look", itertools.repeat(True))
    with pytest.raises(Unreachable):
        driver.run()
    assert len(said) == 1 and driver._clock() >= 3600


def test_a_driver_that_is_stopped_during_an_outage_does_not_wait_for_its_end(
    driver_of, monkeypatch
):
    driver, _ = driver_of(Launcher(1), ONE, step=1)
    lack(monkeypatch, driver._remote, "look", itertools.repeat(True))
    driver.stop()
    with pytest.raises(Unreachable):
        driver.run()
    assert driver._clock() < 60
