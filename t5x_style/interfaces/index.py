"""Interface of indexes: search, build, write, read, and the checks that they share.

An index answers `search(queries, k) -> (scores, rows)` over one kind of representation, row by row
of the passages it was built from; `ids[row]` is the passage. `retrieval.similarity` defines
the scores. Places past the last hit (k larger than the corpus, nothing in common, or an
approximate search that found fewer) hold row NO_ROW and score -inf, so results are always [Q, k].

A new index is a class that answers `SavableIndex` and a subclass of `IndexType` that makes it, in
one file that gin names; see `retrieval.exact_index` for the shortest.
"""

import abc
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from t5x_style.interfaces.contract import Contract, ContractError
from t5x_style.interfaces.representation import (
    DENSE,
    MULTI_VECTOR,
    SPARSE,
    Entries,
    Representation,
    blocks,
    malformed,
    not_finite,
)

NO_ROW = -1


class QueryError(ValueError):
    """Queries that an index cannot answer: wrong kind, shape or type, or not finite."""


class IndexDamaged(ValueError):
    """The files of an index or of embeddings are not what its manifest says."""


class UnsupportedMachine(RuntimeError):
    """The library of an index does not run on this machine."""


@runtime_checkable
class Index(Protocol):
    """Nearest neighbours by `retrieval.similarity`.

    Attributes:
      kind: of the representation that it holds, one of `representation.KINDS`.
      contract: of the model whose passages are inside.
      recall: share of the exact top k that `search` finds, measured on a sample when it was built.
      checkpoint: fingerprint of the one that embedded them, '' where that was not recorded.
    """

    kind: str
    contract: Contract
    recall: float
    checkpoint: str

    @property
    def ids(self) -> Sequence[str]:
        """Passage ids, by row."""
        ...

    def search(self, queries: Representation, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Best passages of each query, best first, ties by row.

        Args:
          queries: as `kind`, embedded under `contract`: [Q, D] float32, or `Entries` of Q queries.
          k: at least 1.

        Returns:
          scores [Q, k] float32 and rows [Q, k] int32; -inf and NO_ROW where there is no hit.

        Raises:
          QueryError: queries are of another kind, shape or dtype, or not finite, or k < 1.
        """
        ...


class SavableIndex(Index, Protocol):
    """An index that was built, and can be written."""

    def save(self, folder: Path) -> None:
        """Writes the files that `IndexType.load` reads into an existing folder.

        Names may not be those of `retrieval.published_index`'s files: ids.json, contract.json and
        manifest.json.
        """
        ...


@dataclasses.dataclass(frozen=True)
class IndexRecord:
    """Record of an index; kept next to its files.

    Attributes:
      ids: N distinct passage ids, by row.
      contract: of the model that embedded them.
      checkpoint: fingerprint of the one that embedded them, '' where that was not recorded.
      recall: measured after it was built, 0 until then.
    """

    ids: Sequence[str]
    contract: Contract
    checkpoint: str = ""
    recall: float = 0.0


@dataclasses.dataclass(frozen=True)
class IndexType(abc.ABC):
    """Builds indexes of one type and reads them from a folder; gin chooses the one that builds.

    A subclass is a frozen dataclass. Its fields are the settings of the build, plain values that
    gin binds and the manifest of a published index records. A folder is read by the type of the
    same settings that wrote it, so a field that is added later needs a default.

    Attributes:
      kind: of the representation that these indexes hold.
    """

    kind: ClassVar[str] = DENSE

    @abc.abstractmethod
    def build(self, passages: Representation, record: IndexRecord) -> SavableIndex:
        """An index of all passages; the same ones give the same index.

        Args:
          passages: as `kind`, [N, D] float32 or `Entries` of N passages; finite, perhaps on disk,
            checked by the caller.
          record: of the index.
        """

    @abc.abstractmethod
    def load(self, folder: Path, record: IndexRecord) -> Index:
        """The index of a folder, whose files were compared with their hashes.

        Raises:
          IndexDamaged: the files do not belong together.
          UnsupportedMachine: the index does not run here.
        """

    def stored_passages(self, folder: Path) -> Representation | None:
        """Indexed passages; None where a folder does not hold them.

        What is searched exactly on a machine that does not run the index.
        """
        return None


def check_contract(index: Index, contract: Contract, where: str, kind: str = DENSE) -> None:
    """Raises ContractError if queries under `contract` do not fit the passages of the index.

    Args:
      index: whose passages are compared with queries.
      contract: of the model that embeds the queries.
      where: names the index.
      kind: of the representation that the queries have.
    """
    if index.kind != kind:
        raise ContractError(
            f"{where} holds representations of kind {index.kind!r}, expected {kind!r}, that of the "
            "queries. Name an index of this kind, or search it with such queries."
        )
    contract.require(index.contract, where)


def check_checkpoint(index: Index, checkpoint: str, where: str) -> None:
    """Raises ContractError if another checkpoint embedded the passages of the index.

    Equal contracts do not make equal vectors. An index that does not say is let pass.

    Args:
      index: whose passages are compared with queries.
      checkpoint: fingerprint of the one that embeds the queries.
      where: names the index.
    """
    if index.checkpoint and index.checkpoint != checkpoint:
        raise ContractError(
            f"{where} holds vectors of checkpoint {index.checkpoint[:12]}, but checkpoint "
            f"{checkpoint[:12]} embeds the queries: their vectors cannot be compared. Run "
            "encode_corpus and build_index with this one, or name the other."
        )


def check_inner_product(contract: Contract, dimension: int) -> None:
    """Raises ValueError unless inner products of vectors rank as the contract says."""
    if contract.dimension != dimension:
        raise ValueError(
            f"the contract says {contract.dimension} dimensions, the embeddings have {dimension}"
        )
    if contract.similarity == "cosine" and not contract.normalise:
        raise ValueError(
            "similarity is 'cosine' but vectors are not normalised: an index compares inner "
            "products. Set normalise=True in the objective."
        )


def check_queries(queries: np.ndarray, dimension: int, k: int) -> np.ndarray:
    """Dense queries as a contiguous array, or a QueryError that says what is wrong with them."""
    if isinstance(queries, Entries):
        raise QueryError(
            f"expected queries of shape [Q, {dimension}], vectors as the index holds, found "
            f"entries of {sorted(queries.arrays)}"
        )
    queries = np.asarray(queries)
    if queries.ndim != 2 or queries.shape[1] != dimension:
        raise QueryError(
            f"expected queries of shape [Q, {dimension}], the dimension of the index, "
            f"found {list(queries.shape)}"
        )
    if queries.dtype != np.float32:
        raise QueryError(f"expected float32 queries, found {queries.dtype.name}; cast them first")
    _check_finite_and_k(queries, k)
    return np.ascontiguousarray(queries)


def check_entry_queries(kind: str, queries: Entries, passages: Entries, k: int) -> Entries:
    """Queries of a kind with entries in memory, or a QueryError; vectors fit the passages'."""
    if problem := malformed(kind, queries):
        raise QueryError(f"queries: {problem}")
    queries = queries[:]
    if problem := _negative_token(kind, queries):
        raise QueryError(f"queries: {problem}")
    if kind == MULTI_VECTOR and queries.offsets[-1] and passages.offsets[-1]:
        given, held = (one.arrays["vectors"].shape[1] for one in (queries, passages))
        if given != held:
            raise QueryError(
                f"expected vectors of {held} dimensions, those of the index, found {given}"
            )
    _check_finite_and_k(queries, k)
    return queries


def _negative_token(kind: str, texts: Representation) -> str:
    """Error in the token ids of sparse texts in memory, '' if there is none."""
    if kind == SPARSE and (lowest := texts.arrays["tokens"].min(initial=0)) < 0:
        return f"expected token ids from 0 on, found {lowest}"
    return ""


def _check_finite_and_k(queries: Representation, k: int) -> None:
    if len(broken := not_finite(queries)):
        raise QueryError(
            f"expected finite queries, found NaN or Inf in row {broken[0]} "
            f"({len(broken)} of {len(queries)} rows); the embedding is broken"
        )
    if not isinstance(k, (int, np.integer)) or k < 1:
        raise QueryError(f"expected k of at least 1, found {k!r}")


def check_passages(kind: str, passages: Representation, ids: Sequence[str]) -> None:
    """Raises ValueError unless passages are of the kind, finite, one for each distinct id.

    Args:
      kind: of their representation.
      passages: [N, D] float32, or `Entries`; memory-mapped ones are read block by block.
      ids: N.
    """
    if problem := malformed(kind, passages):
        raise ValueError(f"passages: {problem}")
    if len(ids) != len(passages):
        raise ValueError(f"expected {len(passages)} ids, one for each row, found {len(ids)}")
    if len(set(ids)) != len(ids):
        raise ValueError(f"expected distinct ids, found {len(ids) - len(set(ids))} repeated ones")
    if len(passages) == 0:
        raise ValueError("passages: expected at least one passage, found none")
    if kind != DENSE and passages.offsets[-1] == 0:
        raise ValueError(
            f"expected {kind} representations, found {len(ids)} passages without any entry: "
            "nothing could ever be found"
        )
    for at in blocks(passages):  # a memory-mapped file stays on disk
        block = passages[at]
        if problem := _negative_token(kind, block):
            raise ValueError(f"passages: {problem}")
        broken = not_finite(block)
        if len(broken):
            row = at.start + int(broken[0])
            raise ValueError(f"embedding of passage {ids[row]!r} (row {row}) holds NaN or Inf")


def padded(scores: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Results [Q, j] widened to [Q, k] with NO_ROW, and in the order that we promise.

    Hits without a finite score (how libraries mark 'nothing found') become NO_ROW; ties are
    broken by row.
    """
    queries, width = scores.shape
    all_scores = np.full((queries, max(k, width)), -np.inf, np.float32)
    all_rows = np.full((queries, max(k, width)), NO_ROW, np.int32)
    found = np.isfinite(scores)
    all_scores[:, :width] = np.where(found, scores, -np.inf)
    all_rows[:, :width] = np.where(found, rows, NO_ROW)
    order = np.lexsort((all_rows, -all_scores), axis=1)[:, :k]
    return np.take_along_axis(all_scores, order, 1), np.take_along_axis(all_rows, order, 1)


def best(scores: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best of the hits [n] of one query, given in any order: scores [k] and rows [k].

    As `padded`, which sorts all that it is given; here those alone that may be among the k best.
    """
    if len(scores) > k:
        # Keep everything that ties with the k-th best, so that rows can break the tie.
        kept = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
        scores, rows = scores[kept], rows[kept]
    best_scores, best_rows = padded(scores[None], rows[None], k)
    return best_scores[0], best_rows[0]


def recall_against(rows: np.ndarray, exact_rows: np.ndarray) -> float:
    """Mean share of each query's exact hits [Q, k] that are among `rows` [Q, k]."""
    shares = []
    for found, exact in zip(rows.tolist(), exact_rows.tolist(), strict=True):
        wanted = set(exact) - {NO_ROW}
        shares.append(len(wanted & set(found)) / max(len(wanted), 1))
    return float(np.mean(shares))
