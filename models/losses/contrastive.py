"""Contrastive losses over explicit vectors.

Letters: Q queries and P passages of the global batch, D dimension.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from t5x_style.metrics import Mean


class Candidates(NamedTuple):
    """Which passages a query is compared with; both [Q, P] bool, and disjoint."""

    positive: jax.Array
    negative: jax.Array


def match(
    query_id: jax.Array,
    passage_query_id: jax.Array,
    relevance: jax.Array,
    document_id: jax.Array,
    query_valid: jax.Array,
    passage_valid: jax.Array,
) -> Candidates:
    """Pairs queries with passages by identity, wherever they stand in the batch.

    Args:
        query_id: [Q] int32, the example id of each query.
        passage_query_id: [P] int32, the example id of the query that each passage came with.
        relevance: [P] int32, 1 where the passage answers that query.
        document_id: [P] int32, row of the passage in its store.
        query_valid: [Q] bool.
        passage_valid: [P] bool.

    Returns:
        Positives: the relevant passages that came with the query.  Negatives: all other valid
        passages, except copies of a positive's document, which other queries may have brought.
    """
    own = (query_id[:, None] == passage_query_id[None]) & (relevance == 1)[None]
    positive = own & query_valid[:, None] & passage_valid[None]
    # Documents as dense numbers, so that nothing of size [P, P] is needed.
    _, number = jnp.unique(document_id, return_inverse=True, size=document_id.shape[0])
    has = jax.ops.segment_max(positive.T, number, num_segments=document_id.shape[0])  # [P, Q]
    copies = has[number].T  # [Q, P]: of a document that is one of the query's positives
    negative = query_valid[:, None] & passage_valid[None] & ~copies & ~positive
    return Candidates(positive, negative)


def scores(query: jax.Array, passage: jax.Array, temperature: float) -> jax.Array:
    """Inner products over the temperature: [Q, P] float32 from [Q, D] and [P, D]."""
    products = jnp.einsum("qd,pd->qp", query, passage, preferred_element_type=jnp.float32)
    return products / temperature


def info_nce(logits: jax.Array, candidates: Candidates) -> Mean:
    """Mean over queries of the InfoNCE loss, in nats.

    For query i with positives P_i (one, as a rule) and negatives N_i,
        L_i = mean over p in P_i of  -log( e^s_ip / (e^s_ip + sum over n in N_i of e^s_in) ),
    so that several positives never push each other away.

    Args:
        logits: [Q, P] float32, already divided by the temperature.
        candidates: from `match`.

    Returns:
        Its weight is the number of queries that have a positive; the others count nothing.
    """
    positive, negative = candidates
    lowest = jnp.finfo(jnp.float32).min  # finite: a query without negatives has loss 0, not NaN
    rest = jax.nn.logsumexp(jnp.where(negative, logits, lowest), axis=1, keepdims=True)
    # softplus(rest - s) is the term above without subtracting two nearly equal numbers.
    pairs = jnp.where(positive, jax.nn.softplus(rest - logits), 0.0)
    count = jnp.sum(positive, axis=1)
    return Mean.of(jnp.sum(pairs, axis=1) / jnp.maximum(count, 1), count > 0)


def ranking_metrics(logits: jax.Array, candidates: Candidates) -> dict[str, Mean]:
    """Accuracy and reciprocal rank of the best positive among the batch; ties count against it.

    Args:
        logits: [Q, P].
        candidates: from `match`.
    """
    positive, negative = candidates
    best = jnp.max(jnp.where(positive, logits, -jnp.inf), axis=1, keepdims=True)
    rank = 1 + jnp.sum(negative & (logits >= best), axis=1)  # [Q]
    has = jnp.any(positive, axis=1)
    return {"accuracy": Mean.of(rank == 1, has), "mrr": Mean.of(1.0 / rank, has)}
