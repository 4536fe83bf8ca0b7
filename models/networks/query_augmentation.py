"""Queries brought to one length with [MASK]: ColBERT's query augmentation.

Khattab and Zaharia 2020, arXiv:2004.12832, section 3.2: the states of these tokens are further
vectors of the query, which learn to weight its words and to expand it. Letters: B rows, L row
length, S segments a row, N length of a query.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

Group = Mapping[str, jax.Array]


def augmented(group: Group, mask: int, length: int) -> dict[str, jax.Array]:
    """A token group of B x S rows of N tokens, one query each, row S x b + s of segment s of row b.

    Positions count on over [MASK], which belongs to the query as its words do: all tokens of a row
    attend to each other. A segment that is not there is a row without a query.

    Args:
        group: of B rows; a query is a run of tokens from `cls_at` on, at most N of them, with [CLS]
            and [SEP].
        mask: the id of [MASK].
        length: N.
    """
    tokens, segment_ids = group["tokens"], group["segment_ids"]
    rows, segments = group["cls_at"].shape
    numbers = jnp.arange(1, segments + 1)
    counts = jnp.sum(segment_ids[:, None] == numbers[:, None], axis=-1)  # [B, S]
    places = jnp.arange(length)
    at = jnp.minimum(group["cls_at"][..., None] + places, tokens.shape[1] - 1)  # [B, S, N]
    words = jnp.take_along_axis(tokens, at.reshape(rows, -1), axis=1).reshape(at.shape)
    shape = (rows * segments, length)
    valid = group["segment_valid"].reshape(-1, 1)
    made = {
        "tokens": jnp.where(places < counts[..., None], words, mask).reshape(shape),
        "positions": jnp.broadcast_to(places.astype(jnp.int32), shape),
        "segment_ids": jnp.broadcast_to(valid, shape).astype(jnp.int32),
        "cls_at": jnp.zeros_like(valid, jnp.int32),
        "segment_valid": valid,
    }
    if "token_types" in group:
        made["token_types"] = jnp.zeros(shape, group["token_types"].dtype)
    return made
