"""A zone, a sweep's folder, and drivers that can be killed, for tests of trials on slices."""

import contextlib
import itertools
import threading
import time

import pytest

from launch.cloud.gcloud import Gcloud
from launch.cloud.requests import Request
from launch.cloud.sweep_fleet import Fleet
from launch.cloud.sweep_slices import SliceLauncher
from t5x_style.accelerators import slices
from t5x_style.leases.lease import LeaseLost
from t5x_style.storage.errors import Unreachable
from t5x_style.sweeps.launchers import NOT_RUN
from tests.launch.cloud.histories import NoFollower
from tests.launch.sweeps import toy_machines
from tests.launch.sweeps.toy_machines import ToyMachines
from tests.launch.sweeps.zone import Zone

TRIALS = ("a", "b", "c", "d", "e")
FOLDER = "gs://bucket/rates"
SECONDS = 60.0  # after which a test fails that waits; an undisturbed one needs parts of a second


class KilledError(BaseException):
    """The driver is gone: nothing of it runs any more."""


class Leases:
    """Leases in memory, of drivers that can be killed."""

    def __init__(self, held):
        self.held, self.dead, self.is_away = held, False, False

    def claim(self, name, lost):
        if name in self.held:
            return None
        self.held[name] = self
        self.lost = lost
        return Lease(self, name)


class Lease:
    def __init__(self, leases, name):
        self.leases, self.name = leases, name

    @contextlib.contextmanager
    def guard(self):
        if self.leases.is_away:
            raise Unreachable("gs://bucket: no answer")
        if self.leases.held.get(self.name) is not self.leases:
            raise LeaseLost(self.name)
        yield

    def release(self):
        if self.leases.held.get(self.name) is self.leases:
            del self.leases.held[self.name]


class World:
    """A zone, a folder, and drivers."""

    def __init__(self, folder, machines, workers=2):
        self.folder, self.machines, self.workers = folder, machines, workers
        self.zone = Zone(machines, most=workers)
        self.held, self.said = {}, []

    def driver(self):
        """One that has just been started."""
        leases = Leases(self.held)

        def run(argv, timeout):
            if leases.dead:
                raise KilledError
            return self.zone(argv, timeout)

        request = Request(
            "rates", slices.parse("v5e:2x4"), zone="us-west4-a", project="my-project",
            provisioning="spot", run_dir=FOLDER,
        )  # fmt: skip
        found = SliceLauncher(
            Fleet(request, self.workers), self.folder, leases,
            Gcloud(run, lambda seconds: tick(), name="gcloud"), self.said.append, True,
            lambda job, gcloud, file: NoFollower(), lambda event, seconds: event.wait(0.001),
            itertools.count(step=100).__next__,
        )  # fmt: skip
        found.leases = leases
        return found

    def kill(self, driver):
        """Ends a driver at once; its leases are those of a dead process then."""
        driver.leases.dead = True
        for name in [name for name, one in self.held.items() if one is driver.leases]:
            del self.held[name]

    def start(self, driver, trial):
        assert driver.free()
        return driver.start(trial, [trial], self.folder / "trials" / trial / "log.txt")

    def running(self, trial):
        """A driver that was just started, and its trial, which runs on slices."""
        driver = self.driver()
        job = self.start(driver, trial)
        until(lambda: self.machines.started(trial))
        return driver, job

    def run(self, driver, trials=TRIALS):
        """Runs trials to their ends, again where no slices could; their exit codes."""
        queue, running, codes, deadline = list(trials), {}, {}, Deadline()
        while queue or running:
            for trial, job in list(running.items()):
                if (code := job.ended()) is not None:
                    del running[trial]
                    queue += [trial] * (code == NOT_RUN)
                    codes[trial] = code
            while queue and driver.free():
                trial = queue.pop(0)
                running[trial] = self.start(driver, trial)
            if not running and not driver.free():
                break
            deadline.tick()
        driver.free()  # collects
        return codes


class Deadline:
    """A loop that should have ended long ago fails."""

    def __init__(self):
        self.end = time.monotonic() + SECONDS

    def tick(self):
        assert time.monotonic() < self.end, f"no end within {SECONDS} s"
        tick()


def tick():
    threading.Event().wait(0.001)


def ended(job):
    """Waits until a trial has ended; its exit code."""
    deadline = Deadline()
    while (code := job.ended()) is None:
        deadline.tick()
    return code


def until(condition):
    deadline = Deadline()
    while not condition():
        deadline.tick()


@pytest.fixture(name="world")
def make_world(tmp_path, monkeypatch):
    """Makes a `World`; the trial's name is its recipe."""
    toy_machines.understand(monkeypatch)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)  # of drivers that are killed
    return lambda machines=None, workers=2: World(tmp_path, machines or ToyMachines(), workers)
