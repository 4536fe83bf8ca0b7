"""The scores of a batch's queries, by several kinds of representations, for `joint_losses`.

Pairs are matched by `example_id`, so that rows may be packed and in any order. Letters: Q queries,
G passages that come with a query.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from models.losses import groups, joint_losses, joint_scores
from t5x_style.interfaces.representation import PASSAGE, QUERY, Representations

Group = Mapping[str, jax.Array]


def compared(
    batch: Mapping[str, Group],
    made: Mapping[str, Representations],
    config: joint_losses.JointLossConfig,
    *,
    temperature: float,
    group_size: int,
    known_positives: bool,
    exchange: str,
    cells: int,
) -> tuple[joint_losses.Scores, jax.Array]:
    """(scores of Q queries, [Q] whether a query's positive is in the batch).

    Args:
        batch: its token groups 'query' and 'passage', global.
        made: side -> its representations, of the kinds of `config` at least.
        config: which kinds are compared, in the order of its weights, and whether there is a
            teacher, whose scores passages carry.
        temperature: what scores are divided by.
        group_size: G, at most.
        known_positives: whether queries name documents known to answer them.
        exchange, cells: see `joint_scores.sums`.
    """
    query, passage = batch[QUERY], batch[PASSAGE]
    relevant = passage["relevance"].reshape(-1) == 1
    own = _own_passages(query, passage, relevant, group_size)  # [Q, G]
    answers = jnp.take(relevant, own, mode="fill", fill_value=False)
    has = answers[:, 0]
    columns = joint_scores.Columns(
        made[PASSAGE],
        passage["example_id"],
        passage["document_id"],
        joint_scores.numbers(passage["segment_valid"]),
        passage["segment_valid"],
    )
    shape = query["example_id"].shape
    by_row = own.reshape(*shape, -1)
    known = query["known"] if known_positives else None
    excluded = joint_scores.excluded(by_row, columns, known)
    rows = joint_scores.Rows(made[QUERY], query["example_id"], excluded, by_row, has.reshape(shape))
    in_sum = {kind: config.in_sum[kind] for kind in config.weights}
    found = joint_scores.sums(
        rows, columns, in_sum, scale=1 / temperature, exchange=exchange, cells=cells
    )
    found = jax.tree.map(lambda x: x.reshape(len(own), *x.shape[2:]), found)
    positive = jnp.arange(group_size) == 0
    kept = (own < relevant.size) & (~answers | positive)
    teacher = None
    if config.teacher is not None:
        scores = passage["teacher_score"].reshape(-1)
        teacher = jnp.take(scores, own, mode="fill", fill_value=-jnp.inf)
    return joint_losses.scores_of(found, kept, teacher, tuple(in_sum.values())), has


def _own_passages(query: Group, passage: Group, relevant: jax.Array, group_size: int) -> jax.Array:
    """[Q, G] int32, see `groups.own_rows`; by document, an order that packing does not change.

    The teacher 'm3_kd' depends on the order.
    """
    return groups.own_rows(
        query["example_id"].reshape(-1),
        query["segment_valid"].reshape(-1),
        passage["example_id"].reshape(-1),
        relevant,
        passage["segment_valid"].reshape(-1),
        group_size,
        passage["document_id"].reshape(-1),
    )
