"""Find the most similar texts of each text in a shard, by all pairs, tile by tile on the device."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t5x_style.distributed.partitioning import Partitioner

NONE = -1
_LEAST = 256  # texts that a shard is padded to, or a power of two times as many


class TextMetadata(NamedTuple):
    """Metadata of N texts: int [N] each.

    Attributes:
      shard: only texts of one shard are compared.
      document: texts of one document are never neighbours.
      language: neighbours in the same one and in others are counted apart.
    """

    shard: np.ndarray
    document: np.ndarray
    language: np.ndarray


class Neighbours(NamedTuple):
    """The most similar of each text, those of the same language first.

    Attributes:
      rows: int64 [N, k], NONE where there are fewer.
      similarity: float32 [N, k], cosines; those of one language descend, then those of the others.
    """

    rows: np.ndarray
    similarity: np.ndarray


def within_shards(
    vectors: np.ndarray,
    facts: TextMetadata,
    same_language: int,
    other_language: int,
    partitioner: Partitioner,
    tile: int = 1024,
    near_duplicate: float | None = None,
) -> Neighbours:
    """The neighbours of each text in its shard.

    A shard's vectors lie on every device; the similarities of `tile` texts with all others of the
    shard exist at a time, spread over the mesh.

    Args:
      vectors: [N, D] float32.
      facts: of the texts.
      same_language, other_language: how many neighbours of the own language and of others; k is
        their sum. At least one of the two is above 0.
      partitioner: the mesh.
      tile: texts compared at a time; divides by the mesh's rows.
      near_duplicate: texts of one language whose cosine is above are copies of each other, and no
        neighbours; None: they are.

    Raises:
      ValueError: counts below 0 or both 0, or vectors that are 0 or not finite.
    """
    if min(same_language, other_language) < 0 or same_language + other_language < 1:
        raise ValueError(
            "within_shards: expected numbers of neighbours of at least 0, one of them above, found "
            f"{same_language} of the same language and {other_language} of others"
        )
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        bad = int(np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))[0])
        raise ValueError(
            f"within_shards: expected vectors that are finite and not 0, found that of text {bad} "
            f"with length {norms[bad, 0]}: a row without tokens, or a model that has diverged"
        )
    partitioner.check_rows(tile, "neighbours: a tile")
    unit = (vectors / norms).astype(np.float32)
    count = same_language + other_language
    found = Neighbours(
        np.full((len(unit), count), NONE, np.int64),
        np.full((len(unit), count), -np.inf, np.float32),
    )
    for members in _shards(facts.shard):
        rows, similarity = _of_shard(
            unit[members], facts.document[members], facts.language[members],
            (same_language, other_language), partitioner, tile, near_duplicate,
        )  # fmt: skip
        known = rows != NONE
        found.rows[members] = np.where(known, members[np.where(known, rows, 0)], NONE)
        found.similarity[members] = similarity
    return found


def _shards(shard: np.ndarray) -> Iterator[np.ndarray]:
    """The texts of each shard, ascending."""
    order = np.argsort(shard, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(shard[order])) + 1)


def _of_shard(
    unit: np.ndarray,
    document: np.ndarray,
    language: np.ndarray,
    counts: tuple[int, int],
    partitioner: Partitioner,
    tile: int,
    near_duplicate: float | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Rows [n, k] within the shard, NONE where there are fewer, and similarities."""
    size = _LEAST
    while size < len(unit):
        size *= 2
    spare = size - len(unit)
    # A document of a language that no other has: padding is no one's neighbour.
    padded = (
        np.pad(unit, ((0, spare), (0, 0))),
        np.pad(document, (0, spare), constant_values=NONE),
        np.pad(language, (0, spare), constant_values=NONE),
    )
    everywhere = jax.sharding.NamedSharding(partitioner.mesh, jax.sharding.PartitionSpec())
    texts = jax.tree.map(lambda array: _placed(array, everywhere), padded)
    # 2 is above all cosines, however they are rounded: nothing is a copy.
    limit = np.float32(2 if near_duplicate is None else near_duplicate)
    parts = []
    for start in range(0, len(unit), tile):
        here = np.minimum(np.arange(start, start + tile), size - 1).astype(np.int32)
        parts.append(_tile(texts, _placed(here, partitioner.batch_sharding), limit, counts))
    rows, similarity = (np.concatenate([_fetched(part[n]) for part in parts]) for n in (0, 1))
    return rows[: len(unit)], similarity[: len(unit)]


def _placed(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


def _fetched(array: jax.Array) -> np.ndarray:
    if array.is_fully_addressable:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


@functools.partial(jax.jit, static_argnums=3)
def _tile(
    texts: tuple[jax.Array, jax.Array, jax.Array],
    here: jax.Array,
    limit: jax.Array,
    counts: tuple[int, int],
) -> tuple[jax.Array, jax.Array]:
    """Neighbours [t, k] int32 and similarities [t, k] of the texts numbered `here` [t].

    Texts of one language whose cosine is above `limit` are no neighbours.
    """
    unit, document, language = texts
    precision = jax.lax.Precision.HIGHEST
    similarity = jnp.einsum("td,nd->tn", unit[here], unit, precision=precision)
    possible = (document[here][:, None] != document) & (document != NONE)
    same = language[here][:, None] == language
    found = []
    kinds = (possible & same & (similarity <= limit), possible & ~same)
    for count, allowed in zip(counts, kinds, strict=True):
        if count:
            found.append(_best(jnp.where(allowed, similarity, -jnp.inf), count))
    rows, values = (jnp.concatenate(arrays, axis=1) for arrays in zip(*found, strict=True))
    return jnp.where(jnp.isfinite(values), rows, NONE), values


def _best(similarity: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    values, rows = jax.lax.top_k(similarity, min(count, similarity.shape[1]))
    spare = count - rows.shape[1]
    values = jnp.pad(values, ((0, 0), (0, spare)), constant_values=-jnp.inf)
    return jnp.pad(rows, ((0, 0), (0, spare))), values
