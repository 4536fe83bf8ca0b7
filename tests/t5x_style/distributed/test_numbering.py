"""Hosts of TPU slices are numbered by JAX's own classes, from metadata or from variables."""

import contextlib
import os

import pytest
from jax._src.clusters import cloud_tpu_cluster

from t5x_style.distributed import launch_flags, numbering, pod
from t5x_style.distributed.launch_flags import ProcessesError
from tests.kits import process_group
from tests.t5x_style.distributed import metadata_server

SLICES, WORKERS = 2, 4
AUTO = ["--processes=auto"]
VARIABLES = ("TPU_", "MEGASCALE_", "KENNEL_", "JAX_COORDINATOR", "JAX_NUM", "JAX_PROCESS", "GCE_")


@pytest.fixture
def tpu(monkeypatch):
    """This machine has chips, and no variable says to what they belong."""
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    return monkeypatch


def address(slice_id, worker):
    return f"127.0.{slice_id}.{worker + 1}"


def tpu_vm(slice_id, worker, slices=SLICES, workers=WORKERS, named=True):
    """The metadata of a TPU VM; endpoints in the new form, names alone, or in the old one."""
    hosts = [address(slice_id, n) for n in range(workers)]
    endpoints = hosts if named else [f"unknown:{8470}:{host}" for host in hosts]
    megascale = {
        "MEGASCALE_COORDINATOR_ADDRESS": address(0, 0),
        "MEGASCALE_NUM_SLICES": slices,
        "MEGASCALE_SLICE_ID": slice_id,
    }
    lines = ["ACCELERATOR_TYPE: 'v5litepod-16'", f"WORKER_ID: '{worker}'"]
    lines += [f"{name}: '{value}'" for name, value in megascale.items() if slices > 1]
    return {
        "agent-worker-number": str(worker),
        "worker-network-endpoints": ",".join(endpoints),
        "tpu-env": "\n".join(lines),
    }


def gke(slice_id, worker):
    """The variables of a pod on GKE."""
    return {
        "TPU_WORKER_ID": str(worker),
        "TPU_WORKER_HOSTNAMES": ",".join(address(slice_id, n) for n in range(WORKERS)),
        "MEGASCALE_COORDINATOR_ADDRESS": f"{address(0, 0)}:8080",
        "MEGASCALE_NUM_SLICES": str(SLICES),
        "MEGASCALE_SLICE_ID": str(slice_id),
    }


@contextlib.contextmanager
def host(tpu, platform, slice_id, worker):
    """What a host of two slices sees on a platform."""
    with tpu.context() as here, contextlib.ExitStack() as stack:
        if platform == "GKE":
            for name, value in gke(slice_id, worker).items():
                here.setenv(name, value)
        else:
            named = platform == "TPU VM"
            attributes = tpu_vm(slice_id, worker, named=named)
            metadata = stack.enter_context(metadata_server.serving(attributes))
            here.setenv("GCE_METADATA_IP", metadata)
        yield


@pytest.mark.parametrize("platform", ["TPU VM", "TPU VM, old endpoints", "GKE"])
def test_two_slices_of_four_hosts(tpu, platform):
    found = []
    for slice_id in range(SLICES):
        for worker in range(WORKERS):
            with host(tpu, platform, slice_id, worker):
                found.append(numbering.read(AUTO, os.environ))
    assert [one.number for one in found] == list(range(8))
    assert {one.count for one in found} == {8}
    assert {one.address for one in found} == {f"{address(0, 0)}:8482"}
    assert {one.meeting_port for one in found} == {numbering.MEETING_PORT} != {8482}
    children = [launch_flags.read([], one.environment()) for one in found]
    assert children == found, "a stage gets the numbers of its recipe"


def test_one_slice_of_several_hosts_and_one_of_one(tpu):
    with metadata_server.serving(tpu_vm(0, 2, slices=1)) as metadata:
        tpu.setenv("GCE_METADATA_IP", metadata)
        tpu.setenv("KENNEL_PROCESSES", "auto")
        found = numbering.read(["--meeting_port=9000", "--initialization_timeout=9"], os.environ)
    expected = (f"{address(0, 0)}:8482", 4, 2, 9000, 9)
    assert found == launch_flags.Processes(*expected)
    with metadata_server.serving(tpu_vm(0, 0, slices=1, workers=1)) as metadata:
        tpu.setenv("GCE_METADATA_IP", metadata)
        assert numbering.read([], os.environ) is None


@pytest.mark.parametrize("platform", ["TPU VM", "GKE"])
def test_one_of_several_hosts_of_which_nothing_is_said(tpu, platform):
    with host(tpu, platform, 1, 0):
        message = "one of 8 TPU hosts.*--processes=auto .*KENNEL_PROCESSES=auto.*--processes=1"
        with pytest.raises(ProcessesError, match=message):
            numbering.read([], os.environ)
        assert numbering.read(["--processes=1"], os.environ) is None
        tpu.setenv("KENNEL_PROCESSES", "1")
        assert numbering.read([], os.environ) is None
        assert pod.read([], os.environ) is None


def test_where_a_process_should_run(tpu):
    with host(tpu, "GKE", 0, 0):
        assert numbering.place(2) == f"worker 2 of slice 0, {address(0, 2)}"
        assert numbering.place(5) == "worker 1 of slice 1"
    tpu.setenv("TPU_SKIP_MDS_QUERY", "1")
    assert numbering.place(2) == ""


def test_no_slice_where_it_should_say_the_numbers(tpu):
    tpu.setenv("TPU_SKIP_MDS_QUERY", "1")
    assert numbering.read([], os.environ) is None
    with pytest.raises(ProcessesError, match="--processes=auto: JAX finds no TPU slice here"):
        numbering.read(AUTO, os.environ)


def test_what_jax_cannot_find_out_is_said_with_what_to_do(tpu):
    tpu.setenv("GCE_METADATA_IP", f"127.0.0.1:{process_group.free_port()}")
    for argv in ([], AUTO):
        with pytest.raises(ProcessesError, match="cannot be found out: .*--processes=1"):
            numbering.read(argv, os.environ)
    for name, value in (gke(0, 0) | {"TPU_WORKER_ID": "first"}).items():
        tpu.setenv(name, value)
    with pytest.raises(ProcessesError, match="cannot be found out: .*'first'"):
        numbering.read(AUTO, os.environ)


def test_a_command_without_jax_asks_a_process_with_it(tpu, tmp_path):
    tpu.setattr(pod, "PCI", tmp_path)
    slice_of_one = gke(1, 0) | {"TPU_WORKER_HOSTNAMES": "127.0.0.1", "JAX_FORCE_TPU_INIT": "1"}
    env = os.environ | slice_of_one
    described = launch_flags.Processes(f"{address(0, 0)}:8482", 2, 1, numbering.MEETING_PORT)
    assert pod.read(AUTO, env) == described
    assert pod.read([], env) is None, "no chip on the bus: not asked"
    (tmp_path / "0000:00:04.0").mkdir()
    (tmp_path / "0000:00:04.0/vendor").write_text("0x1ae0\n")
    with pytest.raises(ProcessesError, match="^this is one of 2 TPU hosts"):
        pod.read([], env)
    explicit = launch_flags.Processes("host:1234", 3, 2)
    assert pod.read([], env | explicit.environment()) == explicit
