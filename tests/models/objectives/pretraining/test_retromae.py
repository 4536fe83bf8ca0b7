"""RetroMAE as an objective: packing, pure loss, its terms, meshes, and parity that can fail."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from models.objectives.retromae import RetroMAE
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import GroupShape, check_batch, embedder
from tests.kits import packed_rows, tiny_models
from tests.parity import parity

GOLDEN = Path(__file__).parents[2] / "golden" / "retromae" / "seed11"
KEY = jax.random.key(3)
PASSAGES = [packed_rows.passage(n, 7 * n) for n in (3, 4, 9, 10, 12, 14, 17, 24)]
ALONE = [[one] for one in PASSAGES]
PACKED = [[PASSAGES[4], PASSAGES[5]], [PASSAGES[7], PASSAGES[0]], [PASSAGES[2], PASSAGES[6]]]
PACKED += [[PASSAGES[3], PASSAGES[1]]]


def model(rows, length, segments, **changes):
    options = {
        "config": tiny_models.CONFIG,
        "embedding_config": tiny_models.EMBEDDING,
        "vocabulary": tiny_models.VOCABULARY,
        "text": GroupShape(rows, length, segments),
        "encoder_mask_rate": 0.3,
        "decoder_mask_rate": 0.5,
        "chunk": 16,
    }
    made = RetroMAE(**options | changes, rngs=nnx.Rngs(0))
    made.eval()
    return made


def evaluate(objective, group, key=KEY, mesh=None):
    """Loss, metrics and gradients of a clean group; under a mesh as the engine has it."""
    context = jax.sharding.use_abstract_mesh(mesh.abstract_mesh) if mesh else nullcontext()
    graph, params, rest = nnx.split(objective, nnx.Param, ...)

    @jax.jit
    def run(params, group):
        def loss(params):
            module = nnx.merge(graph, params, rest)
            batch = jax.lax.stop_gradient(module.corrupt({"text": group}, key))
            with context:
                mean, metrics = module.loss(batch, key)
            return mean.value(), {name: metric.value() for name, metric in metrics.items()}

        return jax.value_and_grad(loss, has_aux=True)(params)

    (loss, metrics), gradients = run(params, group)
    return loss, metrics, gradients


def compiled_loss(objective, batch):
    """The Mean of a corrupted batch as a compiled function of (batch, key)."""
    graph, state = nnx.split(objective)
    run = jax.jit(lambda state, b, key: nnx.merge(graph, state).loss(b, key)[0])
    return lambda key, b=batch: run(state, b, key)


def corrupted(objective):
    group = packed_rows.group(ALONE, 24, 1)
    return jax.jit(lambda g: objective.corrupt({"text": g}, KEY))(group)


@pytest.fixture(scope="module")
def unpacked():
    return evaluate(model(8, 24, 1), packed_rows.group(ALONE, 24, 1))


@pytest.mark.parametrize(
    ("length", "segments", "more"), [pytest.param(27, 2, 0, marks=pytest.mark.slow), (40, 3, 1)]
)
def test_packed_passages_have_the_same_loss_and_gradient(unpacked, length, segments, more):
    rows = PACKED + [[]] * more  # a row of padding changes nothing
    group = packed_rows.group(rows, length, segments)
    found = evaluate(model(len(rows), length, segments), group)
    expected = unpacked
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-5, err_msg=name)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # noqa: E731
    jax.tree.map(close, found[2], expected[2])


def test_metrics_are_what_they_say(unpacked):
    loss, metrics, _ = unpacked
    np.testing.assert_allclose(loss, metrics["encoder_loss"] + metrics["decoder_loss"], rtol=1e-6)
    lengths = np.asarray([len(one.tokens) for one in PASSAGES])
    budget = sum(max(1, round(n * 0.3)) for n in lengths.tolist())
    assert metrics["masked_share"] <= budget / lengths.sum()
    assert 0.4 < metrics["visible_share"] < 0.6
    assert 0 <= metrics["decoder_accuracy"] <= 1 and 0 <= metrics["encoder_accuracy"] <= 1


def test_weights_multiply_their_terms(unpacked):
    weighted = model(8, 24, 1, encoder_weight=0.25, decoder_weight=3.0)
    loss, metrics, _ = evaluate(weighted, packed_rows.group(ALONE, 24, 1))
    np.testing.assert_allclose(
        loss, 0.25 * unpacked[1]["encoder_loss"] + 3 * unpacked[1]["decoder_loss"], rtol=1e-5
    )
    np.testing.assert_allclose(metrics["decoder_loss"], unpacked[1]["decoder_loss"], rtol=1e-6)


def test_corruption_adds_features_and_keeps_the_text_clean():
    objective, group = model(4, 27, 2), packed_rows.group(PACKED, 27, 2)
    text = jax.jit(lambda g: objective.corrupt({"text": g}, KEY)["text"])(group)
    for name, array in group.items():
        np.testing.assert_array_equal(text[name], array)
    predicted = np.asarray(text["encoder_labels"]) != -100
    np.testing.assert_array_equal(text["encoder_labels"][predicted], group["tokens"][predicted])
    changed = np.asarray(text["encoder_tokens"] != group["tokens"])
    assert changed.any() and not (changed & ~predicted).any()
    inner = np.asarray(text["decoder_labels"]) != -100
    starts = np.asarray(group["positions"]) == 0
    assert not (inner & starts).any()
    assert inner.sum() == sum(len(one.tokens) - 2 for one in PASSAGES)
    assert text["decoder_visible"].shape == (4, 27, 27)


def test_loss_is_a_pure_function_of_the_corrupted_batch():
    objective = model(8, 24, 1)
    loss = compiled_loss(objective, corrupted(objective))
    whole = loss(jax.random.key(1))
    assert whole.value() == loss(jax.random.key(2)).value()
    batch = corrupted(objective)
    halves = [loss(KEY, jax.tree.map(lambda x, h=h: x[h], batch)) for h in (np.s_[:4], np.s_[4:])]
    np.testing.assert_allclose(MetricSum.merge(*halves).value(), whole.value(), rtol=1e-5)


def test_dropout_follows_the_key_in_training():
    config = dataclasses.replace(tiny_models.CONFIG, dropout=0.3)
    objective = model(8, 24, 1, config=config)
    objective.train()
    loss = compiled_loss(objective, corrupted(objective))
    assert loss(KEY).value() == loss(KEY).value() != loss(jax.random.key(4)).value()


def test_vectors_are_the_cls_states_packed_or_not():
    def vectors(rows, length, segments):
        group = packed_rows.group(rows, length, segments)
        graph, state = nnx.split(model(len(rows), length, segments))
        embed = jax.jit(lambda s, g: embedder(nnx.merge(graph, s).functions(), "passage")(g))
        found = embed(state, group)
        ids, valid = np.asarray(group["example_id"]), np.asarray(group["segment_valid"])
        return dict(zip(ids[valid].tolist(), np.asarray(found)[valid], strict=True))

    alone, packed = vectors(ALONE, 24, 1), vectors(PACKED, 27, 2)
    assert alone.keys() == packed.keys()
    for example, vector in alone.items():
        np.testing.assert_allclose(packed[example], vector, rtol=1e-5, atol=1e-6)


def test_a_few_steps_lower_the_loss():
    objective, group = model(8, 24, 1), packed_rows.group(ALONE, 24, 1)
    graph, params, rest = nnx.split(objective, nnx.Param, ...)
    optimizer = optax.adam(1e-2)

    def loss(params, key):
        module = nnx.merge(graph, params, rest)
        return module.loss(module.corrupt({"text": group}, key), key)[0].value()

    @jax.jit
    def step(params, state, key):
        value, gradients = jax.value_and_grad(loss)(params, key)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    state, values = optimizer.init(params), []
    for i in range(30):
        params, state, value = step(params, state, jax.random.fold_in(KEY, i))
        values.append(float(value))
    assert np.mean(values[-5:]) < 0.85 * np.mean(values[:5])


def test_a_mesh_gives_the_numbers_of_one_device(unpacked):
    partitioner = Partitioner(MeshShape(2, 2, 2))
    objective = model(8, 24, 1)
    shardings = partitioner.shardings(nnx.state(objective, nnx.Param))
    nnx.update(objective, jax.device_put(nnx.state(objective, nnx.Param), shardings))
    group = jax.device_put(packed_rows.group(ALONE, 24, 1), partitioner.batch_sharding)
    loss, _, gradients = evaluate(objective, group, mesh=partitioner.mesh)
    np.testing.assert_allclose(loss, unpacked[0], rtol=1e-5)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # noqa: E731
    jax.tree.map(close, gradients, unpacked[2])


@pytest.mark.slow
def test_parity_sees_a_perturbed_coefficient():
    assert all(quantity.passed for quantity in parity.run(GOLDEN, []))
    perturbed = parity.run(GOLDEN, ["retromae.RetroMAE.decoder_weight = 1.001"])
    failed = {quantity.name for quantity in perturbed if not quantity.passed}
    assert "total_loss" in failed
    assert any(name.startswith("grad_norm_params[c_head.") for name in failed)


def test_specification_and_contract():
    objective, group = model(4, 27, 2), packed_rows.group(PACKED, 27, 2)
    (spec,) = objective.batch_specs()
    check_batch(spec, {"text": group}, "packed rows")
    assert objective.contract().pooling == "cls"
    assert objective.contract().tokenizer_fingerprint == tiny_models.VOCABULARY.fingerprint
    assert not objective.requires_full_batch


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"embedding_config": dataclasses.replace(tiny_models.EMBEDDING, pooling="mean")},
            "expected EmbeddingConfig.pooling 'cls', found 'mean'",
        ),
        ({"base_masks": 0}, "base_masks: expected at least 1, found 0"),
        ({"encoder_mask_rate": 1.5}, "mask rate: .* found 1.5"),
        (
            {"config": dataclasses.replace(tiny_models.CONFIG, vocab_size=51)},
            "expected 50, found 51",
        ),
    ],
)
def test_bad_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        model(8, 24, 1, **changes)


def test_a_row_of_padding_has_finite_gradients():
    _, _, gradients = evaluate(model(2, 24, 1), packed_rows.group([[PASSAGES[0]], []], 24, 1))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    loss, _, gradients = evaluate(model(2, 24, 1), packed_rows.group([[], []], 24, 1))
    assert loss == 0 and not any(jnp.any(leaf) for leaf in jax.tree.leaves(gradients))
