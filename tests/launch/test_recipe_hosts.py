"""A recipe on the hosts of a TPU slice: the same command on each, and nothing that says which."""

import os

import pytest

from tests.kits import process_group
from tests.kits.recipe_kit import RECIPE, make_house  # noqa: F401  a fixture

VARIABLES = ("TPU_", "MEGASCALE_", "KENNEL_", "JAX_COORDINATOR", "JAX_NUM", "JAX_PROCESS")


def start_hosts(*flags, **environment):
    """Starts the recipe on two hosts, two slices of one host each, as GKE describes them."""
    common = {
        "JAX_FORCE_TPU_INIT": "1",  # this machine has no chip
        "JAX_PLATFORMS": "cpu",
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "127.0.0.1",
        "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1:8080",
        "MEGASCALE_NUM_SLICES": "2",
        "JAX_COORDINATOR_PORT": str(process_group.free_port()),
        "KENNEL_MEETING_PORT": str(process_group.free_port()),
    }
    recipe = os.path.abspath("recipe.gin")
    command = ["launch.recipe", f"--gin_file={recipe}", "--gin_allow=tests", *flags]
    command += [f"--gin_search_paths={os.getcwd()}", f"--gin.recipe.run.run_dir={os.getcwd()}/runs"]
    return [
        process_group.start(command, common | {"MEGASCALE_SLICE_ID": str(number)} | environment)
        for number in (0, 1)
    ]


@pytest.fixture
def hosts(house, monkeypatch):
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        monkeypatch.delenv(name)
    house(RECIPE.partition("third/")[0])  # each stage is two processes
    return start_hosts


def test_the_hosts_join_for_every_stage_and_the_first_publishes(hosts, tmp_path):
    started = hosts(KENNEL_PROCESSES="auto")
    for code, output in process_group.finish(started):
        assert code == 0 and "all 2 stages done" in output, output
    lines = (tmp_path / "runs/summary.txt").read_text().splitlines()
    assert len({line.split()[1] for line in lines}) == 1, "one process counted for all"


@pytest.mark.slow
def test_a_host_that_is_not_started_is_named_with_its_place(hosts):
    started = hosts("--processes=auto", "--initialization_timeout=3")
    started[1].kill()
    (code, output), _ = process_group.finish(started)
    assert code == 1, output
    assert "waited 3 s for process 1 of 2" in output, output
    assert "Process 1 is worker 0 of slice 1." in output, output
