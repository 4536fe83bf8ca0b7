"""RoBERTa's positions and ELECTRA's narrow tables in our own encoder, head and objectives."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from models.networks import bert, heads
from models.objectives.retromae import RetroMAE
from t5x_style.interfaces.objective import GroupShape
from tests.kits import tiny_models
from tests.kits.hf_folders import CONFIGS

SEGMENTS = tiny_models.segments(4, longest=6)
ALONE = tiny_models.group([[segment] for segment in SEGMENTS], 12, 2)
PACKED = tiny_models.group([SEGMENTS[:2], SEGMENTS[2:]], 12, 2)
POSITIONS = ("encoder", "embeddings", "position", "embedding")


def evaluate(config: bert.BertConfig, group: dict[str, jax.Array]) -> tuple[float, dict]:
    """RetroMAE's loss and its gradients, path -> array."""
    text = GroupShape(*group["tokens"].shape, 2)
    model = RetroMAE(
        config, tiny_models.EMBEDDING, tiny_models.VOCABULARY, text, 0.3, 0.5, 16, rngs=nnx.Rngs(0)
    )
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    @jax.jit
    def loss(params: nnx.State) -> jax.Array:
        module, key = nnx.merge(graph, params, rest), jax.random.key(3)
        return module.loss(module.corrupt({"text": group}, key), key)[0].value()

    value, gradients = jax.value_and_grad(loss)(params)
    return float(value), {path: np.asarray(v[...]) for path, v in nnx.to_flat_state(gradients)}


@pytest.mark.parametrize("family", ["roberta", pytest.param("electra", marks=pytest.mark.slow)])
def test_retromae_trains_every_parameter_and_packing_changes_nothing(family: str) -> None:
    config = CONFIGS[family]
    loss, gradients = evaluate(config, ALONE)
    packed, packed_gradients = evaluate(config, PACKED)
    assert packed == pytest.approx(loss, rel=1e-6)
    for path, gradient in gradients.items():
        np.testing.assert_allclose(packed_gradients[path], gradient, atol=1e-5, err_msg=str(path))
        assert np.isfinite(gradient).all(), path
        # Softmax does not see key biases.
        assert np.abs(gradient).max() > 0 or path[-2:] == ("key", "bias"), path
    offset = config.position_offset
    assert not gradients[POSITIONS][:offset].any()  # rows that no token is at
    assert np.abs(gradients[POSITIONS][offset : offset + 4]).max(-1).all()


def test_the_offset_moves_rows_of_the_position_table_only() -> None:
    plain = bert.Encoder(tiny_models.CONFIG, rngs=nnx.Rngs(0))
    moved = bert.Encoder(
        dataclasses.replace(tiny_models.CONFIG, position_offset=2), rngs=nnx.Rngs(0)
    )
    state = nnx.state(plain, nnx.Param)
    table = state["embeddings"]["position"]["embedding"][...]
    rows = np.full((2, table.shape[1]), np.nan, np.float32)
    state["embeddings"]["position"]["embedding"] = nnx.Param(np.concatenate([rows, table]))
    nnx.update(moved, state)
    given = {name: ALONE[name] for name in ("tokens", "positions", "segment_ids")}
    np.testing.assert_array_equal(moved(**given), plain(**given))
    found = moved.embeddings.position_rows(ALONE["positions"])
    np.testing.assert_array_equal(found, plain.embeddings.position_rows(ALONE["positions"]))


def test_narrow_tables_and_the_head_that_is_tied_to_them() -> None:
    config = CONFIGS["electra"]
    encoder = bert.Encoder(config, rngs=nnx.Rngs(0))
    head = heads.MlmHead(config, rngs=nnx.Rngs(0))
    assert encoder.word_table.shape == (64, 8)
    hidden = encoder(ALONE["tokens"], ALONE["positions"], ALONE["segment_ids"])
    assert hidden.shape == (4, 12, 16) and head.transform(hidden).shape == (4, 12, 8)
    assert encoder.embeddings.position_rows(ALONE["positions"]).shape == (4, 12, 16)


@pytest.mark.parametrize("change", [{"position_offset": -1}, {"embedding_size": 0}])
def test_impossible_sizes_are_refused(change: dict) -> None:
    with pytest.raises(ValueError, match="position_offset of at least 0 and embedding_size of"):
        dataclasses.replace(tiny_models.CONFIG, **change)
