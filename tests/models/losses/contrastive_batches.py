"""Texts of a contrastive batch, a row each and packed; and a loss with its gradients on a mesh."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import Batch, GroupShape, Objective
from tests.kits import tiny_models

QUERIES, GROUP, ROWS = 30, 3, 16


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


def shapes_of(batch: Batch) -> list[GroupShape]:
    """Of queries and of passages."""
    return [
        GroupShape(*batch[name]["tokens"].shape, batch[name]["cls_at"].shape[1])
        for name in ("query", "passage")
    ]


def value_and_gradients(module: Objective, batch: Batch, mesh: Any = None) -> Any:
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
