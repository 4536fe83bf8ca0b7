"""A sweep on slices: drivers as processes, hosts as local processes, SWEEP_DIR on a fake server.

Recipes, archive of the code, supervisors and trainings are real; only Google is a fake.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from t5x_style.configuration.gin_reader import REPOSITORY
from tests.kits.toys.remote_folder import content, names
from tests.kits.toys.sweep_house import HEAD, SWEEP
from tests.launch.sweeps import served_zone
from tests.launch.sweeps.served_zone import LocalMachine
from tests.launch.sweeps.zone import Zone

SWEEP_DIR = "gs://bucket/runs/mine"
SLICES = ("--slice=v5e:2x4", "--spot", "--zone=us-west4-a", "--project=my-project")
PRUNED = "sweep.run.pruner = 'median'\nsweep.run.pruner_options = {'trials': 2}\n"
TABLES = ("table.csv", "configurations.csv")


class Drivers:
    """Drivers of one sweep, and the zone that they use."""

    def __init__(self, folder, workers):
        self.workers = workers
        self.zone = Zone(lambda name: LocalMachine(self._new(folder)), most=workers)
        self.machines = 0
        self.socket = folder / "zone"
        served_zone.serve(self.zone, self.socket)

    def _new(self, folder):
        self.machines += 1
        return folder / f"host-{self.machines}"

    def start(self, *arguments):
        """Starts one, as a user does."""
        words = ["--gin_file=mine.gin", "--gin_allow=tests", f"--gin.SWEEP_DIR={SWEEP_DIR}"]
        words += [*SLICES, f"--workers={self.workers}", *arguments]
        variables = {"PYTHONPATH": str(REPOSITORY), served_zone.ADDRESS: str(self.socket)}
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.launch.sweeps.sweep_driver", *words],
            env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *arguments, code=0):
        """Runs one to its end; what it printed."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=600)
        assert process.returncode == code, output
        return output

    def killed_when(self, pattern):
        """Starts one, and kills it once it prints this; what it printed."""
        process, lines = self.start(), []
        for line in process.stdout:
            lines.append(line)
            if re.search(pattern, line):
                process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "".join(lines)
        return "".join(lines)

    def job(self, name):
        """State of the job on a worker's host."""
        found = self.zone.found.get(name)
        return found.machine.host.state(name)["state"] if found else "none"


@pytest.fixture(name="drivers")
def make_drivers(sweep_house, bucket):
    made = []

    def make(workers):
        made.append(Drivers(sweep_house.folder, workers))
        return made[-1]

    yield make
    for one in made:
        for found in one.zone.found.values():
            found.machine.cut_power()


def test_a_killed_driver_is_followed_by_one_that_finishes_its_trial(sweep_house, drivers, bucket):
    sweep_house.write(HEAD + "RATE/sweep.Axis.values = [0.01]\n")
    here = drivers(workers=1)
    here.killed_when("mine-w0: the job runs")
    output = here.run("--delete_at_end")
    assert "default: continues" in output and "default: done, 0.6191 at step 5" in output
    assert dict(here.zone.created) == {"mine-w0": 1} and here.zone.found == {}
    assert "no slices are left of mine" in output
    assert b"0.6191" in content(bucket, "runs/mine/report.md")
    versions = {name.split("/")[3] for name in names(bucket) if name.startswith("runs/.store/vers")}
    assert len(versions) == 2 and not any("." in one for one in versions)


def local_sweep():
    """The tables of the same sweep on this machine."""
    command = [sys.executable, "-m", "launch.sweep", "--gin_file=mine.gin", "--gin_allow=tests"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([*command, "--workers=2"], env=environment, check=True, capture_output=True)
    return tables_here()


def tables_here():
    return [Path("runs/mine", name).read_bytes() for name in TABLES]


@pytest.mark.slow
def test_five_trials_with_a_preemption_and_kills_are_reported_as_on_one_machine(
    sweep_house,
    drivers,
    bucket,
):
    rates = SWEEP.replace("[0.1, 0.01, 0.001]", "[0.002, 0.001, 0.003, 0.01, 0.1]")
    sweep_house.write(rates + PRUNED + "STEPS = 300\nEVALUATE_EVERY = 30\n")
    expected = local_sweep()
    assert b"pruned" in expected[0]
    here = drivers(workers=2)

    def preempt():
        while here.job("mine-w1") != "running":
            threading.Event().wait(0.05)
        here.zone.preempt("mine-w1")

    disturbance = threading.Thread(target=preempt, daemon=True)
    disturbance.start()
    outputs = [here.killed_when("starts"), here.killed_when("done")]
    drivers_at_once = [here.start("--delete_at_end") for _ in range(2)]
    outputs += [one.communicate(timeout=600)[0] for one in drivers_at_once]
    assert [one.returncode for one in drivers_at_once] == [0, 0], outputs
    disturbance.join()
    assert [content(bucket, f"runs/mine/{name}") for name in TABLES] == expected
    assert here.zone.created["mine-w0"] == 1 and here.zone.created["mine-w1"] <= 2
    assert here.zone.found == {}
    versions = {name.split("/")[3] for name in names(bucket) if name.startswith("runs/.store/vers")}
    assert sum("." in one for one in versions) <= 1  # the preempted one continues in a copy
