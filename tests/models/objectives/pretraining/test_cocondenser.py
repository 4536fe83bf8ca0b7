"""coCondenser: its loss is the formula, packed, in chunks and on meshes, and what it refuses."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses.contrastive import ContrastiveConfig
from models.networks import bag
from models.objectives import cocondenser
from t5x_style.interfaces.objective import Batch, GroupShape, check_batch, embedder
from tests.kits import tiny_models
from tests.models.losses.contrastive_batches import (
    largest_error,
    shapes_of,
    value_and_gradients,
)

CONFIG = dataclasses.replace(tiny_models.CONFIG, layers=2)
DOCUMENTS = 16


def batch_of(order: list[int], rows: int, segments: int) -> Batch:
    """The spans of documents in this order, dealt to rows; slots that are left stay free."""
    batch: Batch = {}
    for seed, side in enumerate(cocondenser.SIDES):
        spans = tiny_models.segments(DOCUMENTS, seed=seed, longest=8)
        placed = [[spans[n] for n in order[row::rows]] for row in range(rows)]
        batch[side] = tiny_models.group(placed, 8 * segments, segments)
    valid = batch["passage"]["segment_valid"]
    batch["passage"]["relevance"] = valid.astype(jnp.int32)
    batch["passage"]["document_id"] = jnp.where(valid, batch["passage"]["example_id"] * 7, -1)
    return batch


PLAIN = batch_of([*range(DOCUMENTS)], DOCUMENTS, 1)
PACKED = batch_of(np.random.default_rng(3).permutation(DOCUMENTS).tolist(), 8, 3)


def objective(batch: Batch = PLAIN, **settings: Any) -> cocondenser.CoCondenser:
    arguments: dict[str, Any] = {
        "config": CONFIG, "embedding_config": tiny_models.EMBEDDING, "mask_rate": 0.3, "chunk": 16,
        "skip_from": 1, "contrastive_config": ContrastiveConfig(),
    }  # fmt: skip
    query, passage = shapes_of(batch)
    return cocondenser.CoCondenser(
        vocabulary=tiny_models.VOCABULARY, query=query, passage=passage, rngs=nnx.Rngs(0),
        **(arguments | settings),
    )  # fmt: skip


def corrupted(batch: Batch) -> Batch:
    return objective(batch).corrupt(batch, jax.random.key(2))


def plain_loss(model: cocondenser.CoCondenser, batch: Batch) -> jax.Array:
    """The formula over whole matrices: [2n, 2n] of spans, [2n, L, V] of logits."""
    both = [
        {name: array for name, array in batch[side].items() if name in batch["query"]}
        for side in cocondenser.SIDES
    ]
    text = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), *both)
    early, late = model.early_and_late(text)
    total = jnp.zeros(())
    for states in (late, model.condense(text, early, late)[1]):
        table = model.encoder.word_table[: CONFIG.vocab_size]
        logits = model.head.transform(states) @ table.T + model.head.bias[: CONFIG.vocab_size]
        labels = text["labels"]
        gold = jnp.take_along_axis(
            jax.nn.log_softmax(logits), jnp.maximum(labels, 0)[..., None], axis=2
        )[..., 0]
        total -= jnp.sum(jnp.where(labels >= 0, gold, 0)) / jnp.sum(labels >= 0)
    vectors = late[:, 0]
    scores = jnp.where(jnp.eye(len(vectors), dtype=bool), -jnp.inf, vectors @ vectors.T)
    partner = (jnp.arange(len(vectors)) + DOCUMENTS) % len(vectors)
    between = -jnp.diag(jax.nn.log_softmax(scores)[:, partner])
    return total + model.contrastive_weight * between.mean()


@pytest.mark.parametrize("weight", [pytest.param(1.0, marks=pytest.mark.slow), 0.3])
def test_loss_and_gradients_are_the_formula(weight: float) -> None:
    model, batch = objective(contrastive_weight=weight), corrupted(PLAIN)
    graph, params = nnx.split(model)
    plain = jax.jit(jax.value_and_grad(lambda p: plain_loss(nnx.merge(graph, p), batch)))
    value, gradients = plain(params)
    expected = float(value), [np.asarray(leaf) for leaf in jax.tree.leaves(gradients)]
    assert largest_error(value_and_gradients(model, batch), expected) <= 2e-5


@pytest.mark.parametrize(
    ("mesh", "exchange", "chunks"),
    [
        ((2, 2, 2), "gather", 2),
        pytest.param((8, 1, 1), "ring", 1, marks=pytest.mark.slow),
        pytest.param(None, "gather", 4, marks=pytest.mark.slow),
    ],
)
def test_packed_in_chunks_on_a_mesh_equals_one_device(
    mesh: Any, exchange: str, chunks: int
) -> None:
    expected = value_and_gradients(objective(), corrupted(PLAIN))
    config = ContrastiveConfig(exchange=exchange, chunk=4)
    model = objective(PACKED, contrastive_config=config, encode_chunks=chunks)
    found = value_and_gradients(model, corrupted(PACKED), mesh)
    assert largest_error(found, expected) <= 2e-5


def values(model: cocondenser.CoCondenser, batch: Batch) -> dict[str, float]:
    loss, metrics = nnx.jit(lambda m: m.loss(batch, jax.random.key(0)))(model)
    return {name: float(one.value()) for name, one in (metrics | {"loss": loss}).items()}


def test_metrics_and_what_has_no_partner() -> None:
    model, batch = objective(late_mlm=False), corrupted(PLAIN)
    found = values(model, batch)
    assert set(found) == {
        "loss", "head_loss", "head_accuracy", "contrastive", "accuracy", "mrr",
    }  # fmt: skip
    assert found["loss"] == pytest.approx(found["head_loss"] + found["contrastive"], rel=1e-6)
    lone = batch["passage"]["segment_valid"].at[0].set(False)
    without = batch | {"passage": batch["passage"] | {"segment_valid": lone}}
    _, metrics = model.loss(without, jax.random.key(0))
    assert float(metrics["contrastive"].weight[0]) == 2 * (DOCUMENTS - 1)


def test_spans_of_one_document_are_no_negatives_of_each_other() -> None:
    """With all spans from one document nothing is left to be distinguished from."""
    batch = corrupted(PLAIN)
    same = jnp.zeros_like(batch["passage"]["document_id"])
    found = values(objective(), batch | {"passage": batch["passage"] | {"document_id": same}})
    assert found["contrastive"] == pytest.approx(0, abs=1e-6) and found["accuracy"] == 1
    assert values(objective(), batch)["contrastive"] > 0.1


def test_each_span_has_masks_of_its_own() -> None:
    twins = PLAIN | {"passage": PLAIN["passage"] | PLAIN["query"]}
    masked = objective().corrupt(twins, jax.random.key(2))
    assert (masked["query"]["labels"] != masked["passage"]["labels"]).any()
    for side in cocondenser.SIDES:
        share = (masked[side]["labels"] >= 0).sum() / (masked[side]["segment_ids"] > 0).sum()
        assert 0.2 < float(share) < 0.4


def test_vectors_are_those_of_the_clean_text_and_the_batch_fits() -> None:
    model = objective(PACKED)
    check_batch(model.batch_specs()[0], PACKED, "the test")
    assert model.requires_full_batch and model.contract().pooling == "cls"
    group = PACKED["query"]
    found = embedder(model.functions(), "query")(group)
    states = model.encoder(group["tokens"], group["positions"], group["segment_ids"])
    expected = jnp.take_along_axis(states, group["cls_at"][:, :, None], axis=1)
    valid = np.asarray(group["segment_valid"])
    np.testing.assert_allclose(found[valid], expected[valid], atol=1e-5)


EMBEDDING = tiny_models.EMBEDDING


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embedding_config": dataclasses.replace(EMBEDDING, pooling="mean")}, "pooling 'cls'"),
        (
            {"embedding_config": dataclasses.replace(EMBEDDING, similarity="cosine")},
            "expected EmbeddingConfig.similarity 'dot'",
        ),
        ({"config": bag.BagConfig(50, 16, ())}, "state for each token"),
        ({"skip_from": 2}, "expected skip_from from 0 to 1"),
        ({"contrastive_config": ContrastiveConfig(margin=0.1)}, "fixes all but exchange and chunk"),
        ({"contrastive_config": ContrastiveConfig(exchange="local")}, "a text a row"),
        ({"contrastive_weight": -1.0}, "contrastive_weight of 0 or more"),
        ({"encode_chunks": 0}, "encode_chunks of 1 or more"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(PACKED, **settings)


def test_sides_of_other_sizes_read_alike() -> None:
    short = batch_of([*range(DOCUMENTS)], 4, 4)
    batch = {"query": PLAIN["query"], "passage": short["passage"]}
    masked = objective(batch).corrupt(batch, jax.random.key(2))
    found = values(objective(batch), masked)
    assert found["loss"] == pytest.approx(values(objective(), corrupted(PLAIN))["loss"], rel=1e-5)
    assert GroupShape(4, 32, 4) in shapes_of(batch)
