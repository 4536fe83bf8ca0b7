"""What tests of fine-tuning share: a tiny MARGE to begin with, stages by gin, a loop."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx
from gin import config as gin_config

from models.networks import decoding, seq2seq
from models.objectives import marge
from t5x_style.configuration import gin_checks
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape
from t5x_style.step import optimizers, train_state
from t5x_style.training import warm_start
from t5x_style.workflow import stage_runner
from tests.kits import checkpoint_helpers, store_kit, tiny_models

REPOSITORY = Path(__file__).resolve().parents[2]
SIZES = {"hidden": 16, "layers": 2, "heads": 2, "mlp": 32}


def train_marge(folder, vocabulary, sizes):
    """A finished stage with the checkpoint of a tiny MARGE; its parameters.

    `folder` becomes the link to its version, in a store next to it.
    """
    config = dataclasses.replace(tiny_models.CONFIG, **sizes, vocab_size=vocabulary.size)
    config = dataclasses.replace(config, vocab_multiple=128)
    shape = GroupShape(8, 24, 2)
    embedding = dataclasses.replace(
        tiny_models.EMBEDDING, similarity="cosine", query_length=12, passage_length=12
    )
    make = functools.partial(
        marge.Marge, config, seq2seq.DecoderConfig(1, 8, 0, 8, 12), marge.RelevanceConfig(1),
        embedding, vocabulary, shape, shape, 16, decoding.GenerationConfig(8),
    )  # fmt: skip
    one = partitioning.Partitioner(partitioning.MeshShape(1, 1, 1), devices=jax.devices()[:1])
    _, state, _ = train_state.create(make, optimizers.AdamW(1e-3, 1, 2), one, 5)
    planned = store_kit.plan(folder, "train", store=folder.parent / ".store")
    version = store_kit.started(planned)
    keeper = checkpoint_helpers.keeper(version / "checkpoints")
    keeper.save(state, {"plan": "none"})
    keeper.close()
    store_kit.finished(planned, {}, {"model": "."})
    return warm_start.Checkpoint(str(folder)).arrays()


def run(entry, files, **macros):
    """A stage, as its command runs it."""
    gin_config._set_config_is_locked(False)
    gin_config.clear_config()
    try:
        named = tuple((name, str(value)) for name, value in macros.items())
        files = tuple(f"{REPOSITORY}/gin_configs/{file}.gin" for file in files)
        return stage_runner.run_stage(gin_checks.Flags(files, named), entry)
    finally:
        gin_config._set_config_is_locked(False)
        gin_config.clear_config()


def assert_taken_over(found, given, fresh):
    """A fine-tuned model has exactly the encoder of the one it began as, and fresh parts."""
    assert {path.split("/")[0] for path in found} == {"encoder", *fresh}
    encoder = {path for path in given if path.startswith("encoder/")}
    assert encoder == {path for path in found if path.startswith("encoder/")}
    for path in encoder:
        np.testing.assert_allclose(found[path], given[path], atol=1e-10, err_msg=path)


def value_and_gradients(module, given, mesh=(1, 1, 1)):
    devices = jax.devices()[: int(np.prod(mesh))]
    partitioner = partitioning.Partitioner(partitioning.MeshShape(*mesh), devices=devices)
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def loss(params, given):
        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            return nnx.merge(graph, params, rest).loss(given, jax.random.key(0))[0].value()

    params = jax.device_put(params, partitioner.shardings(params))
    placed = jax.device_put(given, partitioner.batch_sharding)
    value, gradients = jax.jit(jax.value_and_grad(loss))(params, placed)
    return float(value), {
        "/".join(map(str, path)): np.asarray(leaf[...])
        for path, leaf in nnx.to_flat_state(gradients)
    }


def learn(module, batch_of, steps, metric):
    """The metric of each step of a training on batch_of(0), batch_of(1), ..."""
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    optimizer = optax.adam(3e-3)

    @jax.jit
    def step(params, state, given):
        def loss(params):
            loss, metrics = nnx.merge(graph, params, rest).loss(given, jax.random.key(0))
            return loss.value(), metrics[metric].value()

        (_, value), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    state, values = optimizer.init(params), []
    for number in range(steps):
        params, state, value = step(params, state, batch_of(number))
        values.append(float(value))
    return values
