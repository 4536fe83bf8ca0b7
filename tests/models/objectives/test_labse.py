"""LaBSE's step: packed or not, in chunks, on meshes, by either way; what it trains and refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses import contrastive
from models.networks import bag, text_embedding
from models.objectives import labse
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape
from tests.kits import tiny_models

PAIRS = 24
CONFIG = dataclasses.replace(tiny_models.CONFIG, layers=1)
EMBEDDING = dataclasses.replace(
    tiny_models.EMBEDDING, pooling="pooler", similarity="cosine", normalise=True, temperature=0.05
)


def group(seed, segments, said=None):
    """Pair n in row n, or three in a row of eight."""
    parts = tiny_models.segments(PAIRS, seed=seed, longest=8)
    parts = [(n, tokens) for n, (_, tokens) in enumerate(parts)]
    rows = [parts[row::8] for row in range(8)] if segments > 1 else [[part] for part in parts]
    made = tiny_models.group(rows, 8 * segments, segments)
    if said is None:
        return made
    ids = np.asarray(made["example_id"])
    extra = {
        "relevance": np.asarray(made["segment_valid"]).astype(np.int32),
        "document_id": np.where(ids >= 0, np.asarray(said)[np.maximum(ids, 0)], -1),
    }
    return made | {name: jnp.asarray(array, jnp.int32) for name, array in extra.items()}


def batch(segments, said=None):
    said = np.arange(PAIRS) if said is None else said
    return {"source": group(1, segments), "target": group(2, segments, said)}


def make(segments, exchange="gather", chunks=1, encoder=CONFIG, **changes):
    shape = GroupShape(8 if segments > 1 else PAIRS, 8 * segments, segments)
    config = contrastive.ContrastiveConfig(both_directions=True, margin=0.3, exchange=exchange)
    return labse.LaBSE(
        encoder, dataclasses.replace(EMBEDDING, **changes), tiny_models.VOCABULARY, shape, shape,
        config, chunks, rngs=nnx.Rngs(0),
    )  # fmt: skip


def loss_and_gradients(model, given, mesh=(1, 1, 1)):
    devices = jax.devices()[: int(np.prod(mesh))]
    partitioner = partitioning.Partitioner(partitioning.MeshShape(*mesh), devices=devices)
    model.eval()
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params, given):
        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            total, metrics = nnx.merge(graph, params, rest).loss(given, jax.random.key(0))
        return total.value(), metrics["accuracy"].value()

    placed = jax.device_put(given, partitioner.batch_sharding)
    (value, accuracy), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, placed)
    flat = {"/".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(gradients)}
    return float(value), float(accuracy), {name: np.asarray(x) for name, x in flat.items()}


@pytest.fixture(scope="module")
def alone():
    return loss_and_gradients(make(1), batch(1))


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-5) and found[1] == expected[1]
    for name, gradient in expected[2].items():
        scale = max(float(np.abs(gradient).max()), 1e-3)
        np.testing.assert_allclose(found[2][name], gradient, atol=1e-4 * scale, err_msg=name)


@pytest.mark.parametrize(
    ("segments", "chunks", "mesh", "exchange"),
    [
        pytest.param(3, 1, (1, 1, 1), "gather", marks=pytest.mark.slow),
        (1, 3, (1, 1, 1), "gather"),
        (3, 1, (2, 2, 2), "ring"),
        pytest.param(1, 1, (8, 1, 1), "gather", marks=pytest.mark.slow),
    ],
)
def test_packing_chunks_and_meshes_change_nothing(alone, segments, chunks, mesh, exchange):
    assert_same(loss_and_gradients(make(segments, exchange, chunks), batch(segments), mesh), alone)


BAG = bag.BagConfig(CONFIG.vocab_size, CONFIG.hidden, tiny_models.VOCABULARY.special_ids)
OTHERS = {"mean": CONFIG, "weighted_mean": BAG}


@pytest.mark.parametrize("pooling", [pytest.param("mean", marks=pytest.mark.slow), "weighted_mean"])
@pytest.mark.parametrize(
    ("segments", "chunks", "mesh"),
    [
        pytest.param(3, 1, (1, 1, 1), marks=pytest.mark.slow),
        pytest.param(1, 3, (1, 1, 1), marks=pytest.mark.slow),
        (3, 1, (2, 2, 2)),
    ],
)
def test_other_poolings_and_a_bag_are_the_same_on_any_mesh(pooling, segments, chunks, mesh):
    alone = loss_and_gradients(make(1, encoder=OTHERS[pooling], pooling=pooling), batch(1))
    model = make(segments, chunks=chunks, encoder=OTHERS[pooling], pooling=pooling)
    assert_same(loss_and_gradients(model, batch(segments), mesh), alone)
    assert all(name.startswith("encoder/") for name in alone[2])
    assert any(np.abs(gradient).max() > 0 for gradient in alone[2].values())


def expected_loss(scores):
    """Both directions, of scores [n, n] with the margin taken off."""

    def direction(scores):
        scores = scores / EMBEDDING.temperature
        own = np.diag(scores)
        top = scores.max(axis=1)
        return (top + np.log(np.exp(scores - top[:, None]).sum(axis=1)) - own).mean()

    return direction(scores) + direction(scores.T)


def scores_of(model):
    vectors = [np.asarray(model.embed(group(seed, 1))) for seed in (1, 2)]
    np.testing.assert_allclose(np.linalg.norm(vectors[0], axis=1), 1, rtol=1e-5)
    return vectors[0] @ vectors[1].T - 0.3 * np.eye(PAIRS)


def test_local_negatives_are_those_of_the_same_device(alone):
    model = make(1, "local")
    scores = scores_of(model)
    shares = [scores[first : first + 3, first : first + 3] for first in range(0, PAIRS, 3)]
    found = loss_and_gradients(model, batch(1), (8, 1, 1))
    assert found[0] == pytest.approx(np.mean([expected_loss(one) for one in shares]), rel=1e-4)
    assert found[0] < alone[0]
    with pytest.warns(UserWarning, match="'local' on one device"):
        assert_same(loss_and_gradients(model, batch(1)), alone)
    with pytest.raises(ValueError, match="a text a row and as many rows on both sides"):
        make(3, "local")


def test_what_says_the_same_is_no_negative(alone):
    said = np.arange(PAIRS)
    said[5] = said[0]
    model = make(1)
    scores = scores_of(model)
    scores[0, 5] = scores[5, 0] = -np.inf
    expected = expected_loss(scores)
    assert loss_and_gradients(model, batch(1, said))[0] == pytest.approx(expected, rel=1e-4)
    assert abs(expected - alone[0]) > 1e-3


def test_it_asks_for_what_the_pipeline_gives():
    specs = make(3).batch_specs()[0]
    given = batch(3)
    assert {name: set(one) for name, one in specs.items()} == {
        name: set(one) for name, one in given.items()
    }
    for name, features in specs.items():
        for feature, spec in features.items():
            assert given[name][feature].shape == spec.shape, (name, feature)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "weighted_mean"}, "Encoder does not give 'weighted_mean'"),
        ({"similarity": "dot"}, "similarity 'cosine'"),
    ],
)
def test_other_vectors_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(1, **changes)
    with pytest.raises(ValueError, match="encode_chunks of 1 or more"):
        make(1, chunks=0)


def test_a_pooler_that_is_not_there_is_refused():
    from models.networks import bert

    encoder = bert.Encoder(CONFIG, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="Encoder does not give 'pooler'"):
        text_embedding.embed(encoder, group(1, 1), EMBEDDING)
