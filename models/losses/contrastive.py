"""Contrastive learning over the global batch: one loss with a choice of blocks.

A query must score its positive above its negatives. Each block compares a left side with a right
side of the whole batch: with q a query and p+ its positive, both cut over devices,

    query_passage      q . every passage: in-batch negatives and hard ones; nearly all systems
    positive_query     p+ . every query
    query_query        q . every query
    positive_positive  p+ . every positive; all four: SimLM's (arXiv:2207.02578, official code)

and all blocks share one softmax. Pairs are matched by example id, wherever they are in the batch.

Letters: Q queries and P passages of the global batch, D dimension, G passages that come with a
query, K documents known to answer it.
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from models.losses import groups, negative_masks
from models.losses.negative_masks import NOBODY, Columns, Rows
from t5x_style.distributed import collectives
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import GroupShape

BLOCKS = ("query_passage", "positive_query", "query_query", "positive_positive")


class Queries(NamedTuple):
    """Queries of the global batch.

    Attributes:
        vectors: [Q, D] float32.
        id: [Q] int32, example ids; no two valid ones are the same.
        valid: [Q] bool.
        known: [Q, K] int32, documents that answer it and so are no negatives, NOBODY where there
            are fewer; its positive in the batch need not be among them.
    """

    vectors: jax.Array
    id: jax.Array
    valid: jax.Array
    known: jax.Array

    @classmethod
    def of(
        cls, vectors: jax.Array, group: Mapping[str, jax.Array], known: jax.Array | None = None
    ) -> "Queries":
        """Of a token group [B, L] with S segments a row.

        Args:
            vectors: [B * S, D] float32.
            group: `example_id` and `segment_valid` [B, S].
            known: [B, S, K] int32; None: no document but its positive is known.
        """
        ids, valid = group["example_id"].reshape(-1), group["segment_valid"].reshape(-1)
        none = jnp.zeros((ids.size, 0), jnp.int32)
        return cls(vectors, ids, valid, none if known is None else known.reshape(ids.size, -1))


class Passages(NamedTuple):
    """Passages of the global batch.

    Attributes:
        vectors: [P, D] float32.
        owner: [P] int32, the id of the query that it came with.
        document: [P] int32, its row in its store.
        relevant: [P] bool, whether it answers that query. The first that does is the query's
            positive; others are none of its negatives, but copies of them are, unless `known`.
        valid: [P] bool.
    """

    vectors: jax.Array
    owner: jax.Array
    document: jax.Array
    relevant: jax.Array
    valid: jax.Array

    @classmethod
    def of(cls, vectors: jax.Array, group: Mapping[str, jax.Array]) -> "Passages":
        """Of a token group [B, L] with S segments a row.

        Args:
            vectors: [B * S, D] float32.
            group: `example_id`, `document_id` and `segment_valid` [B, S]; `relevance` [B, S], or
                each answers the query that it came with.
        """
        owner = group["example_id"].reshape(-1)
        relevant = jnp.ones(owner.shape, bool)
        if "relevance" in group:
            relevant = group["relevance"].reshape(-1) == 1
        valid = group["segment_valid"].reshape(-1)
        return cls(vectors, owner, group["document_id"].reshape(-1), relevant, valid)


def batch_spec(
    query: GroupShape, passage: GroupShape, known: int, taught: bool
) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """Specs of a batch of queries with passages; `Queries.of` and `Passages.of` read it.

    Args:
        query, passage: shapes of the two token groups, [B, L] with S segments each.
        known: K; 0 leaves `known` [B, S, K] int32 out.
        taught: whether passages carry a `teacher_score` [B, S] float32.
    """
    per_query, per_passage = (query.rows, query.segments), (passage.rows, passage.segments)
    asked, given = query.spec(), passage.spec()
    for name in ("relevance", "document_id"):
        given[name] = jax.ShapeDtypeStruct(per_passage, jnp.int32)
    if taught:
        given["teacher_score"] = jax.ShapeDtypeStruct(per_passage, jnp.float32)
    if known:
        asked["known"] = jax.ShapeDtypeStruct((*per_query, known), jnp.int32)
    return {"query": asked, "passage": given}


@dataclasses.dataclass(frozen=True)
class ContrastiveConfig:
    """Settings of the loss.

    Attributes:
        blocks: names of BLOCKS that share the softmax; query_passage has to be among them.
        both_directions: adds the loss of p+ against all queries (LaBSE).
        margin: what is taken from the positive's inner product before it is scaled.
        own_negatives: whether the negatives that came with a query are its negatives here; False
            where a teacher's scores speak for them.
        exchange: 'gather' holds the vectors of all devices at a time, 'ring' those of one; 'local'
            has no negatives of other devices, and needs both sides of a pair on one.
        chunk: queries whose scores exist at a time on a device.
    """

    blocks: tuple[str, ...] = ("query_passage",)
    both_directions: bool = False
    margin: float = 0.0
    own_negatives: bool = True
    exchange: str = "gather"
    chunk: int = 1024

    def __post_init__(self) -> None:
        unknown = [name for name in self.blocks if name not in BLOCKS]
        repeated = len(set(self.blocks)) != len(self.blocks)
        if unknown or repeated or "query_passage" not in self.blocks:
            raise ValueError(
                "ContrastiveConfig.blocks: expected 'query_passage' and any other names of "
                f"{BLOCKS}, each once, found {tuple(self.blocks)}"
            )
        collectives.require_exchange(self.exchange, "ContrastiveConfig.exchange")
        if self.chunk < 1:
            raise ValueError(f"ContrastiveConfig.chunk: expected 1 or more, found {self.chunk}")


def require_both_on_one_device(
    config: ContrastiveConfig, query: GroupShape, passage: GroupShape
) -> None:
    """Raises ValueError unless exchange 'local' finds each pair on one device: row n and row n."""
    if config.exchange == collectives.LOCAL and (
        query.segments != 1 or passage.segments != 1 or query.rows != passage.rows
    ):
        raise ValueError(
            "ContrastiveConfig.exchange 'local': expected a text a row and as many rows on both "
            f"sides, so that a pair is on one device, found {query} and {passage}"
        )


def require_all_devices(config: ContrastiveConfig) -> None:
    """Raises ValueError for exchange 'local' where a pair may be on two devices."""
    if config.exchange == collectives.LOCAL:
        raise ValueError(
            "ContrastiveConfig.exchange: expected 'gather' or 'ring', since a query and its "
            "passages may be on two devices here, found 'local'"
        )


def info_nce(
    queries: Queries, passages: Passages, temperature: float, config: ContrastiveConfig
) -> tuple[MetricSum, dict[str, MetricSum]]:
    """Mean over queries of -log( e^s / (e^s + sum over negatives n of e^s_n) ), in nats.

    A negative is a valid passage (or query, or positive of a query) of the blocks, except: what
    came with the query and answers it; copies of its positive's document, and documents known to
    answer it, which other queries may have brought; in the other blocks, what belongs to itself.

    Args:
        queries, passages: of the global batch; brought to unit length where that is wanted.
        temperature: what inner products are divided by.
        config: see there.

    Returns:
        The loss, its weight being the number of queries whose positive is in the batch (the others
        count nothing); with both directions, the sum of two. And metrics: `accuracy` and `mrr` of
        the positive among its negatives, ties counting against it.
    """
    each = by_query(queries, passages, temperature, config)
    metrics = {
        "accuracy": MetricSum.of(each.above == 0, each.counts),
        "mrr": MetricSum.of(1 / (1 + each.above), each.counts),
    }
    return MetricSum.of(each.losses, each.counts), metrics


class ByQuery(NamedTuple):
    """Attributes:
    losses: [Q] float32, in nats.
    above: [Q], negatives that score as high as the positive, or higher.
    counts: [Q] bool, whether the query's positive is in the batch; else the others say nothing.
    """

    losses: jax.Array
    above: jax.Array
    counts: jax.Array


def by_query(
    queries: Queries, passages: Passages, temperature: float, config: ContrastiveConfig
) -> ByQuery:
    """Losses of each query, which `info_nce` averages; arguments as there."""
    if config.exchange == collectives.LOCAL and collectives.row_mesh().mesh is None:
        warnings.warn(
            "ContrastiveConfig.exchange 'local' on one device: its negatives are those of the "
            "whole batch, as with 'gather'",
            stacklevel=2,
        )
    positive_rows = own_passages(queries, passages, 1)[:, 0]
    has = (positive_rows < passages.owner.shape[0]) & _at(passages.relevant, positive_rows, False)
    positive = collectives.take_rows(passages.vectors, positive_rows, config.exchange)
    score = jnp.einsum("qd,qd->q", queries.vectors, positive, precision="highest")
    left = _Left(queries, positive, _at(passages.document, positive_rows, NOBODY), has)
    columns = {
        "passage": _passage_columns(passages, config.own_negatives),
        "query": left.columns(queries.vectors),
        "positive": left.columns(positive),
    }

    def rest(side: str, blocks: Sequence[str]) -> tuple[jax.Array, jax.Array]:
        rights = [columns[block.removeprefix(side + "_")] for block in blocks]
        return negative_masks.log_sum_exp(
            left.rows(side),
            rights,
            jax.lax.stop_gradient(score / temperature),
            scale=1 / temperature,
            exchange=config.exchange,
            chunk=config.chunk,
        )

    of_query = [block for block in config.blocks if block.startswith("query_")]
    of_positive = [block for block in config.blocks if block.startswith("positive_")]
    others, above = rest("query", of_query)
    if of_positive:
        more, higher = rest("positive", of_positive)
        others, above = jnp.logaddexp(others, more), above + higher
    with_margin = (score - config.margin) / temperature
    # softplus(rest - s) is the loss without subtracting two nearly equal numbers.
    losses = jax.nn.softplus(others - with_margin)
    if config.both_directions:
        losses += jax.nn.softplus(rest("positive", ["positive_query"])[0] - with_margin)
    return ByQuery(losses, above, has)


def own_passages(queries: Queries, passages: Passages, count: int) -> jax.Array:
    """The passages that came with each query, those that answer it first, else in their order.

    Args:
        queries, passages: of the global batch.
        count: how many, at most.

    Returns:
        [Q, count] int32, rows of `passages`; P, which is none of them, where there are fewer.
    """
    return groups.own_rows(
        queries.id, queries.valid, passages.owner, passages.relevant, passages.valid, count
    )


def own_scores(
    queries: Queries, passages: Passages, count: int, temperature: float, exchange: str
) -> tuple[jax.Array, jax.Array]:
    """Each query's scores of the passages that came with it, for a teacher.

    Args:
        queries, passages: of the global batch.
        count: G, how many come with a query, at most.
        temperature: what inner products are divided by.
        exchange: see `collectives.take_rows`.

    Returns:
        (scores [Q, G] float32, rows of `passages` [Q, G] int32 as in `own_passages`).
    """
    rows = own_passages(queries, passages, count)
    vectors = collectives.take_rows(passages.vectors, rows.reshape(-1), exchange)
    vectors = vectors.reshape(*rows.shape, -1)
    scores = jnp.einsum("qd,qgd->qg", queries.vectors, vectors, precision="highest")
    return scores / temperature, rows


class _Left(NamedTuple):
    """Queries with their positives: the left sides of all blocks, and three right ones."""

    queries: Queries
    positive: jax.Array  # [Q, D]
    document: jax.Array  # [Q], of the positive
    has: jax.Array  # [Q]

    def rows(self, side: str) -> Rows:
        vectors = self.queries.vectors if side == "query" else self.positive
        excluded = jnp.concatenate([self.document[:, None], self.queries.known], axis=1)
        return Rows(vectors, self.queries.id, excluded, self.has)

    def columns(self, vectors: jax.Array) -> Columns:
        """Columns; copies of a query or of its positive have the positive's document."""
        return Columns(vectors, self.queries.id, self.document, self.has)


def _passage_columns(passages: Passages, own_negatives: bool) -> Columns:
    theirs = passages.owner if not own_negatives else jnp.where(
        passages.relevant, passages.owner, NOBODY
    )  # fmt: skip
    return Columns(passages.vectors, theirs, passages.document, passages.valid)


def _at(values: jax.Array, index: jax.Array, otherwise: int | bool) -> jax.Array:
    """values[index], `otherwise` beyond their end."""
    return jnp.take(values, index, mode="fill", fill_value=otherwise)
