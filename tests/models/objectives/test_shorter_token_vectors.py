"""Matryoshka learning of vectors of tokens: M3 and ColBERT next to plain forms, and on meshes."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses.joint_losses import JointLossConfig
from models.networks import text_embedding, token_representations
from models.objectives import colbert, m3
from t5x_style.interfaces.objective import Batch, Objective
from t5x_style.interfaces.representation import MULTI_VECTOR, SEGMENTS
from tests.models.losses.contrastive_batches import (
    GROUP,
    PACKED,
    PLAIN,
    QUERIES,
    largest_error,
    value_and_gradients,
)
from tests.models.objectives import test_colbert, test_m3

LENGTHS = (4, 2)
WEIGHT = 0.5  # of M3's vectors of tokens
LOSSES = JointLossConfig(
    {"dense": 1.0, "multi_vector": WEIGHT}, {"dense": 1.0, "multi_vector": 1.0}
)
BATCHES = {False: test_m3.without_teacher(PLAIN), True: test_m3.without_teacher(PACKED)}


def of_colbert(batch: Batch, lengths: tuple[int, ...], **settings: Any) -> colbert.ColBERT:
    return test_colbert.objective(batch, matryoshka=lengths, **settings)


def of_m3(batch: Batch, lengths: tuple[int, ...], **settings: Any) -> m3.M3:
    return test_m3.objective(batch, LOSSES, matryoshka=lengths, **settings)


def plain_colbert(model: colbert.ColBERT, batch: Batch, length: int) -> jax.Array:
    """The loss of a ColBERT whose projection has the first columns alone."""
    kernel = model.multi_vector.dense.kernel[...][:, :length]
    head = SimpleNamespace(dense=SimpleNamespace(kernel=kernel))
    cut: Any = SimpleNamespace(encoder=model.encoder, multi_vector=head)
    return test_colbert.plain_loss(cut, batch)


def plain_m3(model: m3.M3, batch: Batch, length: int) -> jax.Array:
    """As `plain_colbert`; M3's vectors are of all tokens but the first, and its score is a mean."""
    made = {}
    for side in ("query", "passage"):
        group = batch[side]
        positions = jnp.broadcast_to(jnp.arange(group["tokens"].shape[1]), group["tokens"].shape)
        states = model.encoder(group["tokens"], positions, group["segment_ids"])
        dense = model.multi_vector.dense
        short = states @ dense.kernel[...][:, :length] + dense.bias[...][:length]
        there = (group["segment_ids"] == 1) & (positions > 0)
        made[side] = short / jnp.linalg.norm(short, axis=-1, keepdims=True), there
    (queries, asked), (passages, held) = made["query"], made["passage"]
    cosines = jnp.einsum("qnd,pld->qpnl", queries, passages, precision="highest")
    best = jnp.where(held[:, None], cosines, -2.0).max(axis=-1)  # [Q, P, N]
    total = jnp.where(asked[:, None], best, 0.0).sum(axis=-1)
    scores = total / asked.sum(axis=1)[:, None] / test_m3.EMBEDDING.temperature
    documents = np.asarray(batch["passage"]["document_id"])[:, 0]
    numbers = np.arange(QUERIES * GROUP)
    mine = numbers // GROUP == np.arange(QUERIES)[:, None]
    compared = jnp.asarray(mine | (documents != documents[::GROUP, None]))
    logs = jax.nn.logsumexp(jnp.where(compared, scores, -jnp.inf), axis=1)
    return WEIGHT * jnp.mean(logs - scores[np.arange(QUERIES), numbers[::GROUP]])


MODELS = {"colbert": (of_colbert, plain_colbert), "m3": (of_m3, plain_m3)}


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_sums_over_the_lengths(name: str) -> None:
    make, plain = MODELS[name]
    batch = BATCHES[False]
    whole: Objective = make(batch, ())
    graph, params, rest = nnx.split(whole, nnx.Param, ...)

    def total(params: nnx.State) -> jax.Array:
        model: Any = nnx.merge(graph, params, rest)
        return sum((plain(model, batch, length) for length in LENGTHS), jnp.zeros(()))

    value, gradients = jax.jit(jax.value_and_grad(total))(params)
    short = float(value), [np.asarray(leaf) for leaf in jax.tree.leaves(gradients)]
    of_whole = value_and_gradients(whole, batch)
    assert min(short[0], of_whole[0]) > 0.5
    expected = (
        of_whole[0] + short[0],
        [one + other for one, other in zip(of_whole[1], short[1], strict=True)],
    )
    assert largest_error(value_and_gradients(make(batch, LENGTHS), batch), expected) <= 2e-5
    packed = BATCHES[True]
    model = make(packed, LENGTHS, exchange="ring", cells=20_000, encode_chunks=2)
    assert largest_error(value_and_gradients(model, packed, (2, 2, 2)), expected) <= 2e-5


@pytest.mark.parametrize("name", MODELS)
def test_metrics_and_contract_are_of_whole_vectors(name: str) -> None:
    make, batch = MODELS[name][0], BATCHES[False]
    whole, short = make(batch, ()), make(batch, LENGTHS)
    assert short.contract() == whole.contract()
    run = nnx.jit(lambda model: model.loss(batch, None)[1])
    found, expected = run(short), run(whole)
    assert found.keys() == expected.keys()
    for metric, one in found.items():
        assert float(one.value()) == pytest.approx(float(expected[metric].value()), rel=1e-6)


def test_first_dimensions_have_unit_length_and_nothing_stays_nothing() -> None:
    vectors = jnp.asarray([[[3.0, 4.0, 12.0], [0.0, 0.0, 0.0]]])
    segments = jnp.asarray([[1, 0]])
    found = token_representations.shorter({SEGMENTS: segments, "vectors": vectors}, 2)
    np.testing.assert_allclose(found["vectors"], [[[0.6, 0.8], [0.0, 0.0]]], rtol=1e-6)
    np.testing.assert_array_equal(found[SEGMENTS], segments)
    np.testing.assert_array_equal(text_embedding.shorter(vectors, 2, False), vectors[..., :2])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lengths", [(0,), (-1, 2), (2, 2), (8,)])
def test_lengths_that_are_no_shorter_vectors_are_refused(name: str, lengths: Any) -> None:
    with pytest.raises(ValueError, match=r"\.matryoshka: expected distinct lengths from 1 to"):
        MODELS[name][0](BATCHES[False], lengths)


def test_a_loss_without_vectors_of_tokens_is_refused() -> None:
    batch = BATCHES[False]
    for config in (
        test_m3.losses("dense"),
        dataclasses.replace(LOSSES, weights={"dense": 1.0, MULTI_VECTOR: 0.0}),
    ):
        with pytest.raises(ValueError, match="weight above 0 of 'multi_vector'"):
            test_m3.objective(batch, config, matryoshka=LENGTHS)
