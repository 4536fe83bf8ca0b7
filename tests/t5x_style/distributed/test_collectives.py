"""Rows of all devices, brought to each: against one device, in value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from t5x_style.distributed import collectives
from t5x_style.distributed.partitioning import BATCH_AXES, MeshShape, Partitioner

MESHES = [(8, 1, 1), (1, 8, 1), (2, 4, 1), (2, 2, 2)]


def on_mesh(shape, function):
    """`function` jitted with a mesh in context, and how to cut its arguments."""
    mesh = Partitioner(MeshShape(*shape)).mesh

    @jax.jit
    def run(*arguments):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*arguments)

    sharding = jax.NamedSharding(mesh, P(BATCH_AXES))
    return lambda *arguments: run(*jax.device_put(arguments, sharding))


@pytest.mark.parametrize("exchange", collectives.EXCHANGES)
@pytest.mark.parametrize("shape", MESHES)
@pytest.mark.parametrize("features", [(), (3,), (2, 3)])
def test_rows_are_taken_from_all_devices_and_their_gradients_come_back(shape, exchange, features):
    rng = np.random.default_rng(0)
    source = jnp.asarray(rng.normal(size=(24, *features)), jnp.float32)
    index = jnp.asarray(rng.integers(-2, 27, size=40))  # some rows twice, some that do not exist
    weight = jnp.asarray(rng.normal(size=(40, *features)), jnp.float32)

    def loss(take):
        return lambda source: jnp.sum(weight * jnp.square(take(source)))

    def oracle(source):
        there = ((index >= 0) & (index < 24)).reshape(-1, *(1,) * len(features))
        return jnp.where(there, source[jnp.clip(index, 0, 23)], 0.0)

    def ours(source, index):
        take = lambda source: collectives.take_rows(source, index, exchange)  # noqa: E731
        return take(source), jax.grad(loss(take))(source)

    found = on_mesh(shape, ours)(source, index)
    assert all(len(array.devices()) == 8 for array in found)
    np.testing.assert_array_equal(found[0], oracle(source))
    np.testing.assert_allclose(found[1], jax.grad(loss(oracle))(source), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(ours(source, index)[0], oracle(source))


@pytest.mark.parametrize("exchange", collectives.EXCHANGES)
def test_every_device_sees_every_row_once_and_adds_to_it(exchange):
    def count(numbers):
        rows = collectives.row_mesh()

        def local(numbers):
            def step(seen, shown):
                return seen + jnp.sum(shown), jnp.ones_like(shown)

            seen, added = rows.visit(
                exchange, step, jnp.zeros(()), numbers, jnp.zeros_like(numbers)
            )
            return seen[None], added

        return rows.run(local, numbers)

    seen, added = on_mesh((4, 2, 1), count)(jnp.arange(16.0))
    np.testing.assert_array_equal(seen, np.full(8, np.arange(16).sum()))
    np.testing.assert_array_equal(added, np.full(16, 8.0))


def test_local_shows_a_device_its_own_rows_alone():
    index = jnp.arange(24)[::-1]
    found, gradient = on_mesh(
        (2, 4, 1),
        lambda x: (
            collectives.take_rows(x, index, "local"),
            jax.grad(lambda x: jnp.sum(collectives.take_rows(x, index, "local")))(x),
        ),
    )(jnp.arange(1.0, 25.0))
    np.testing.assert_array_equal(found, np.zeros(24))  # the last device has what the first wants
    np.testing.assert_array_equal(gradient, np.zeros(24))
    swapped = jnp.arange(24) ^ 1
    (found,) = on_mesh((2, 4, 1), lambda x: (collectives.take_rows(x, swapped, "local"),))(
        jnp.arange(24.0)
    )
    own = np.arange(24) // 3 == swapped // 3
    np.testing.assert_array_equal(found, np.where(own, swapped, 0))


@pytest.mark.parametrize("shape", MESHES)
def test_strided_pieces_lie_on_all_devices_and_join_again(shape):
    rows = jnp.arange(64.0).reshape(32, 2)
    pieces, again = on_mesh(
        shape, lambda x: (collectives.strided(x, 4), collectives.joined(collectives.strided(x, 4)))
    )(rows)
    np.testing.assert_array_equal(again, rows)
    np.testing.assert_array_equal(pieces[1], rows[1::4])
    shares = {shard.data.shape for shard in pieces.addressable_shards}
    ways = shape[0] * shape[1]
    assert shares == {(4, 8 // ways, 2)}, "every device has its share of each piece"


def test_rows_that_stay_together():
    found = collectives.strided(jnp.arange(12), 2, together=3)
    np.testing.assert_array_equal(found, [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]])


def test_pieces_that_devices_cannot_share_are_refused():
    with pytest.raises(ValueError, match="4 pieces of a multiple of 8 rows .*found 24 rows"):
        on_mesh((8, 1, 1), lambda x: collectives.strided(x, 4))(jnp.zeros(24))
    with pytest.raises(ValueError, match="found 10 rows"):
        collectives.strided(jnp.zeros(10), 4)
    with pytest.raises(
        ValueError, match="SETTING: expected one of .'gather', 'ring', 'local'., found 'r'"
    ):
        collectives.require_exchange("r", "SETTING")
