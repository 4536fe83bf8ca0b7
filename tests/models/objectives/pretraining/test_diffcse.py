"""DiffCSE: its loss is the formula, packed and on eight devices; edits, and what it refuses."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses import contrastive
from models.networks import bag, batch_norm_head
from models.objectives import diffcse
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import Batch, GroupShape, check_batch, embedder
from tests.kits import tiny_models

CONFIG = dataclasses.replace(tiny_models.CONFIG, layers=1, dropout=0.1, attention_dropout=0.1)
GENERATOR = dataclasses.replace(tiny_models.CONFIG, layers=1, hidden=8, mlp=16)
EMBEDDING = dataclasses.replace(tiny_models.EMBEDDING, similarity="cosine", temperature=0.05)
TEXTS = tiny_models.segments(8, longest=9)
ALONE: Batch = {"text": tiny_models.group([[one] for one in TEXTS], 12, 1)}
ORDER = [3, 0, 7, 5, 1, 6, 2, 4]
PACKED: Batch = {
    "text": tiny_models.group([[TEXTS[n] for n in ORDER[row::4]] for row in range(4)], 27, 3)
}
KEY = jax.random.key(5)
READ = ("tokens", "positions", "segment_ids")


def objective(batch: Batch = ALONE, **settings: Any) -> diffcse.DiffCSE:
    rows, length = batch["text"]["tokens"].shape
    arguments: dict[str, Any] = {
        "config": CONFIG, "embedding_config": EMBEDDING, "generator_config": GENERATOR,
        "text": GroupShape(rows, length, batch["text"]["cls_at"].shape[1]), "chunk": 16,
        "contrastive_config": contrastive.ContrastiveConfig(), "replaced_weight": 0.5,
    }  # fmt: skip
    return diffcse.DiffCSE(
        vocabulary=tiny_models.VOCABULARY, rngs=nnx.Rngs(0), **(arguments | settings)
    )


def value_and_gradients(model: diffcse.DiffCSE, loss: Any, train: bool) -> tuple[float, Any]:
    """Of `loss(model)`, with respect to all parameters."""
    graph, params = nnx.split(model)

    def total(params: nnx.State) -> jax.Array:
        module = nnx.merge(graph, params)
        module.train() if train else module.eval()
        return loss(module)

    value, gradients = jax.jit(jax.value_and_grad(total))(params)
    flat = nnx.to_flat_state(gradients)
    return float(value), {"/".join(map(str, p)): np.asarray(v[...]) for p, v in flat}


def same(found: tuple[float, Any], expected: tuple[float, Any]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=2e-5)
    for name, gradient in expected[1].items():
        scale = max(1.0, float(np.abs(gradient).max()))
        np.testing.assert_allclose(
            found[1][name], gradient, atol=3e-5 * scale, rtol=0, err_msg=name
        )


def plain_loss(model: diffcse.DiffCSE, batch: Batch) -> jax.Array:
    """The paper's two losses over whole matrices, a text a row."""
    text = batch["text"]
    one_key, other_key, *read_keys = jax.random.split(KEY, 4)
    raw = jnp.concatenate([model.vectors(batch, key) for key in (one_key, other_key)])

    def normal(x: jax.Array) -> jax.Array:
        return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)

    head = model.head
    wide = normal(raw @ head.first.kernel[...]) * head.scale[...] + head.shift[...]
    projected = normal(jnp.maximum(wide, 0) @ head.second.kernel[...])
    unit = projected / jnp.linalg.norm(projected, axis=1, keepdims=True)
    one, other = jnp.split(unit, 2)
    total = -jnp.mean(jnp.diag(jax.nn.log_softmax(one @ other.T / 0.05)))
    losses, real = [], text["segment_ids"] > 0
    for vectors, edited, key in zip(
        jnp.split(projected, 2), diffcse.EDITED, read_keys, strict=True
    ):
        embedding_key, layers_key = jax.random.split(key)
        reader = model.decoder.encoder
        states = reader.embed(text[edited], text["positions"], None, embedding_key)
        states = states.at[:, 0].set(vectors)
        view = reader.view(text["positions"], text["segment_ids"], layers_key)
        states = reader.run(states, view, 0, CONFIG.layers, layers_key)
        chance = jax.nn.log_softmax(model.decoder.head(states))
        labels = (text[edited] != text["tokens"]).astype(jnp.int32)
        losses.append(-jnp.take_along_axis(chance, labels[:, :, None], axis=2)[..., 0])
    tokens = jnp.where(jnp.stack([real, real]), jnp.stack(losses), 0)
    return total + model.replaced_weight * tokens.sum() / (2 * real.sum())


def test_loss_and_gradients_are_the_formula() -> None:
    model = objective()
    batch = model.corrupt(ALONE, jax.random.key(2))
    expected = value_and_gradients(model, lambda m: plain_loss(m, batch), True)
    found = value_and_gradients(model, lambda m: m.loss(batch, KEY)[0].value(), True)
    same(found, expected)
    for name, gradient in found[1].items():
        assert not (name.startswith("generator/") and gradient.any()), name
        zero = "generator/" in name or "key/bias" in name or "embeddings/type" in name
        assert zero or gradient.any(), name


def loss_of(batch: Batch) -> Any:
    return lambda model: model.loss(batch, KEY)[0].value()


def test_packed_in_chunks_equals_a_text_a_row() -> None:
    """Without dropout, whose draws depend on the rows; free segments count nothing."""
    model, packed = objective(), objective(PACKED, encode_chunks=2)
    expected = value_and_gradients(model, loss_of(model.corrupt(ALONE, jax.random.key(2))), False)
    batch = packed.corrupt(PACKED, jax.random.key(2))
    same(value_and_gradients(packed, loss_of(batch), False), expected)


def test_eight_devices_give_what_one_gives() -> None:
    model = objective()
    graph, params = nnx.split(model)
    clean = ALONE

    def loss(params: nnx.State, batch: Batch) -> jax.Array:
        module = nnx.merge(graph, params)
        module.eval()
        return module.loss(module.corrupt(batch, jax.random.key(2)), KEY)[0].value()

    expected, gradients = jax.jit(jax.value_and_grad(loss))(params, clean)
    partitioner = partitioning.Partitioner(partitioning.MeshShape(8, 1, 1))
    state, _ = partitioner.init(lambda: nnx.split(objective())[1])
    placed = jax.device_put(clean, partitioner.batch_sharding)
    with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
        found, others = jax.jit(jax.value_and_grad(loss))(state, placed)
    assert float(found) == pytest.approx(float(expected), rel=2e-5)
    for ours, true in zip(jax.tree.leaves(others), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(ours, true, atol=5e-5 * max(1.0, np.abs(true).max()))


def test_edits_are_the_generators_and_differ() -> None:
    model = objective(mask_rate=0.5)
    text = nnx.jit(lambda m: m.corrupt(ALONE, jax.random.key(2)))(model)["text"]
    tokens, first, again = (np.asarray(text[name]) for name in ("tokens", *diffcse.EDITED))
    assert (text["tokens"] == ALONE["text"]["tokens"]).all() and (first != again).any()
    fixed = (tokens < 4) | (np.asarray(text["segment_ids"]) == 0)
    for edited in (first, again):
        assert (edited[fixed] == tokens[fixed]).all() and (edited[~fixed] != 4).all()
        assert 0.2 < (edited != tokens)[~fixed].mean() < 0.8
    _, metrics = nnx.jit(lambda m: m.loss({"text": text}, KEY))(model)
    real = np.asarray(text["segment_ids"]) > 0
    share = np.mean([(edited != tokens)[real].mean() for edited in (first, again)])
    assert float(metrics["replaced_share"].value()) == pytest.approx(share)
    assert set(metrics) >= {"contrastive", "replaced_loss", "replaced_accuracy", "kept_accuracy"}


def test_the_vector_is_all_that_the_discriminator_knows_of_the_original() -> None:
    model = objective()
    model.eval()
    text = ALONE["text"]
    vectors = jax.random.normal(jax.random.key(1), (8, 1, 16))
    read = nnx.jit(lambda m, tokens, vectors: m.decoder(tokens, vectors, text))
    logits = read(model, text["tokens"], vectors)
    other_cls = text["tokens"].at[:, 0].set(7)
    np.testing.assert_allclose(read(model, other_cls, vectors), logits, atol=1e-6)
    assert np.abs(read(model, text["tokens"], -vectors) - logits).max() > 1e-3


def test_batch_normalisation_leaves_out_what_is_not_valid() -> None:
    features = jnp.asarray(np.random.default_rng(0).normal(2, 3, (6, 4)))
    valid = jnp.array([True, True, False, True, True, False])
    strange = jnp.where(valid[:, None], features, jnp.nan)
    found = np.asarray(batch_norm_head.normalised(strange, valid))
    kept = np.asarray(features)[np.asarray(valid)]
    expected = (kept - kept.mean(0)) / np.sqrt(kept.var(0) + 1e-5)
    np.testing.assert_allclose(found[np.asarray(valid)], expected, atol=1e-5)
    assert not found[~np.asarray(valid)].any()
    summed = jax.grad(lambda x: (batch_norm_head.normalised(x, valid) ** 3).sum())(strange)
    assert np.isfinite(summed).all() and not summed[~valid].any()


def test_what_is_served_and_what_a_batch_holds() -> None:
    model = objective(PACKED)
    check_batch(model.batch_specs()[0], PACKED, "the test")
    assert model.requires_full_batch and model.frozen_paths == ("^generator/",)
    text = PACKED["text"]
    served = nnx.jit(lambda m: embedder(m.functions(), "passage")(text))(model)
    states = nnx.jit(lambda m: m.encoder(*(text[name] for name in READ)))(model)
    pooled = jnp.take_along_axis(states, text["cls_at"][:, :, None], axis=1)
    valid = np.asarray(text["segment_valid"])
    np.testing.assert_allclose(served[valid], pooled[valid], atol=1e-5)  # without the head
    unit = nnx.jit(lambda m: m.embed(PACKED))(model)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), valid.reshape(-1), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"config": tiny_models.CONFIG}, "expected a rate above 0 in BertConfig, found none"),
        ({"config": bag.BagConfig(50, 16, ())}, "state for each token"),
        (
            {"generator_config": dataclasses.replace(GENERATOR, vocab_size=60)},
            "DiffCSE.generator_config: expected the encoder's vocabulary of 50",
        ),
        (
            {"generator_config": dataclasses.replace(GENERATOR, max_positions=20)},
            "at least its 24 positions, found 50 and 20",
        ),
        ({"mask_rate": 0.0}, "mask rate: expected more than 0"),
        ({"replaced_weight": 0.0}, "replaced_weight: expected a number above 0"),
        ({"text": GroupShape(1, 12, 1)}, "room for two texts or more"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(**settings)
