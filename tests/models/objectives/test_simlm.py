"""SimLM: what is replaced, by whom, and what packing and meshes must not change."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from models.corruption import generator_sampling
from models.corruption.masking import IGNORED
from models.networks import bert
from models.objectives import simlm
from t5x_style.distributed.partitioning import BATCH_AXES, MeshShape, Partitioner
from t5x_style.interfaces.objective import Batch, GroupShape
from t5x_style.step import optimizers, train_state
from tests.kits import tiny_models
from tests.parity import parity_kit

CONFIG = dataclasses.replace(tiny_models.CONFIG, max_positions=32)
GENERATOR = dataclasses.replace(CONFIG, hidden=8, heads=2, mlp=16, embedding_size=12)
PARTS = tiny_models.segments(8, seed=4, longest=14)


def objective(
    generator: bert.BertConfig | None = GENERATOR, weight: float = 0.0, **changes: object
) -> simlm.SimLM:
    settings = {"encoder_mask_rate": 0.3, "decoder_mask_rate": 0.5, "chunk": 16}
    return simlm.SimLM(
        CONFIG,
        tiny_models.EMBEDDING,
        tiny_models.VOCABULARY,
        GroupShape(rows=8, length=16, segments=1),
        **{**settings, **changes},
        generator_config=generator,
        generator_weight=weight,
        rngs=nnx.Rngs(0),
    )


UNPACKED = tiny_models.group([[part] for part in PARTS], 16, 1)
PACKED = tiny_models.group([PARTS[6:], PARTS[3:6], PARTS[:2], PARTS[2:3]], 48, 3)


def by_example(text: dict[str, jax.Array], feature: str) -> dict[int, list[int]]:
    """The values of each segment, by example id."""
    found = {}
    for row in range(text["tokens"].shape[0]):
        for s, example in enumerate(np.asarray(text["example_id"][row])):
            if text["segment_valid"][row, s]:
                at = np.asarray(text["segment_ids"][row]) == s + 1
                found[int(example)] = np.asarray(text[feature][row])[at].tolist()
    return found


def corrupted(module: simlm.SimLM, text: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return nnx.jit(lambda m, b, k: m.corrupt(b, k))(module, {"text": text}, jax.random.key(5))[
        "text"
    ]


def test_a_passage_is_corrupted_alike_alone_and_packed() -> None:
    one, other = (corrupted(objective(), text) for text in (UNPACKED, PACKED))
    for feature in ("encoder_tokens", "decoder_tokens", "encoder_labels", "decoder_labels"):
        assert by_example(one, feature) == by_example(other, feature)


def test_only_masked_tokens_are_replaced_and_all_words_are_predicted() -> None:
    with_generator, masked = (corrupted(objective(g), UNPACKED) for g in (GENERATOR, None))
    clean, special = np.asarray(UNPACKED["tokens"]), tiny_models.VOCABULARY.special_ids
    real = np.asarray(UNPACKED["segment_ids"]) > 0
    words = real & ~np.isin(clean, special)
    for side in ("encoder", "decoder"):
        chosen = np.asarray(masked[f"{side}_labels"]) != IGNORED
        assert chosen.any() and not chosen[~words].any()
        np.testing.assert_array_equal(
            masked[f"{side}_tokens"], np.where(chosen, tiny_models.VOCABULARY.mask, clean)
        )
        drawn = np.asarray(with_generator[f"{side}_tokens"])
        np.testing.assert_array_equal(drawn[~chosen], clean[~chosen])
        assert (drawn[chosen] != clean[chosen]).any() and (drawn < CONFIG.vocab_size).all()
        np.testing.assert_array_equal(
            with_generator[f"{side}_labels"], np.where(words, clean, IGNORED)
        )
    both = np.asarray(masked["encoder_labels"]) != IGNORED
    different = with_generator["encoder_tokens"] != with_generator["decoder_tokens"]
    assert np.asarray(different)[both].any(), "samples of the two copies are independent"


@pytest.mark.slow
def test_packing_changes_no_loss_and_no_gradient() -> None:
    module = objective(weight=0.2)
    module.eval()
    results = []
    for text in (UNPACKED, PACKED):
        batch: Batch = {"text": corrupted(module, text)}
        results.append(parity_kit.value_and_gradients(module, batch, lambda flat, _: dict(flat)))
    (one, one_gradients), (other, other_gradients) = results
    assert one == pytest.approx(other, rel=1e-5)
    assert 0 < one["replaced_share"] < 0.5
    for name, gradient in one_gradients.items():
        np.testing.assert_allclose(
            other_gradients[name], gradient, atol=1e-4, rtol=1e-4, err_msg=name
        )


@pytest.fixture(scope="module")
def on_one_device() -> tuple[simlm.SimLM, dict[str, jax.Array], tuple[Any, Any]]:
    """A generator that learns; the corrupted text, and the loss and gradients of it."""
    module = objective(weight=0.2)
    module.eval()
    text = corrupted(module, UNPACKED)
    return module, text, value_and_gradients(module, text)


def value_and_gradients(module: simlm.SimLM, text: dict[str, jax.Array]) -> tuple[Any, Any]:
    return parity_kit.value_and_gradients(module, {"text": text}, lambda flat, _: dict(flat))


def test_eight_devices_corrupt_and_learn_as_one(on_one_device: Any) -> None:
    module, expected_text, expected = on_one_device
    mesh = Partitioner(MeshShape(2, 2, 2)).mesh
    graph, params = nnx.split(module)

    @jax.jit
    def on_mesh(params, text):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            text = nnx.merge(graph, params).corrupt({"text": text}, jax.random.key(5))["text"]

            def total(params):
                return nnx.merge(graph, params).loss({"text": text}, jax.random.key(0))[0].value()

            return text, *jax.value_and_grad(total)(params)

    rows = jax.NamedSharding(mesh, jax.P(BATCH_AXES))
    text, loss, gradients = on_mesh(params, jax.device_put(UNPACKED, rows))
    for feature, array in expected_text.items():
        np.testing.assert_array_equal(text[feature], array, err_msg=feature)
    assert float(loss) == pytest.approx(expected[0]["loss"], rel=1e-5)
    for path, gradient in nnx.to_flat_state(gradients):
        name = "/".join(map(str, path))
        np.testing.assert_allclose(
            gradient[...], expected[1][name], atol=2e-5, rtol=1e-4, err_msg=name
        )


def test_the_generator_learns_only_where_it_is_weighed(on_one_device: Any) -> None:
    alone = objective(weight=0.0)
    found = value_and_gradients(alone, corrupted(alone, UNPACKED))
    for (_, gradients), learns in ((found, False), (on_one_device[2], True)):
        own = [g for name, g in gradients.items() if name.startswith("generator/")]
        assert own and any(np.asarray(g).any() for g in own) == learns


@pytest.mark.parametrize("weight", [0.0, 0.2])
def test_weight_decay_leaves_a_generator_alone_that_does_not_learn(weight: float) -> None:
    def make(*, rngs: nnx.Rngs) -> simlm.SimLM:
        return objective(weight=weight)

    optimizer = optimizers.AdamW(1e-3, 0, 10, weight_decay=0.5)
    definition, state, _ = train_state.create(make, optimizer, Partitioner(), 0, abstract=True)
    updated = any(path.startswith("generator/") for path in optimizers.paths_of(state.params))
    assert updated == bool(weight)
    kept = optimizers.paths_of(
        definition.split(definition.module(state.params, state.variables))[1]
    )
    assert any(path.startswith("generator/") for path in kept) == (not weight)


# --- sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size, chunk", [(7, 64), (7, 1000), (300, 1000)])
def test_samples_follow_the_softmax_and_not_the_chunks(size: int, chunk: int) -> None:
    draws = 20_000  # the last row of the table is padding
    table = jnp.asarray(np.random.default_rng(0).normal(size=(size + 1, 3)), jnp.float32)
    hidden = jnp.broadcast_to(jnp.array([0.5, -1.0, 0.3]), (draws, 3))
    numbers = jax.random.bits(jax.random.key(1), (draws,))
    drawn = generator_sampling.sample_tokens(
        hidden, table, jnp.zeros(size + 1), numbers, vocab_size=size, chunk=chunk
    )
    share = np.exp(np.asarray(hidden[0] @ table[:size].T, np.float64))
    expected = share / share.sum() * draws
    counts = np.bincount(drawn, minlength=size)
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    one_by_one = generator_sampling.sample_tokens(
        hidden[:50], table, jnp.zeros(size + 1), numbers[:50], vocab_size=size, chunk=1
    )
    np.testing.assert_array_equal(one_by_one, drawn[:50])


def test_the_largest_random_number_still_draws_a_token_of_the_vocabulary() -> None:
    numbers = jnp.array([0, 2**32 - 1], jnp.uint32)
    drawn = generator_sampling.sample_tokens(
        jnp.ones((2, 1)), jnp.zeros((8, 1)), jnp.zeros(8), numbers, vocab_size=5, chunk=8
    )
    np.testing.assert_array_equal(drawn, [0, 4])


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"encoder_mask_rate": 0.5}, "encoder_mask_rate < decoder_mask_rate"),
        ({"decoder_mask_rate": 1.1}, "found 0.3 and 1.1"),
        ({"decoder_layers": 0}, "decoder_layers: expected at least 1, found 0"),
        ({"generator": None, "weight": 0.2}, "expected 0 without one, found 0.2"),
        ({"generator": dataclasses.replace(GENERATOR, vocab_size=51)}, "found 51 and 32"),
        ({"generator": dataclasses.replace(GENERATOR, max_positions=8)}, "found .* and 8"),
    ],
)
def test_settings_that_fit_no_simlm(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(**changes)
