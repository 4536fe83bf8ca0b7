"""Orbax on object storage: arrays through TensorStore, records through epath, no folder renamed."""

import json

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_style.checkpoints.checkpointing import Checkpointer, Checkpointing
from t5x_style.storage import epaths, places
from t5x_style.storage.mirror import Mirror, Pusher
from tests.kits.checkpoint_helpers import META, state_at
from tests.kits.toys.storage_faults import Fault
from tests.kits.toys.storage_fixtures import BUCKET


@pytest.fixture
def arrays(server):
    """A sharded and a replicated array; Orbax keeps the client of the bucket that it saw first."""
    del server
    from orbax.checkpoint._src.path import gcs_utils

    gcs_utils.get_bucket.cache_clear()
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    kinds = {"sharded": PartitionSpec("data"), "replicated": PartitionSpec()}
    values = {"sharded": np.arange(64.0), "replicated": np.ones((3, 5), np.int32)}
    return {
        name: jax.device_put(values[name], NamedSharding(mesh, spec))
        for name, spec in kinds.items()
    }


def assert_same(found, wanted):
    for name, array in wanted.items():
        assert found[name].sharding == array.sharding
        np.testing.assert_array_equal(found[name], array)


def test_a_checkpoint_is_saved_and_restored(arrays, server):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{BUCKET}/run/checkpoint", arrays)
        checkpointer.wait_until_finished()
        assert_same(checkpointer.restore(f"{BUCKET}/run/checkpoint", arrays), arrays)
    names = server.objects.names("bucket")
    assert "run/checkpoint/commit_success.txt" in names
    assert all(name.startswith("run/checkpoint/") for name in names)
    assert server.count("rewrite") == 0


def test_a_manager_keeps_the_last_steps(arrays, server):
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(epaths.of(f"{BUCKET}/run"), options=options) as manager:
        for step in range(4):
            manager.save(step, args=ocp.args.StandardSave(arrays))
    with ocp.CheckpointManager(epaths.of(f"{BUCKET}/run"), options=options) as manager:
        assert manager.all_steps() == [2, 3]
        assert_same(manager.restore(3, args=ocp.args.StandardRestore(arrays)), arrays)
    steps = {name.split("/")[1] for name in server.objects.names("bucket")}
    assert steps == {"2", "3"}


def test_a_checkpoint_without_its_last_file_does_not_count(arrays, server):
    """What a killed process leaves: `commit_success.txt` is written last."""
    with ocp.CheckpointManager(epaths.of(f"{BUCKET}/run")) as manager:
        for step in range(2):
            manager.save(step, args=ocp.args.StandardSave(arrays))
    server.objects.delete("bucket", "run/1/commit_success.txt", {})
    with ocp.CheckpointManager(epaths.of(f"{BUCKET}/run")) as manager:
        assert manager.latest_step() == 0


@pytest.mark.parametrize("fault", [Fault("status", 503), Fault("status", 429)])
def test_faults_that_pass_do_not_reach_orbax(arrays, server, fault):
    for operation in ("read", "insert", "list", "get"):
        server.faults.add(Fault(fault.kind, fault.status, "*", (operation,)))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{BUCKET}/run/checkpoint", arrays)
        checkpointer.wait_until_finished()
        assert_same(checkpointer.restore(f"{BUCKET}/run/checkpoint", arrays), arrays)
    assert json.loads(server.objects.find("bucket", "run/checkpoint/_METADATA").data)


def test_what_a_resumed_run_reads_is_there_before_a_checkpoint_counts(bucket):
    folder = places.local(f"{BUCKET}/run")
    folder.mkdir(parents=True)
    pusher = Pusher(Mirror(folder, f"{BUCKET}/run"), 3600.0, print)
    checkpointer = Checkpointer(folder / "checkpoints", Checkpointing(keep=1))
    (folder / "plan").write_text("of the batches")
    checkpointer.save(state_at(3), META)
    checkpointer.close()
    written = [one.name for one in bucket.requests if one.operation == "insert"]
    assert written.index("run/plan") < written.index("run/checkpoints/3/integrity.json")
    pusher.end()
