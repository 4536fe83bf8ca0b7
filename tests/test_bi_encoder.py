"""InfoNCE against the formula written out, and the bi-encoder around it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from models import bi_encoder, embedding
from models.losses import contrastive
from t5x_style import partitioning
from t5x_style.objective import Batch, GroupShape, check_batch
from tests import parity_kit, tiny_models

QUERIES, GROUP = 4, 3


def candidates(
    query_id: list[int], owner: list[int], relevance: list[int], document: list[int]
) -> contrastive.Candidates:
    arrays = [jnp.array(x) for x in (query_id, owner, relevance, document)]
    valid = jnp.ones(len(query_id), bool), jnp.array(owner) >= 0
    return contrastive.match(*arrays, *valid)


def test_matching_as_a_table() -> None:
    # Query 8's positive, document 5, is also a hard negative of query 7: no negative of query 8.
    # The last passage is padding.
    found = candidates([7, 8], [7, 7, 8, 8, -1], [1, 0, 1, 0, 1], [4, 5, 5, 6, 9])
    np.testing.assert_array_equal(found.positive.astype(int), [[1, 0, 0, 0, 0], [0, 0, 1, 0, 0]])
    np.testing.assert_array_equal(found.negative.astype(int), [[0, 1, 1, 1, 0], [1, 0, 0, 1, 0]])


def naive_info_nce(logits: np.ndarray, found: contrastive.Candidates) -> float:
    losses = []
    for row, positive, negative in zip(logits, *map(np.asarray, found), strict=True):
        rest = np.exp(row[negative]).sum()
        terms = [
            -np.log(np.exp(row[p]) / (np.exp(row[p]) + rest)) for p in np.flatnonzero(positive)
        ]
        losses += [np.mean(terms)] if terms else []
    return float(np.mean(losses))


def test_info_nce_equals_the_formula_written_out() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 7)) * 3
    # Query 1 has two positives, query 2 none; passage 4 repeats passage 0's document.
    found = candidates(
        [0, 1, 2], [0, 0, 1, 1, 1, 2, 2], [1, 0, 1, 1, 0, 0, 0], [3, 4, 5, 6, 3, 7, 8]
    )
    loss = contrastive.info_nce(jnp.asarray(logits, jnp.float32), found)
    assert float(loss.value()) == pytest.approx(naive_info_nce(logits, found), rel=1e-5)
    assert float(loss.weight.sum()) == 2


def test_info_nce_is_softmax_cross_entropy_for_one_positive_each() -> None:
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(3, 6)), jnp.float32)
    found = candidates([0, 1, 2], [0, 0, 1, 1, 2, 2], [1, 0] * 3, list(range(6)))
    expected = -jax.nn.log_softmax(logits)[jnp.arange(3), jnp.arange(3) * 2].mean()
    assert float(contrastive.info_nce(logits, found).value()) == pytest.approx(
        float(expected), 1e-6
    )


def test_info_nce_gradients_also_where_nothing_can_be_learnt() -> None:
    rng = np.random.default_rng(2)
    found = candidates([0, 1, 2], [0, 0, 1, 1, -1], [1, 0, 1, 0, 0], [0, 1, 2, 3, 4])

    @jax.jit
    def loss(logits: jax.Array) -> jax.Array:
        return contrastive.info_nce(logits, found).value()

    check_grads(loss, (jnp.asarray(rng.normal(size=(3, 5)), jnp.float32),), 1, ("rev",), rtol=1e-2)
    alone = contrastive.Candidates(jnp.eye(2, dtype=bool), jnp.zeros((2, 2), bool))
    total = lambda x: contrastive.info_nce(x, alone).value()  # noqa: E731
    value, gradient = jax.value_and_grad(total)(jnp.full((2, 2), 90.0))
    assert float(value) == 0.0 and not np.asarray(gradient).any()
    nobody = contrastive.Candidates(jnp.zeros((2, 2), bool), jnp.ones((2, 2), bool))
    empty = contrastive.info_nce(jnp.ones((2, 2)), nobody)
    assert float(empty.weight.sum()) == 0 and float(empty.value()) == 0.0


def test_info_nce_survives_a_small_temperature() -> None:
    logits = jnp.array([[5e3, -5e3], [-5e3, 5e3]])
    found = candidates([0, 1], [0, 1], [1, 1], [0, 1])
    grads = jax.grad(lambda x: contrastive.info_nce(x, found).value())(-logits)
    assert np.isfinite(grads).all()
    assert float(contrastive.info_nce(-logits, found).value()) == pytest.approx(1e4)


def test_ranking_counts_ties_against_the_positive() -> None:
    found = candidates([0, 1], [0, 0, 1], [1, 0, 1], [0, 1, 2])
    metrics = contrastive.ranking_metrics(jnp.array([[1.0, 1.0, 0.5], [0.1, 0.2, 0.3]]), found)
    assert float(metrics["accuracy"].value()) == 0.5
    assert float(metrics["mrr"].value()) == 0.75


# --- the objective --------------------------------------------------------------------------------


def objective(**changes: object) -> bi_encoder.BiEncoder:
    return bi_encoder.BiEncoder(
        tiny_models.CONFIG,
        dataclasses.replace(tiny_models.EMBEDDING, **changes),
        tiny_models.VOCABULARY,
        GroupShape(rows=QUERIES, length=12, segments=1),
        GroupShape(rows=QUERIES * GROUP, length=12, segments=1),
        rngs=nnx.Rngs(0),
    )


QUERY_PARTS = tiny_models.segments(QUERIES, seed=1, longest=8)
PASSAGE_PARTS = [
    (100 + i // GROUP, tokens)
    for i, (_, tokens) in enumerate(tiny_models.segments(QUERIES * GROUP, seed=2, longest=8))
]
DOCUMENTS = [0, 1, 2, 3, 0, 4, 5, 6, 7, 8, 9, 10]  # passage 4 copies the first positive


def layout(rows: list[list[int]], length: int, most: int) -> dict[str, jax.Array]:
    """The passages with these numbers in these rows."""
    group = tiny_models.group([[PASSAGE_PARTS[i] for i in row] for row in rows], length, most)
    relevance, document = (np.zeros((len(rows), most), np.int32) for _ in range(2))
    for r, row in enumerate(rows):
        for s, i in enumerate(row):
            relevance[r, s], document[r, s] = i % GROUP == 0, DOCUMENTS[i]
    return {**group, "relevance": jnp.asarray(relevance), "document_id": jnp.asarray(document)}


UNPACKED: Batch = {
    "query": tiny_models.group([[part] for part in QUERY_PARTS], 12, 1),
    "passage": layout([[i] for i in range(QUERIES * GROUP)], 12, 1),
}
PACKED: Batch = {
    "query": tiny_models.group([QUERY_PARTS[2:], QUERY_PARTS[:2]], 20, 2),
    "passage": layout([[7, 2, 5], [0, 11, 4], [3, 1, 10], [9, 8, 6]], 24, 3),
}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_packing_and_order_change_nothing(pooling: str) -> None:
    module = objective(pooling=pooling, normalise=True, temperature=0.05)
    one, one_gradients = parity_kit.value_and_gradients(module, UNPACKED)
    other, other_gradients = parity_kit.value_and_gradients(module, PACKED)
    assert one == pytest.approx(other, rel=1e-5)
    for name, gradient in one_gradients.items():
        np.testing.assert_allclose(
            other_gradients[name], gradient, atol=1e-4, rtol=1e-4, err_msg=name
        )


def test_loss_equals_info_nce_of_its_own_vectors() -> None:
    module = objective(normalise=True, temperature=0.1)
    functions = module.functions()
    q = np.asarray(functions["embed_query"].call(UNPACKED["query"]))[:, 0]
    p = np.asarray(functions["embed_passage"].call(UNPACKED["passage"]))[:, 0]
    np.testing.assert_allclose(np.linalg.norm(q, axis=1), 1.0, rtol=1e-5)
    owners = [100 + i // GROUP for i in range(QUERIES * GROUP)]
    relevance = [int(i % GROUP == 0) for i in range(QUERIES * GROUP)]
    found = candidates([100, 101, 102, 103], owners, relevance, DOCUMENTS)
    assert not found.negative[0, 4], "a copy of the positive is no negative"
    loss, metrics = module.loss(UNPACKED, jax.random.key(0))
    assert float(loss.value()) == pytest.approx(naive_info_nce(q @ p.T / 0.1, found), rel=1e-4)
    assert set(metrics) == {"accuracy", "mrr"}


def test_cosine_does_not_depend_on_lengths() -> None:
    one = objective(similarity="cosine", normalise=False).loss(UNPACKED, jax.random.key(0))[0]
    other = objective(similarity="dot", normalise=True).loss(UNPACKED, jax.random.key(0))[0]
    assert float(one.value()) == pytest.approx(float(other.value()), rel=1e-5)


def test_global_negatives_on_a_mesh_equal_one_device() -> None:
    module = objective(normalise=True, temperature=0.1)
    expected, expected_gradients = parity_kit.value_and_gradients(module, UNPACKED)
    mesh = partitioning.Partitioner(partitioning.MeshShape(2, 2, 1), devices=jax.devices()[:4])
    placed = jax.device_put(UNPACKED, mesh.batch_sharding)
    found, gradients = parity_kit.value_and_gradients(module, placed)
    assert found == pytest.approx(expected, rel=1e-5)
    for name, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, atol=1e-5, err_msg=name)


def test_the_batch_it_asks_for_and_what_it_refuses() -> None:
    module = objective()
    assert module.couples_examples
    check_batch(module.batch_specs()[0], UNPACKED, "the test")
    assert module.contract().temperature == 1.0
    with pytest.raises(ValueError, match="pooling must be one of"):
        objective(pooling="max")
    with pytest.raises(ValueError, match="temperature must be above 0"):
        objective(temperature=0.0)


def test_a_zero_vector_has_no_direction_and_no_gradient() -> None:
    value, pull = jax.vjp(embedding.unit, jnp.zeros((1, 4)))
    assert not np.asarray(value).any()
    assert np.isfinite(pull(jnp.ones((1, 4)))[0]).all()
