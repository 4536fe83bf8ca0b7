"""The driver and a launcher whose machines are lacking: no trial fails for it, and none waits."""

import pytest

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

    def make(launcher, text=SWEEP):
        planner = sweep_house.planner(text)
        known = points.configurations(planner.sweep, *planner.no_change())
        store = planner.bound({}).recipe.store
        clock = iter(range(0, 10**9, 1000)).__next__
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
