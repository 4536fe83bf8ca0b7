"""Replicas that differ by one bit are found, whatever the mesh and the type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_style.distributed import replica_fingerprints
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.distributed.replica_fingerprints import Disagreement, ReplicaFingerprints

MESH = Partitioner(MeshShape(2, 2, 2)).mesh


def placed(array, *spec, changed=None):
    """The array on the mesh; `changed`: device -> function of what it holds."""
    sharding = NamedSharding(MESH, P(*spec))
    shards = []
    for place, device in enumerate(MESH.devices.flat):
        part = np.array(array[sharding.devices_indices_map(array.shape)[device]])
        if changed and place in changed:
            part = changed[place](part)
        shards.append(jax.device_put(part, device))
    return jax.make_array_from_single_device_arrays(array.shape, sharding, shards)


def flip(bit, at=0):
    """Returns a function that flips one bit of an element."""

    def changed(part):
        words = part.reshape(-1).view(f"u{part.dtype.itemsize}")
        words[at] ^= words.dtype.type(1 << bit)
        return part

    return changed


def found(tree):
    fingerprints = ReplicaFingerprints(tree, MESH)
    rows = replica_fingerprints.local_rows(fingerprints.start(tree))
    table = np.stack([rows[place] for place in range(8)])
    return fingerprints.disagreements(table)


def tree(dtype=np.float32, **changed):
    values = np.arange(32).reshape(8, 4).astype(dtype)
    return {
        "replicated": placed(values, changed=changed.get("replicated")),
        "rows": placed(values, "fsdp", changed=changed.get("rows")),
        "both": placed(values, ("data", "fsdp"), "tensor", changed=changed.get("both")),
    }


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int32, np.uint16, np.int8])
def test_one_bit_of_one_replica(dtype):
    assert found(tree(dtype)) == []
    top = np.dtype(dtype).itemsize * 8 - 1
    for bit, at in ((0, 0), (top, 7), (top - 1, 15)):
        changed = tree(dtype, replicated={5: flip(bit, at)}, rows={2: flip(bit, at)})
        assert found(changed) == [
            Disagreement("replicated", 5, 0, tied=False),
            Disagreement("rows", 2, 3, tied=False),
        ]


def test_first_replica_may_be_the_odd_one_and_two_swapped_values_are_seen():
    swapped = tree(replicated={0: lambda part: part[::-1]})
    assert found(swapped) == [Disagreement("replicated", 0, 1, tied=False)]


def test_as_many_of_each_are_tied():
    halves = tree(replicated={place: flip(3) for place in (1, 3, 5, 7)})
    expected = [Disagreement("replicated", place, 0, tied=True) for place in (1, 3, 5, 7)]
    assert found(halves) == expected


def test_parts_without_replicas_are_not_compared():
    assert ReplicaFingerprints(tree(), MESH).arrays == ["replicated", "rows"]
    assert found(tree(both={1: flip(3)})) == []


def test_keys_flags_scalars_and_empty_arrays():
    replicated = NamedSharding(MESH, P())
    values = {
        "key": jax.random.key(3),
        "flag": jnp.ones((), bool),
        "step": jnp.zeros((), jnp.int32),
        "none": jnp.zeros((0, 3)),
    }
    values = jax.device_put(values, replicated)
    assert found(values) == []
    values["flag"] = placed(np.ones((), bool), changed={6: np.logical_not})
    assert found(values) == [Disagreement("flag", 6, 0, tied=False)]


def test_groups_of_replicas():
    assert replica_fingerprints.replicas(MESH, P()).tolist() == [list(range(8))]
    by_tensor = replica_fingerprints.replicas(MESH, P(None, "tensor"))
    assert by_tensor.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert replica_fingerprints.replicas(MESH, P(("fsdp", "data"))).shape == (4, 2)


def test_devices_do_not_wait_for_each_other():
    text = ReplicaFingerprints(tree(), MESH).program.as_text()
    assert not any(name in text for name in ("all-", "collective", "permute"))
