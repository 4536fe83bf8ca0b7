"""Everything of the contrastive step at once: packed, in chunks, taught, on meshes, with dropout.

The oracle is one device, one text a row, all encoded at once.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses import contrastive, distillation
from models.objectives import bi_encoder
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import Batch, GroupShape
from tests.kits import tiny_models

QUERIES, GROUP, ROWS = 30, 3, 16
SHORT = dataclasses.replace(tiny_models.CONFIG, layers=1)
LEARNING = distillation.DistillationConfig(contrastive_weight=0.2, group_size=GROUP)
MESHES = [(8, 1, 1), (2, 4, 1), (2, 2, 2)]
FAST = [((2, 4, 1), "gather"), ((2, 2, 2), "ring")]


def rows_of(numbers: list[int], segments: int) -> list[list[int]]:
    """The numbers dealt to rows; the last slots of some rows stay free."""
    rows = [numbers[row::ROWS] for row in range(ROWS)] if segments > 1 else [[n] for n in numbers]
    assert max(map(len, rows)) <= segments
    return rows


def queries(order: list[int], segments: int) -> dict[str, jax.Array]:
    parts = tiny_models.segments(QUERIES, seed=1, longest=8)
    rows = rows_of(order, segments)
    return tiny_models.group([[parts[n] for n in row] for row in rows], 8 * segments, segments)


def passages(order: list[int], segments: int) -> dict[str, jax.Array]:
    """Passage n belongs to query n // GROUP; a third of the documents are brought twice."""
    asked = tiny_models.segments(QUERIES, seed=1)
    texts = tiny_models.segments(QUERIES * GROUP, seed=2, longest=8)
    parts = [(asked[n // GROUP][0], tokens) for n, (_, tokens) in enumerate(texts)]
    teacher = np.random.default_rng(4).normal(size=len(parts)) * 3
    teacher[[4, 8, 40]] = -np.inf  # not seen by the teacher
    rows = rows_of(order, segments)
    group = tiny_models.group([[parts[n] for n in row] for row in rows], 8 * segments, segments)
    extra = {
        name: np.zeros((len(rows), segments), np.int32) for name in ("relevance", "document_id")
    }
    extra["teacher_score"] = np.full((len(rows), segments), -np.inf, np.float32)
    for r, row in enumerate(rows):
        for s, n in enumerate(row):
            extra["relevance"][r, s] = n % GROUP == 0
            extra["document_id"][r, s] = n * 7 % 61
            extra["teacher_score"][r, s] = teacher[n]
    return {**group, **{name: jnp.asarray(array) for name, array in extra.items()}}


def batches() -> tuple[Batch, Batch]:
    """The same texts a row each, and packed in another order."""
    rng = np.random.default_rng(3)
    plain = {
        "query": queries([*range(QUERIES)], 1),
        "passage": passages([*range(QUERIES * GROUP)], 1),
    }
    packed = {
        "query": queries(rng.permutation(QUERIES).tolist(), 2),
        "passage": passages(rng.permutation(QUERIES * GROUP).tolist(), 6),
    }
    return plain, packed


PLAIN, PACKED = batches()


def objective(
    batch: Batch, chunks: int, exchange: str, dropout: float = 0.0
) -> bi_encoder.BiEncoder:
    shapes = [
        GroupShape(*batch[name]["tokens"].shape, batch[name]["cls_at"].shape[1])
        for name in ("query", "passage")
    ]
    return bi_encoder.BiEncoder(
        dataclasses.replace(SHORT, dropout=dropout, attention_dropout=dropout),
        dataclasses.replace(tiny_models.EMBEDDING, normalise=True, temperature=0.1),
        tiny_models.VOCABULARY,
        *shapes,
        contrastive.ContrastiveConfig(
            exchange=exchange, blocks=contrastive.BLOCKS, both_directions=True, margin=0.3
        ),
        chunks,
        0,
        LEARNING,
        rngs=nnx.Rngs(0),
    )


def value_and_gradients(module: bi_encoder.BiEncoder, batch: Batch, mesh: Any = None) -> Any:
    """The loss and the gradients of all parameters, in training; on a mesh, where one is given."""
    shape = (1, 1, 1) if mesh is None else mesh
    partitioner = partitioning.Partitioner(
        partitioning.MeshShape(*shape), devices=jax.devices()[: int(np.prod(shape))]
    )
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    placed, _ = partitioner.abstract(lambda: params)
    params = jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding, placed))
    batch = jax.device_put(batch, partitioner.batch_sharding)

    def total(params: nnx.State) -> jax.Array:
        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            module = nnx.merge(graph, params, rest)
            module.train()
            return module.loss(batch, jax.random.key(5))[0].value()

    value, gradients = jax.jit(jax.value_and_grad(total))(params)
    return float(value), [np.asarray(leaf) for leaf in jax.tree.leaves(gradients)]


def largest_error(found: Any, expected: Any) -> float:
    """Of the loss, relative, and of all gradients, relative to each one's largest entry or to 1."""
    errors = [abs(found[0] - expected[0]) / abs(expected[0])]
    for ours, true in zip(found[1], expected[1], strict=True):
        errors.append(np.abs(ours - true).max() / max(1, np.abs(true).max()))
    return float(np.max(errors))  # NaN if one is


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
