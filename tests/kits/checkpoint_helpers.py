"""States worth saving, and folders of checkpoints made of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_style.checkpoints.checkpointing import Checkpointer, Checkpointing
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape
from t5x_style.step import optimizers, train_state
from tests.kits.toys.toy_objective import Toy

TEXT = GroupShape(rows=16, length=12, segments=1)
TOY = functools.partial(Toy, TEXT, 32, 8, 16)
META = {"plan": "abc"}


class Wider(Toy):
    """Another architecture: one parameter more, one less, and all of another width."""

    def __init__(self, *, rngs):
        super().__init__(TEXT, 32, 16, 16, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(16), out_sharding=("embed",))
        del self.scale


@functools.cache
def created(mesh=(1, 1, 1), frozen=(), make=TOY):
    """A fresh state and its shardings; nobody may donate it."""
    devices = jax.devices()[: int(np.prod(mesh))]
    partitioner = partitioning.Partitioner(partitioning.MeshShape(*mesh), devices=devices)
    optimizer = optimizers.AdamW(0.05, 2, 12, no_decay=(), frozen=frozen)
    return train_state.create(make, optimizer, partitioner, 0)[1:]


def state_at(step, **kwargs):
    """A state in which no two arrays are alike, moments and tables included."""
    fresh, shardings = created(**kwargs)
    random = np.random.RandomState(step)

    def scrambled(leaf):
        array = np.asarray(random.randn(*leaf.shape) * 50).astype(leaf.dtype)
        return jax.device_put(array, leaf.sharding)

    params, opt_state, variables = jax.tree.map(
        scrambled, (fresh.params, fresh.opt_state, fresh.variables)
    )
    return dataclasses.replace(
        fresh,
        step=jax.device_put(np.int32(step), shardings.step),
        params=params,
        opt_state=opt_state,
        variables=variables,
        key=jax.device_put(jax.random.key(step), shardings.key),
    )


def keeper(folder, keep=3, **settings):
    return Checkpointer(folder, Checkpointing(keep, **settings))


def saved(folder, *steps, keep=3):
    """A folder with these checkpoints."""
    checkpointer = keeper(folder, keep)
    for step in steps:
        checkpointer.save(state_at(step), META)
    checkpointer.close()
    return folder


def flat(*trees):
    """path -> array, whatever the arrays lie on."""
    leaves = jax.tree_util.tree_leaves_with_path(trees)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def assert_equal(found, expected):
    parts = [(s.step, s.params, s.opt_state, s.variables, s.healthy) for s in (found, expected)]
    found_arrays, expected_arrays = (flat(*part) for part in parts)
    assert found_arrays.keys() == expected_arrays.keys()
    for path, array in expected_arrays.items():
        np.testing.assert_array_equal(found_arrays[path], array, err_msg=path)
        assert found_arrays[path].dtype == array.dtype, path
    assert found.key.dtype == expected.key.dtype
    assert jax.random.key_data(found.key).tolist() == jax.random.key_data(expected.key).tolist()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def data_file(step_folder):
    """The largest file of the parameters."""
    files = [path for path in (step_folder / "parameters").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])
