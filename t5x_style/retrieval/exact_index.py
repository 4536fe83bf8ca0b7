"""Exact search of any kind: right, slow but for tokens, and what other indexes are measured by."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import (
    DENSE,
    MULTI_VECTOR,
    SPARSE,
    Entries,
    Representation,
    blocks,
)
from t5x_style.retrieval import encoding, representation_files, similarity
from t5x_style.retrieval.sparse.postings import Postings

# Passages that are compared at once, by kind, and their entries
PASSAGE_BLOCK = {DENSE: 65_536, SPARSE: 65_536, MULTI_VECTOR: 2_048}
ENTRY_BLOCK = {DENSE: 0, SPARSE: 1 << 24, MULTI_VECTOR: 1 << 18}
QUERY_BLOCK = 256

_Block = tuple[int, int, Any]  # first row, how many passages, and what `_prepared` made of them


class ExactIndex:
    """Compares every query with every passage, of any kind; implements `index.SavableIndex`.

    Tokens with weights are compared by token (`sparse.postings`), which finds the same: postings
    are made for the first search and stay in memory, 8 bytes an entry.
    """

    recall = 1.0

    def __init__(
        self,
        passages: Representation,
        ids: Sequence[str],
        contract: Contract,
        checkpoint: str = "",
        kind: str = DENSE,
        resident: bool = False,
    ):
        """Args:
        passages: [N, D] float32, or `Entries` of N passages; finite, may be on disk.
        ids: N distinct passage ids, in row order.
        contract: of the model that embedded them.
        checkpoint: its fingerprint, where it is known.
        kind: of `passages`.
        resident: whether dense vectors stay on the device, so that a search copies none of them;
          else each search reads all of them from where they are. They take 4 N D bytes, where N is
          rounded up: to a power of two, above PASSAGE_BLOCK to a multiple of that.
        """
        index_lib.check_passages(kind, passages, ids)
        if kind == DENSE:
            index_lib.check_inner_product(contract, passages.shape[1])
        self._passages = passages
        self.kind = kind
        self.ids = list(ids)
        self.contract = contract
        self.checkpoint = checkpoint
        self._blocks: list[_Block] | None = None
        if resident and kind == DENSE:
            self._blocks = list(_prepared_blocks(kind, passages, _block_size(kind, len(passages))))

    @property
    def passages(self) -> Representation:
        """Passages that it was given."""
        return self._passages

    @functools.cached_property
    def _postings(self) -> Postings:
        return Postings(self._passages)

    def search(self, queries: Representation, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `index.Index.search`."""
        if self.kind == SPARSE:
            return self._postings.search(queries, k)
        if self._blocks is None:
            return top_k(queries, self._passages, k, self.kind)
        queries = index_lib.check_queries(queries, self._passages.shape[1], k)
        size = _block_size(self.kind, len(self.ids))
        return _best(queries, self._blocks, len(self.ids), k, self.kind, size, QUERY_BLOCK)

    def save(self, folder: Path) -> None:
        """As `index.SavableIndex.save`."""
        representation_files.write(folder, self.kind, self._passages)


@dataclasses.dataclass(frozen=True)
class Exact(index_lib.IndexType):
    """Indexes that compare every passage, on any machine; vectors that they hold stay on disk."""

    def build(self, passages: Representation, record: index_lib.IndexRecord) -> ExactIndex:
        """As `index.IndexType.build`."""
        return ExactIndex(passages, record.ids, record.contract, record.checkpoint, self.kind)

    def load(self, folder: Path, record: index_lib.IndexRecord) -> ExactIndex:
        """As `index.IndexType.load`."""
        return self.build(self.stored_passages(folder), record)

    def stored_passages(self, folder: Path) -> Representation:
        """As `index.IndexType.stored_passages`."""
        return representation_files.read(folder, self.kind)


@dataclasses.dataclass(frozen=True)
class ExactSparse(Exact):
    """`Exact` over tokens with weights, which are in memory when they are searched."""

    kind = SPARSE


@dataclasses.dataclass(frozen=True)
class ExactMultiVector(Exact):
    """`Exact` over several vectors of a passage, by MaxSim."""

    kind = MULTI_VECTOR


def top_k(
    queries: Representation,
    passages: Representation,
    k: int,
    kind: str = DENSE,
    passage_block: int | None = None,
    query_block: int = QUERY_BLOCK,
) -> tuple[np.ndarray, np.ndarray]:
    """The k passages with the highest score of each query, see `retrieval.similarity`.

    The passages stay where they are, one block of them is in memory. Dense vectors are compared in
    float32 at the highest matmul precision, on the device, where the largest intermediate is
    [query_block, passage_block] float32; other kinds on the host.

    Args:
      queries: [Q, D] float32, or `Entries` of Q queries.
      passages: [N, D] float32, or `Entries` of N passages.
      k: at least 1; may exceed N.
      kind: of both.
      passage_block, query_block: how many of each are compared at once, at most; PASSAGE_BLOCK of
        the kind by default, of entries no more than ENTRY_BLOCK.

    Returns:
      scores [Q, k] float32 and rows [Q, k] int32, best first, ties by row; see `index`.
    """
    if kind == DENSE:
        queries = index_lib.check_queries(queries, passages.shape[1], k)
    else:
        queries = index_lib.check_entry_queries(kind, queries, passages, k)
    passage_block = PASSAGE_BLOCK[kind] if passage_block is None else passage_block
    if passage_block < 1 or query_block < 1:
        raise ValueError(f"expected blocks of at least 1, found {passage_block=}, {query_block=}")
    size = _block_size(kind, len(passages), passage_block)
    prepared = _prepared_blocks(kind, passages, size)
    return _best(queries, prepared, len(passages), k, kind, size, query_block)


def _block_size(kind: str, count: int, most: int | None = None) -> int:
    """Passages of a block, of `count` in all.

    Little work should not pay for a large block; powers of two keep recompilation rare.
    """
    return min(PASSAGE_BLOCK[kind] if most is None else most, 1 << (count - 1).bit_length())


def _prepared_blocks(kind: str, passages: Representation, size: int) -> Iterator[_Block]:
    for at in blocks(passages, size, ENTRY_BLOCK[kind]):
        block = passages[at]
        yield at.start, len(block), _prepared(kind, block, size)


def _best(
    queries: Representation,
    passages: Iterable[_Block],
    count: int,
    k: int,
    kind: str,
    passage_block: int,
    query_block: int,
) -> tuple[np.ndarray, np.ndarray]:
    """`top_k` of queries that were checked, and of `count` passages in blocks."""
    width = min(k, count)
    query_block = min(query_block, 1 << max(len(queries) - 1, 0).bit_length())
    firsts = range(0, len(queries), query_block)
    asked = [_prepared(kind, queries[first : first + query_block], query_block) for first in firsts]
    best = [
        (
            jnp.full((query_block, width), -jnp.inf, jnp.float32),
            jnp.full((query_block, width), index_lib.NO_ROW, jnp.int32),
        )
        for _ in asked
    ]
    for first, valid, compared in passages:
        best = [
            _merge(b, query, compared, valid, first)
            if kind == DENSE
            else _keep_best(b, _hits(kind, query, compared, query_block, passage_block), first)
            for b, query in zip(best, asked, strict=True)
        ]
    nothing = np.zeros((0, width))
    scores = np.concatenate([nothing, *(np.asarray(s) for s, _ in best)])[: len(queries)]
    rows = np.concatenate([nothing, *(np.asarray(r) for _, r in best)])[: len(queries)]
    return index_lib.padded(scores, rows, k)


def _prepared(kind: str, block: Representation, size: int) -> Any:
    """Vectors [n, D] -> [size, D] with zeros, on the device; entries unchanged."""
    if kind != DENSE:
        return block
    return jnp.asarray(np.pad(block, ((0, size - len(block)), (0, 0))))


def _hits(kind: str, queries: Entries, passages: Entries, rows: int, columns: int) -> np.ndarray:
    """[rows, columns] float32: the scores of hits, -inf elsewhere and past the last of either."""
    found = np.full((rows, columns), -np.inf, np.float32)
    found[: len(queries), : len(passages)] = similarity.hits(kind, queries, passages)
    return found


@functools.partial(jax.jit, donate_argnums=0)
def _merge(
    best: tuple[jax.Array, jax.Array],
    queries: jax.Array,
    passages: jax.Array,
    valid: int,
    first: int,
) -> tuple[jax.Array, jax.Array]:
    """The best k of what was found so far [Q, k] and of one more block of passages [C, D]."""
    scores = jnp.einsum(
        "qd,cd->qc", queries, passages, precision=jax.lax.Precision.HIGHEST
    )  # [Q, C]
    block_rows = jnp.arange(passages.shape[0], dtype=jnp.int32)
    return _better(best, jnp.where(block_rows < valid, scores, -jnp.inf), first)


@functools.partial(jax.jit, donate_argnums=0)
def _keep_best(
    best: tuple[jax.Array, jax.Array], scores: jax.Array, first: int
) -> tuple[jax.Array, jax.Array]:
    """`_better`, compiled, of scores from the host."""
    return _better(best, scores, first)


def _better(
    best: tuple[jax.Array, jax.Array], scores: jax.Array, first: int | jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The best k of what was found so far [Q, k] and of the scores [Q, C] from row `first` on."""
    best_scores, best_rows = best
    width = best_scores.shape[1]
    # top_k prefers the earlier of equal scores, and earlier blocks come first: ties go by row.
    scores, at = jax.lax.top_k(scores, min(width, scores.shape[1]))
    rows = jnp.where(jnp.isfinite(scores), at + first, index_lib.NO_ROW)
    scores, at = jax.lax.top_k(jnp.concatenate([best_scores, scores], axis=1), width)
    rows = jnp.take_along_axis(jnp.concatenate([best_rows, rows], axis=1), at, axis=1)
    return scores, rows


def load(embeddings: str, kind: str = "dense") -> ExactIndex:
    """The exact index of a folder that `encode_corpus` wrote, of one kind."""
    stored = encoding.load_embeddings(embeddings, kind)
    return ExactIndex(stored.passages, stored.ids, stored.contract, stored.checkpoint, kind)
