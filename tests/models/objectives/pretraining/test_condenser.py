"""Condenser: packing changes nothing, and [CLS] is all that late layers hand to the head."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.networks import bag, bert
from models.objectives import condenser
from t5x_style.interfaces.encoder import EncoderConfig
from t5x_style.interfaces.objective import Batch, GroupShape
from tests.kits import tiny_models
from tests.parity import parity_kit

CONFIG = dataclasses.replace(tiny_models.CONFIG, layers=3)
PARTS = tiny_models.segments(6, seed=4, longest=14)
UNPACKED = tiny_models.group([[part] for part in PARTS], 16, 1)
PACKED = tiny_models.group([PARTS[4:], PARTS[1:4], PARTS[:1]], 44, 3)


def objective(**changes: object) -> condenser.Condenser:
    settings = {"mask_rate": 0.3, "chunk": 16, "skip_from": 1} | changes
    module = condenser.Condenser(
        CONFIG,
        tiny_models.EMBEDDING,
        tiny_models.VOCABULARY,
        GroupShape(rows=6, length=16, segments=1),
        **settings,
        rngs=nnx.Rngs(0),
    )
    module.eval()
    return module


@pytest.mark.parametrize(
    "skip_from",
    [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)],
)
def test_packing_changes_no_loss_and_no_gradient(skip_from: int) -> None:
    module, results = objective(skip_from=skip_from), []
    for text in (UNPACKED, PACKED):
        batch: Batch = module.corrupt({"text": text}, jax.random.key(5))
        results.append(parity_kit.value_and_gradients(module, batch, lambda flat, _: dict(flat)))
    (one, one_gradients), (other, other_gradients) = results
    assert one == pytest.approx(other, rel=1e-5)
    assert one["loss"] == pytest.approx(one["head_loss"] + one["late_loss"], rel=1e-6)
    for name, gradient in one_gradients.items():
        np.testing.assert_allclose(
            other_gradients[name], gradient, atol=1e-4, rtol=1e-4, err_msg=name
        )


@pytest.mark.parametrize("early", [0, 1, 3])
def test_early_and_late_states_are_those_of_shorter_and_whole_encoders(early: int) -> None:
    encoder = bert.Encoder(CONFIG, rngs=nnx.Rngs(1))
    arguments = [UNPACKED[name] for name in ("tokens", "positions", "segment_ids")]
    first, last = encoder.early_and_late(*arguments, early)
    np.testing.assert_allclose(last, encoder(*arguments), atol=1e-6)
    expected = encoder.embeddings(*arguments[:2])
    if early:
        shorter = bert.Encoder(dataclasses.replace(CONFIG, layers=early), rngs=nnx.Rngs(2))
        state = nnx.state(encoder)
        cut = dict(nnx.to_flat_state(state))
        for path, variable in cut.items():
            if path[0] == "layers":
                cut[path] = variable.replace(variable[...][:early])
        nnx.update(shorter, nnx.from_flat_state(list(cut.items())))
        expected = shorter(*arguments)
    np.testing.assert_allclose(first, expected, atol=1e-6)


def test_the_head_hears_of_late_layers_through_cls_alone() -> None:
    module = objective(late_mlm=False)
    text = module.corrupt({"text": PACKED}, jax.random.key(5))["text"]
    early, late = module.early_and_late(text)
    elsewhere = (text["positions"] > 0)[:, :, None]
    changed = jnp.where(elsewhere, late + 1.0, late)
    for states, same in ((changed, True), (late + 1.0, False)):
        found, expected = (module.condense(text, early, x)[1] for x in (states, late))
        assert np.allclose(found, expected) == same
    _, metrics = module.loss({"text": text}, jax.random.key(0))
    assert set(metrics) == {"head_loss", "head_accuracy"}


@pytest.mark.parametrize("changes", [{"skip_from": 3}, {"skip_from": -1}, {"head_layers": 0}])
def test_layers_that_do_not_exist_are_refused(changes: dict) -> None:
    with pytest.raises(ValueError, match="expected skip_from from 0 to 2"):
        objective(**changes)


@pytest.mark.parametrize(
    ("config", "pooling", "message"),
    [
        (CONFIG, "mean", "Condenser trains the .CLS. vector"),
        (bag.BagConfig(50, 16, ()), "cls", "Condenser.*state for each token"),
    ],
)
def test_encoders_without_a_cls_are_refused(
    config: EncoderConfig, pooling: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        condenser.Condenser(
            config,
            dataclasses.replace(tiny_models.EMBEDDING, pooling=pooling),
            tiny_models.VOCABULARY,
            GroupShape(6, 16, 1),
            0.15,
            16,
            1,
            rngs=nnx.Rngs(0),
        )
