"""Everything of the contrastive step at once: packed, in chunks, taught, on meshes, with dropout.

The oracle is one device, one text a row, all encoded at once.
"""

import dataclasses
from typing import Any

import pytest
from flax import nnx

from models.losses import contrastive, distillation
from models.objectives import bi_encoder
from t5x_style.interfaces.objective import Batch
from tests.kits import tiny_models
from tests.models.losses.contrastive_batches import (
    GROUP,
    PACKED,
    PLAIN,
    largest_error,
    shapes_of,
    value_and_gradients,
)

SHORT = dataclasses.replace(tiny_models.CONFIG, layers=1)
LEARNING = distillation.DistillationConfig(contrastive_weight=0.2, group_size=GROUP)
MESHES = [(8, 1, 1), (2, 4, 1), (2, 2, 2)]
FAST = [((2, 4, 1), "gather"), ((2, 2, 2), "ring")]


def objective(
    batch: Batch, chunks: int, exchange: str, dropout: float = 0.0
) -> bi_encoder.BiEncoder:
    return bi_encoder.BiEncoder(
        dataclasses.replace(SHORT, dropout=dropout, attention_dropout=dropout),
        dataclasses.replace(tiny_models.EMBEDDING, normalise=True, temperature=0.1),
        tiny_models.VOCABULARY,
        *shapes_of(batch),
        contrastive.ContrastiveConfig(
            exchange=exchange, blocks=contrastive.BLOCKS, both_directions=True, margin=0.3
        ),
        chunks,
        0,
        LEARNING,
        rngs=nnx.Rngs(0),
    )


@pytest.fixture(scope="module")
def oracle() -> Any:
    found = value_and_gradients(objective(PLAIN, 1, "gather"), PLAIN)
    assert found[0] > 0.5 and all(gradient.any() for gradient in found[1])
    return found


@pytest.mark.parametrize(
    ("mesh", "exchange"),
    [
        pytest.param(mesh, exchange, marks=[] if (mesh, exchange) in FAST else pytest.mark.slow)
        for mesh in MESHES
        for exchange in ("gather", "ring")
    ],
)
def test_packed_and_in_chunks_on_a_mesh_equals_one_device(
    oracle: Any, mesh: Any, exchange: str
) -> None:
    found = value_and_gradients(objective(PACKED, 2, exchange), PACKED, mesh)
    assert largest_error(found, oracle) <= 1e-5


@pytest.mark.slow
def test_dropout_is_the_same_on_a_mesh(oracle: Any) -> None:
    expected = value_and_gradients(objective(PACKED, 2, "gather", dropout=0.3), PACKED)
    found = value_and_gradients(objective(PACKED, 2, "ring", dropout=0.3), PACKED, (2, 2, 2))
    assert largest_error(found, expected) <= 1e-5
    assert expected[0] != pytest.approx(oracle[0], rel=1e-3)
