"""Hosts that run one recipe, lose everything and start again; local processes are the hosts."""

import dataclasses
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from launch.cloud import bootstrap, code_archive
from launch.cloud.bootstrap import Job
from t5x_style.checkpoints import checkpointing
from t5x_style.storage import places
from t5x_style.workflow import links, remote_store
from t5x_style.workflow.store import version_at
from tests.kits import process_group, virtual_devices
from tests.launch.cloud.local_hosts import Host

REPOSITORY = Path(__file__).resolve().parents[4]
HERE = "tests/launch/cloud/rehearsals"
LIMIT_SECONDS = 1800  # ends hosts that hang, so that their test fails


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe with one stage, `training`.

    Attributes:
      files: its gin file, and what it needs of the tests: an archive of the project has no tests.
    """

    files: tuple[str, ...]


class Slice:
    """Hosts that run one job."""

    def __init__(
        self, folder: Path, run_dir: str, recipe: Recipe, hosts: int = 2, **settings: object
    ):
        """Args:
        folder: of the hosts' disks.
        run_dir: of the recipe, on object storage or on a disk that all hosts share.
        recipe: what they run.
        hosts: how many.
        settings: macro -> value.
        """
        self.run_dir = run_dir
        self.hosts = [Host(folder / f"host-{number}") for number in range(hosts)]
        archive = code_archive.build(folder, map(Path, recipe.files), REPOSITORY)
        words = ("-m", "launch.recipe", f"--gin_file={recipe.files[0]}", "--gin_allow=tests")
        given = {"RUN_DIR": run_dir} | settings
        settings = tuple(f"--gin.{name}={value!r}" for name, value in given.items())
        environment = {"JAX_COMPILATION_CACHE_DIR": os.environ["JAX_COMPILATION_CACHE_DIR"]}
        environment["XLA_FLAGS"] = virtual_devices.flags()
        job = Job("a", (*words, *settings), archive.hash, str(archive.path), environment)
        self.start_text = bootstrap.start_text(job)

    def start(self, **accident: dict) -> None:
        """Starts the job on all hosts; `host_1={...}` are variables of one of them."""
        place = f"127.0.0.1:{process_group.free_port()}"
        for number, host in enumerate(self.hosts):
            host.env |= {"ACCIDENT": ""} | accident.get(f"host_{number}", {})
            host.env |= {"JAX_COORDINATOR_ADDRESS": place, "JAX_PROCESS_ID": str(number)}
            host.env |= {"JAX_NUM_PROCESSES": str(len(self.hosts))}
            answer = host.ssh(self.start_text)
            assert answer.returncode == 0, answer.stderr

    def preempted_at(self, step: int, first: int) -> None:
        """Runs until the job dies on one host; then all hosts are gone, and new ones come."""
        accident = {"ACCIDENT": "SIGKILL", "ACCIDENT_STEP": str(step)}
        self.start(**{f"host_{first}": accident})
        lost = self.hosts[first].wait()
        assert lost["exit_code"], "\n".join(host.log() for host in self.hosts)
        assert "was killed by SIGKILL" in self.hosts[first].log(), self.hosts[first].log()
        for host in self.hosts:
            host.preempt()
            assert host.state()["state"] == "absent"

    def finish(self) -> dict[str, np.ndarray]:
        """Runs to the end; returns the parameters."""
        self.start()
        ended = [host.wait() for host in self.hosts]
        logs = "\n".join(host.log() for host in self.hosts)
        assert {one["state"] for one in ended} == {"done"}, logs
        assert len({(one["code"], one["lock"], one["job"]) for one in ended}) == 1
        return parameters_of(self.run_dir)


@pytest.fixture(name="new_slice")
def make_slices(tmp_path, monkeypatch):
    """Makes slices, `new_slice(run_dir, recipe, hosts, NAME=value)`; ends them after the test."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv(
        "JAX_COMPILATION_CACHE_DIR",
        os.environ.get("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled")),
    )
    made = []

    def make(run_dir: str, *how, **settings) -> Slice:
        place = run_dir if run_dir.startswith("gs://") else str(tmp_path / run_dir)
        made.append(Slice(tmp_path / f"slice-{len(made)}", place, *how, **settings))
        guard = threading.Timer(LIMIT_SECONDS, cut_power, [made[-1]])
        guard.daemon = True
        guard.start()
        return made[-1]

    yield make
    for one in made:
        cut_power(one)


def cut_power(one: Slice) -> None:
    for host in one.hosts:
        host.cut_power()


def assert_equal(found, expected):
    assert found.keys() == expected.keys() and len(found) >= 2
    for name in expected:
        assert found[name].tobytes() == expected[name].tobytes(), name


def parameters_of(run_dir: str) -> dict[str, np.ndarray]:
    """Those of a finished training, wherever it is."""
    here = places.local(run_dir)
    store = links.of_run(here)
    remote_store.refresh(store, here)
    version = version_at(here / "training")
    with remote_store.fetched([version]):
        return checkpointing.read_parameters(version.folder)
