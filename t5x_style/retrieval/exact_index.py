"""Exact search by inner product: slow, right, and what every other index is measured against."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import DENSE
from t5x_style.retrieval import encoding

PASSAGE_BLOCK = 65_536
QUERY_BLOCK = 256
_VECTORS = "vectors.npy"


class ExactIndex:
    """Compares every query with every passage; implements `index.SavableIndex`."""

    kind = DENSE
    recall = 1.0

    def __init__(
        self,
        embeddings: index_lib.Vectors,
        ids: Sequence[str],
        contract: Contract,
        checkpoint: str = "",
    ):
        """Args:
        embeddings: [N, D] float32, finite; may be on disk.
        ids: N distinct passage ids, in row order.
        contract: of the model that embedded them.
        checkpoint: its fingerprint, where it is known.
        """
        index_lib.check_embeddings(embeddings, ids)
        index_lib.check_inner_product(contract, embeddings.shape[1])
        self._embeddings = embeddings
        self.ids = list(ids)
        self.contract = contract
        self.checkpoint = checkpoint

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `index.Index.search`."""
        return top_k(queries, self._embeddings, k)

    def save(self, folder: Path) -> None:
        """As `index.SavableIndex.save`."""
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)),
            "fortran_order": False,
            "shape": tuple(self._embeddings.shape),
        }
        # In blocks, because the vectors may exceed memory. Written and not memory-mapped: a full
        # disk is then an OSError, and not a signal that ends the process.
        with open(folder / _VECTORS, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, len(self._embeddings), PASSAGE_BLOCK):
                file.write(self._embeddings[start : start + PASSAGE_BLOCK].tobytes())


@dataclasses.dataclass(frozen=True)
class Exact(index_lib.IndexType):
    """Indexes that compare every vector, on any machine; the vectors stay on disk."""

    def build(self, vectors: index_lib.Vectors, record: index_lib.IndexRecord) -> ExactIndex:
        """As `index.IndexType.build`."""
        return ExactIndex(vectors, record.ids, record.contract, record.checkpoint)

    def load(self, folder: Path, record: index_lib.IndexRecord) -> ExactIndex:
        """As `index.IndexType.load`."""
        return self.build(self.stored_vectors(folder), record)

    def stored_vectors(self, folder: Path) -> index_lib.Vectors:
        """As `index.IndexType.stored_vectors`."""
        vectors: np.ndarray = np.load(folder / _VECTORS, mmap_mode="r", allow_pickle=False)
        return vectors


def top_k(
    queries: np.ndarray,
    embeddings: index_lib.Vectors,
    k: int,
    passage_block: int = PASSAGE_BLOCK,
    query_block: int = QUERY_BLOCK,
) -> tuple[np.ndarray, np.ndarray]:
    """The k largest inner products of each query, in float32 at the highest matmul precision.

    The passages stay where they are, one block of them is on the device; the largest intermediate
    is [query_block, passage_block] float32.

    Args:
      queries: [Q, D] float32.
      embeddings: [N, D] float32.
      k: at least 1; may exceed N.
      passage_block, query_block: how many of each are compared at once.

    Returns:
      scores [Q, k] float32 and rows [Q, k] int32, best first, ties by row; see `index`.
    """
    queries = index_lib.check_queries(queries, embeddings.shape[1], k)
    if passage_block < 1 or query_block < 1:
        raise ValueError(f"expected blocks of at least 1, found {passage_block=}, {query_block=}")
    width = min(k, len(embeddings))
    # Little work should not pay for a large block; powers of two keep recompilation rare.
    passage_block = min(passage_block, 1 << (len(embeddings) - 1).bit_length())
    query_block = min(query_block, 1 << max(len(queries) - 1, 0).bit_length())
    blocks = [
        _filled(queries[first : first + query_block], query_block)
        for first in range(0, len(queries), query_block)
    ]
    best = [
        (
            jnp.full((query_block, width), -jnp.inf, jnp.float32),
            jnp.full((query_block, width), index_lib.NO_ROW, jnp.int32),
        )
        for _ in blocks
    ]
    for first in range(0, len(embeddings), passage_block):
        block = embeddings[first : first + passage_block]
        passages = jnp.asarray(_filled(block, passage_block))
        best = [
            _merge(b, query, passages, len(block), first)
            for b, query in zip(best, blocks, strict=True)
        ]
    nothing = np.zeros((0, width))
    scores = np.concatenate([nothing, *(np.asarray(s) for s, _ in best)])[: len(queries)]
    rows = np.concatenate([nothing, *(np.asarray(r) for _, r in best)])[: len(queries)]
    return index_lib.padded(scores, rows, k)


def _filled(block: np.ndarray, size: int) -> np.ndarray:
    """[n, D] -> [size, D] with zeros."""
    return np.pad(block, ((0, size - len(block)), (0, 0)))


@functools.partial(jax.jit, donate_argnums=0)
def _merge(
    best: tuple[jax.Array, jax.Array],
    queries: jax.Array,
    passages: jax.Array,
    valid: int,
    first: int,
) -> tuple[jax.Array, jax.Array]:
    """The best k of what was found so far [Q, k] and of one more block of passages [C, D]."""
    best_scores, best_rows = best
    width = best_scores.shape[1]
    scores = jnp.einsum(
        "qd,cd->qc", queries, passages, precision=jax.lax.Precision.HIGHEST
    )  # [Q, C]
    block_rows = jnp.arange(passages.shape[0], dtype=jnp.int32)
    scores = jnp.where(block_rows < valid, scores, -jnp.inf)
    # top_k prefers the earlier of equal scores, and earlier blocks stand first: ties go by row.
    scores, at = jax.lax.top_k(scores, min(width, passages.shape[0]))
    rows = jnp.where(jnp.isfinite(scores), at + first, index_lib.NO_ROW)
    scores, at = jax.lax.top_k(jnp.concatenate([best_scores, scores], axis=1), width)
    rows = jnp.take_along_axis(jnp.concatenate([best_rows, rows], axis=1), at, axis=1)
    return scores, rows


def load(embeddings: str) -> ExactIndex:
    """The exact index of a folder that `encode_corpus` wrote; vectors stay on disk."""
    stored = encoding.load_embeddings(embeddings)
    return ExactIndex(stored.vectors, stored.ids, stored.contract, stored.checkpoint)
