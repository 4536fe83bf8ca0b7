"""Several kinds of representations of the same passages, searched as one.

Indexes of some kinds propose candidates; each candidate is scored exactly by every kind, so that a
kind without an index, or one whose exact search is slow, takes part as well. What a query is
answered with is a weighted sum of these scores (M3, arXiv:2402.03216, section 3.2), or reciprocal
ranks (Cormack, Clarke and Buettcher 2009).
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.index import NO_ROW, Index
from t5x_style.interfaces.representation import DENSE, KINDS, Representation, Representations
from t5x_style.retrieval import candidate_scores, embedding_shards

# Of settings alone: a recipe's check calls it before the first stage (`preflight.trial`).
READ_EARLY = ("searched_kinds",)
RRF_K = 60  # Cormack, Clarke and Buettcher 2009


class HybridError(ValueError):
    """Kinds, weights or indexes that do not belong together."""


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """See the module's docstring. Made by `load`.

    Attributes:
      indexes: that propose candidates, of different kinds.
      passages: kind -> representation of all passages, in the rows of the indexes.
      ids: passage ids, by row.
      contract: of the model that made all of them.
      checkpoint: its fingerprint.
      candidates: that each index proposes for a query, at least as many as are asked for.
    """

    indexes: Sequence[Index]
    passages: Mapping[str, Representation]
    ids: Sequence[str]
    contract: Contract
    checkpoint: str
    candidates: int

    def __post_init__(self) -> None:
        kinds = [index.kind for index in self.indexes]
        if not kinds or len(set(kinds)) < len(kinds) or not set(kinds) <= set(self.passages):
            raise HybridError(
                "expected indexes of different kinds, at least one, and each kind among the "
                f"embeddings, found indexes of {kinds} and embeddings of {list(self.passages)}"
            )
        if self.candidates < 1:
            raise HybridError(f"candidates: expected at least 1, found {self.candidates}")
        for index in self.indexes:
            where = f"the {index.kind} index"
            index_lib.check_contract(index, self.contract, where, index.kind)
            index_lib.check_checkpoint(index, self.checkpoint, where)
            if list(index.ids) != list(self.ids):
                raise HybridError(
                    f"{where} holds {len(index.ids)} passages, the embeddings {len(self.ids)}, and "
                    "they are not the same in the same order. Build it from these embeddings."
                )

    @property
    def kinds(self) -> tuple[str, ...]:
        """That passages are scored by."""
        return tuple(self.passages)

    def propose(self, queries: Representations, k: int) -> np.ndarray:
        """Candidates of each query, every passage at most once.

        Args:
          queries: kind -> representations of Q queries; those of the indexes' kinds are there.
          k: how many are asked for.

        Returns:
          [Q, C] int32, ascending, NO_ROW at the end.
        """
        width = min(max(k, self.candidates), len(self.ids))
        found = [index.search(queries[index.kind], width)[1] for index in self.indexes]
        rows = np.sort(np.concatenate(found, axis=1), axis=1)
        repeated = np.concatenate(
            [np.zeros((len(rows), 1), bool), rows[:, 1:] == rows[:, :-1]], axis=1
        )
        last = np.iinfo(rows.dtype).max
        rows = np.sort(np.where(repeated | (rows == NO_ROW), last, rows), axis=1)
        rows = np.where(rows == last, NO_ROW, rows)
        return rows[:, : max(1, int((rows != NO_ROW).sum(axis=1).max(initial=0)))]

    def scores(self, queries: Representations, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Kind -> scores [Q, C] of candidates, -inf at NO_ROW; of the kinds of the queries."""
        return {
            kind: candidate_scores.scores(kind, one, self.passages[kind], rows)
            for kind, one in queries.items()
        }

    def search(
        self, queries: Representations, k: int, weights: Mapping[str, float]
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Index.search`, by the weighted sum of the scores of the kinds.

        Args:
          queries: kind -> representations of Q queries, of the indexes' kinds and the weights'.
          k: at least 1.
          weights: kind -> weight, at least 0 and one above it.

        Raises:
          HybridError: a weight for a kind that the queries or the embeddings lack.
        """
        check_weights(weights, [kind for kind in self.kinds if kind in queries])
        rows = self.propose(queries, k)
        scores = self.scores({kind: queries[kind] for kind in counted(weights)}, rows)
        return index_lib.padded(weighted(scores, weights), rows, k)


@dataclasses.dataclass(frozen=True)
class Combined:
    """A hybrid with one way to combine scores; what answers questions.

    Attributes:
      searched: indexes and passages.
      weights: kind -> weight, such as `hybrid_weights.of_contract` reads; None: reciprocal ranks.
      ranked: the kinds whose ranks count, without weights; all that are stored by default.
    """

    searched: Hybrid
    weights: Mapping[str, float] | None
    ranked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = dict.fromkeys(self.scored, 1.0) if self.weights is None else self.weights
        check_weights(given, self.searched.kinds)

    @property
    def scored(self) -> tuple[str, ...]:
        """Kinds whose scores or ranks count."""
        if self.weights is not None:
            return tuple(self.weights)
        return self.ranked or self.searched.kinds

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of the representations of a query that are needed."""
        proposing = [index.kind for index in self.searched.indexes]
        return tuple(dict.fromkeys([*self.scored, *proposing]))

    @property
    def ids(self) -> Sequence[str]:
        """Passage ids, by row."""
        return self.searched.ids

    def search(self, queries: Representations, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Index.search`, given kind -> representations of Q queries."""
        if self.weights is not None:
            return self.searched.search(queries, k, self.weights)
        rows = self.searched.propose(queries, k)
        return self.best_of(queries, rows, k)

    def best_of(
        self, queries: Representations, rows: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `search`, among given candidates: rows [Q, C] int32, NO_ROW where there is none."""
        kinds = self.scored if self.weights is None else counted(self.weights)
        scores = self.searched.scores({kind: queries[kind] for kind in kinds}, rows)
        combined = (
            reciprocal_ranks(scores) if self.weights is None else weighted(scores, self.weights)
        )
        return index_lib.padded(combined, rows, k)


Searched = Index | Combined  # what a question is asked of


def indexes(searched: Searched) -> Sequence[Index]:
    """That are inside."""
    return searched.searched.indexes if isinstance(searched, Combined) else [searched]


def asked_kinds(searched: Searched) -> tuple[str, ...]:
    """Of the representations of a query that it needs."""
    return searched.kinds if isinstance(searched, Combined) else (searched.kind,)


def ask(searched: Searched, queries: Representations, k: int) -> tuple[np.ndarray, np.ndarray]:
    """As `Index.search`, given kind -> representations of Q queries, of `asked_kinds`."""
    if isinstance(searched, Combined):
        return searched.search(queries, k)
    return searched.search(queries[searched.kind], k)


def searched_kinds(kinds: Collection[str], indexed: Sequence[str]) -> list[str]:
    """The kinds that passages are scored by, for `load`.

    Args:
      kinds: of the model; of their weights in its training the keys count.
      indexed: that have an index, which proposes candidates.

    Raises:
      HybridError: there are others than 'dense', 'sparse' and 'multi_vector', or a kind that has an
        index is not among them.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not set(indexed) <= set(kinds):
        raise HybridError(
            f"kinds: expected some of {list(KINDS)}, among them {list(indexed)}, whose indexes "
            f"propose candidates, found {list(kinds)}. Keep these kinds in KIND_WEIGHTS and "
            "SEARCHED_KINDS, or bind hybrid.load with other indexes (docs/m3.md)."
        )
    return list(kinds)


def load(
    embeddings: str,
    indexes: Sequence[Index],
    kinds: Sequence[str],
    candidates: int = 1000,
    expected: Mapping[str, Any] | None = None,
) -> Hybrid:
    """Indexes over what `encode_corpus` wrote.

    Args:
      embeddings: folder that holds all kinds; they stay on disk.
      indexes: that propose candidates.
      kinds: that passages are scored by, those of the indexes among them.
      candidates: see `Hybrid`.
      expected: how vectors of tokens must be kept, see `embedding_shards.read`.

    Raises:
      HybridError: they do not belong together.
      RepresentationError: the folder lacks a kind, or its vectors of tokens are kept otherwise.
      ContractError: an index is of another model.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise HybridError(f"kinds: expected some of {list(KINDS)}, found {list(kinds)}")
    passages, ids, contract, checkpoint = embedding_shards.read(embeddings, kinds, expected)
    for kind, found in passages.items():
        index_lib.check_passages(kind, found, ids)
    return Hybrid(indexes, passages, ids, contract, checkpoint, candidates)


def check_weights(weights: Mapping[str, float], kinds: Sequence[str]) -> None:
    """Raises HybridError unless weights are of these kinds, at least 0, and one above it."""
    missing = [kind for kind in weights if kind not in kinds]
    wrong = [weight for weight in weights.values() if not 0 <= weight < np.inf]
    if missing or wrong or not any(weights.values()):
        raise HybridError(
            f"weights: expected numbers of at least 0, one of them above it, of the kinds "
            f"{list(kinds)}, found {dict(weights)}"
        )


def counted(weights: Mapping[str, float]) -> tuple[str, ...]:
    """The kinds whose scores count: those of weight 0 need none."""
    return tuple(kind for kind, weight in weights.items() if weight)


def weighted(scores: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> np.ndarray:
    """[Q, C] float32: the sum over kinds of weight x score, -inf where a score is.

    Args:
      scores: of the kinds that are `counted`.
      weights: kind -> weight.
    """
    total = sum(weights[kind] * scores[kind].astype(np.float64) for kind in counted(weights))
    return np.asarray(total, np.float32)


def reciprocal_ranks(scores: Mapping[str, np.ndarray]) -> np.ndarray:
    """[Q, C] float32: the sum over kinds of 1 / (60 + rank among the hits), ties by place.

    A kind adds 0 to a candidate that has nothing in common with the query by it (a score of 0, but
    of dense vectors): it has no rank. -inf where a score is -inf.
    """
    total: np.ndarray | float = 0.0
    for kind, found in scores.items():
        hits = found if kind == DENSE else np.where(found == 0, -np.inf, found)
        order = np.argsort(-hits, axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(1, order.shape[1] + 1)[None], axis=1)
        added = np.where(np.isfinite(hits), 1 / (RRF_K + ranks), 0.0)
        total = total + np.where(np.isfinite(found), added, -np.inf)
    return np.asarray(total, np.float32)


def grid(kinds: Sequence[str], steps: int = 10) -> Iterator[dict[str, float]]:
    """Weights that sum to 1, in steps of 1 / `steps`, of all kinds together."""
    for parts in itertools.product(range(steps + 1), repeat=len(kinds)):
        if sum(parts) == steps:
            yield {kind: part / steps for kind, part in zip(kinds, parts, strict=True)}
