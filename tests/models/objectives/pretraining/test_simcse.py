"""SimCSE: its loss is the formula, on one device and eight, packed and not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses import contrastive
from models.networks import bag, modernbert
from models.objectives import simcse
from t5x_style.distributed import partitioning
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.objective import Batch, GroupShape, check_batch, embedder
from tests.kits import tiny_models

CONFIG = dataclasses.replace(tiny_models.CONFIG, dropout=0.1, attention_dropout=0.1)
MODERN = modernbert.ModernBertConfig(
    vocab_size=50, hidden=16, layers=3, heads=2, mlp=24, max_positions=24, window=4, dropout=0.1,
    initializer_range=0.2, vocab_multiple=32,
)  # fmt: skip
SEGMENTS = tiny_models.segments(8, longest=9)
ALONE: Batch = {"text": tiny_models.group([[one] for one in SEGMENTS], 12, 1)}
PACKED: Batch = {"text": tiny_models.group([SEGMENTS[n : n + 2] for n in range(0, 8, 2)], 20, 2)}
TEMPERATURE = 0.05


def objective(
    batch: Batch = ALONE,
    config: TokenEncoderConfig = CONFIG,
    exchange: str = "gather",
    pooling: str = "cls",
    **options: object,
) -> simcse.SimCSE:
    embedding = dataclasses.replace(
        tiny_models.EMBEDDING, similarity="cosine", temperature=TEMPERATURE, pooling=pooling
    )
    rows, length = batch["text"]["tokens"].shape
    segments = batch["text"]["cls_at"].shape[1]
    return simcse.SimCSE(
        config, embedding, tiny_models.VOCABULARY, GroupShape(rows, length, segments),
        contrastive.ContrastiveConfig(exchange=exchange), **options, rngs=nnx.Rngs(0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "config", "options"),
    [
        pytest.param(ALONE, CONFIG, {}, marks=pytest.mark.slow),
        (PACKED, MODERN, {"pooling": "mean", "training_head": False}),
        (PACKED, CONFIG, {"encode_chunks": 2}),
    ],
)
def test_the_loss_is_the_formula(batch: Batch, config: TokenEncoderConfig, options: dict) -> None:
    model, key = objective(batch, config, **options), jax.random.key(5)
    loss, metrics = nnx.jit(lambda m: m.loss(batch, key))(model)
    embed = nnx.jit(lambda m, key: m.embed(batch, key))
    one, other = (np.asarray(embed(model, view), np.float64) for view in jax.random.split(key))
    scores = one @ other.T / TEMPERATURE
    shifted = scores - scores.max(1, keepdims=True)
    each = np.log(np.exp(shifted).sum(1)) - np.diag(shifted)
    assert float(loss.value()) == pytest.approx(each.mean(), rel=1e-5)
    assert float(loss.weight[0]) == len(SEGMENTS)
    right = (scores.argmax(1) == np.arange(len(SEGMENTS))).mean()
    assert float(metrics["accuracy"].value()) == pytest.approx(right)
    apart = np.square(one - other).sum(1).mean()
    assert float(metrics["alignment"].value()) == pytest.approx(apart, rel=1e-4)
    assert apart > 1e-4  # dropout makes both differ


def test_free_segments_count_nothing() -> None:
    rows = [SEGMENTS[:2], SEGMENTS[2:3], SEGMENTS[3:5], SEGMENTS[5:6]]
    batch: Batch = {"text": tiny_models.group(rows, 20, 2)}
    model, key = objective(batch), jax.random.key(5)
    loss, _ = model.loss(batch, key)
    valid = np.asarray(batch["text"]["segment_valid"]).reshape(-1)
    one, other = (np.asarray(model.embed(batch, k))[valid] for k in jax.random.split(key))
    scores = jnp.asarray(one @ other.T / TEMPERATURE)
    expected = -jnp.mean(jnp.diag(jax.nn.log_softmax(scores, axis=1)))
    assert float(loss.value()) == pytest.approx(float(expected), rel=1e-5)


def test_each_parameter_gets_a_gradient_and_the_head_is_not_served() -> None:
    model = objective()
    graph, params = nnx.split(model)
    key = jax.random.key(1)
    gradients = jax.jit(jax.grad(lambda p: nnx.merge(graph, p).loss(ALONE, key)[0].value()))(params)
    for path, gradient in nnx.to_flat_state(gradients):
        name = "/".join(map(str, path))
        unused = "key/bias" in name or "embeddings/type" in name
        assert unused or np.asarray(gradient[...]).any(), name
    served = embedder(model.functions(), "passage")(ALONE["text"])
    assert served.shape == (8, 1, 16)
    plain = objective(training_head=False)
    nnx.update(plain.encoder, nnx.state(model.encoder))
    found = embedder(plain.functions(), "passage")(ALONE["text"])
    np.testing.assert_array_equal(found, served)


@pytest.mark.parametrize("exchange", ["gather", pytest.param("ring", marks=pytest.mark.slow)])
def test_eight_devices_give_the_loss_of_one(exchange: str) -> None:
    """Without dropout's key, so that both views are the same on any mesh."""
    model = objective(exchange=exchange)
    graph, params = nnx.split(model)

    def loss(params: nnx.State, batch: Batch) -> jax.Array:
        module = nnx.merge(graph, params)
        module.eval()
        return module.loss(batch, jax.random.key(0))[0].value()

    expected = jax.jit(loss)(params, ALONE)
    partitioner = partitioning.Partitioner(partitioning.MeshShape(8, 1, 1))
    state, _ = partitioner.init(lambda: nnx.split(objective(exchange=exchange))[1])
    placed = jax.device_put(ALONE, partitioner.batch_sharding)
    with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
        found = jax.jit(loss)(state, placed)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_the_batch_and_the_contract() -> None:
    model = objective(PACKED)
    check_batch(model.batch_specs()[0], PACKED, "the test")
    assert model.requires_full_batch
    assert model.contract().similarity == "cosine" and model.contract().temperature == TEMPERATURE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": tiny_models.CONFIG}, "expected a rate above 0 in BertConfig, found none"),
        (
            {"config": bag.BagConfig(50, 16, ())},
            "SimCSE: expected an encoder with a state for each token, .* BagConfig",
        ),
        ({"encode_chunks": 0}, "encode_chunks of 1 or more"),
        ({"pooling": "weighted_mean"}, "does not give 'weighted_mean'"),
        ({"batch": PACKED, "exchange": "local"}, "a text a row"),
    ],
)
def test_what_cannot_work_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(**options)
