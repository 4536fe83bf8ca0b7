"""A vocabulary shared out over devices: MLM's loss and gradients, and what is never held."""

import dataclasses
import re

import jax
import numpy as np
import pytest
from flax import nnx

from models.objectives import mlm
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape
from t5x_style.preflight import hlo
from tests.kits import tiny_models

ROWS, LENGTH, CHUNK = 48, 24, 16
CONFIG = dataclasses.replace(tiny_models.CONFIG, heads=8, layers=1, vocab_multiple=32)


def make(vocab_size):
    vocabulary = dataclasses.replace(tiny_models.VOCABULARY, size=vocab_size)
    config = dataclasses.replace(CONFIG, vocab_size=vocab_size)
    shape = GroupShape(ROWS, LENGTH, 3)
    model = mlm.Mlm(
        *(config, tiny_models.EMBEDDING, vocabulary, shape),
        mask_rate=0.2,
        chunk=CHUNK,
        restart_positions=True,
        rngs=nnx.Rngs(0),
    )
    model.eval()
    return model


def batch():
    parts = tiny_models.segments(ROWS * 3, longest=8)
    rows = [parts[3 * row : 3 * row + 3] for row in range(ROWS)]
    return {"text": tiny_models.group(rows, LENGTH, 3)}


def program(model, shape):
    """The jitted loss and gradients on a mesh, and its arguments, parameters cut by the rules."""
    devices = jax.devices()[: int(np.prod(shape))]
    partitioner = partitioning.Partitioner(partitioning.MeshShape(*shape), devices=devices)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params, given):
        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            module = nnx.merge(graph, params, rest)
            masked = module.corrupt(given, jax.random.key(1))
            return module.loss(masked, jax.random.key(2))[0].value()

    shardings = partitioner.shardings(params)
    placed = jax.device_put(params, shardings)
    given = jax.device_put(batch(), partitioner.batch_sharding)
    function = jax.jit(jax.value_and_grad(loss), out_shardings=(None, shardings))
    return function, (placed, given)


def flat(state):
    return {"/".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(state)}


@pytest.fixture(scope="module")
def one_device():
    function, arguments = program(make(250), (1, 1, 1))
    return function(*arguments)


@pytest.mark.parametrize("shape", [(2, 2, 2), pytest.param((1, 1, 8), marks=pytest.mark.slow)])
def test_a_vocabulary_shared_out_changes_neither_loss_nor_gradients(one_device, shape):
    model = make(250)  # six rows to spare
    function, arguments = program(model, shape)
    table = flat(arguments[0])["encoder/embeddings/word/embedding"]
    share = (256 // shape[2], CONFIG.hidden // shape[1])
    assert {one.data.shape for one in table.addressable_shards} == {share}
    loss, gradients = function(*arguments)
    assert float(loss) == pytest.approx(float(one_device[0]), rel=1e-5)
    expected = flat(one_device[1])
    for name, gradient in flat(gradients).items():
        scale = max(float(np.abs(expected[name]).max()), 1e-3)
        np.testing.assert_allclose(
            gradient, expected[name], atol=1e-4 * scale, err_msg=name
        )  # fmt: skip
    assert np.abs(expected["encoder/embeddings/word/embedding"]).max() > 1e-3


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((1, 1, 1), marks=pytest.mark.slow),
        (2, 2, 2),
        pytest.param((1, 1, 8), marks=pytest.mark.slow),
    ],
)
def test_no_array_has_all_positions_and_the_vocabulary(shape):
    vocabulary = 4096
    function, arguments = program(make(vocabulary), shape)
    share = vocabulary // shape[2]
    found = hlo.parse(function.lower(*arguments).compile().as_text())
    sizes = [
        int(np.prod(dims))
        for computation in found.computations.values()
        for instruction in computation.values()
        for dims in dimensions(instruction.type)
        if share in dims or vocabulary in dims
    ]
    assert len(sizes) > 10
    assert max(sizes) <= max(CHUNK, CONFIG.hidden) * vocabulary < ROWS * LENGTH // 4 * share


def dimensions(text):
    return [
        tuple(int(size) for size in dims.split(","))
        for dims in re.findall(r"\w+\[([\d,]+)\]", text)
    ]
