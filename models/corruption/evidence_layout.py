"""Token layout of retrieved blocks: alone, and after the query that retrieved them.

    candidate  [CLS] title [SEP] body [SEP]       what the embedder sees
    joint      [CLS] query [SEP] body [SEP]       what the reader sees: the title is left out
    null       [CLS] [SEP] [SEP]                  a block of nothing, the first candidate

Letters: B queries, K candidates of each, L length of a block, Q length of a query.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from t5x_style.interfaces.contract import Vocabulary

Group = dict[str, jax.Array]


def row_group(tokens: jax.Array, lengths: jax.Array, example_id: jax.Array) -> Group:
    """A token group of one segment a row.

    Args:
        tokens: [R, L] int32.
        lengths: [R] int32; 0 makes a row without a segment.
        example_id: [R] int32.
    """
    rows, length = tokens.shape
    column = jnp.arange(length, dtype=jnp.int32)
    real = column[None] < lengths[:, None]
    return {
        "tokens": jnp.where(real, tokens, 0),
        "positions": jnp.where(real, column[None], 0),
        "segment_ids": real.astype(jnp.int32),
        "word_starts": real,
        "cls_at": jnp.zeros((rows, 1), jnp.int32),
        "segment_valid": lengths[:, None] > 0,
        "example_id": example_id[:, None],
    }


def beginning(tokens: jax.Array, lengths: jax.Array, length: int, sep: int) -> Group:
    """The first tokens of each block's body as a query: "[CLS] body [SEP]", at most `length`.

    Args:
        tokens, lengths: blocks [R, L] and [R]; the body starts after the first [SEP].
        length: of the rows that are made.
        sep: id of [SEP].
    """
    body_at = jnp.argmax(tokens == sep, axis=1)[:, None]  # the [SEP] before it gives way to [CLS]
    column = jnp.arange(length, dtype=jnp.int32)[None]
    at = jnp.clip(jnp.where(column == 0, 0, column + body_at), 0, tokens.shape[1] - 1)
    total = jnp.minimum(lengths - body_at[:, 0], length)
    taken = jnp.take_along_axis(tokens, at, axis=1)
    taken = jnp.where(column == total[:, None] - 1, sep, taken)
    return row_group(taken, total, jnp.zeros_like(lengths))


def in_body(tokens: jax.Array, lengths: jax.Array, sep: int) -> jax.Array:
    """Mask of the body's tokens in "[CLS] title or query [SEP] body [SEP]", without [SEP].

    Args:
        tokens: [..., L] int32.
        lengths: [...] int32 of the whole texts.
        sep: id of [SEP].

    Returns:
        [..., L] bool.
    """
    column = jnp.arange(tokens.shape[-1], dtype=jnp.int32)
    behind = column > jnp.argmax(tokens == sep, axis=-1)[..., None]
    return behind & (column < lengths[..., None] - 1)


def null_row(length: int, vocabulary: Vocabulary) -> jax.Array:
    """The null document as [length] int32, of which 3 are its tokens."""
    tokens = jnp.array([vocabulary.cls, vocabulary.sep, vocabulary.sep], jnp.int32)
    return jnp.zeros(length, jnp.int32).at[:3].set(tokens)


def with_null(
    tokens: jax.Array, lengths: jax.Array, vocabulary: Vocabulary
) -> tuple[jax.Array, jax.Array]:
    """[B, K, L] and [B, K] from [B, K - 1, L] and [B, K - 1]: the null document before the others.

    L is at least 3.
    """
    queries, _, length = tokens.shape
    null = jnp.broadcast_to(null_row(length, vocabulary), (queries, 1, length))
    three = jnp.full((queries, 1), 3, jnp.int32)
    return jnp.concatenate([null, tokens], axis=1), jnp.concatenate([three, lengths], axis=1)


def candidate_group(tokens: jax.Array, lengths: jax.Array, query: Mapping[str, jax.Array]) -> Group:
    """Blocks [B, K, L] of `lengths` [B, K] as a token group of B * K rows, a query's together."""
    count = tokens.shape[1]
    ids = jnp.repeat(query["example_id"][:, 0], count)
    return row_group(tokens.reshape(-1, tokens.shape[2]), lengths.reshape(-1), ids)


def joint_group(
    tokens: jax.Array, lengths: jax.Array, query: Mapping[str, jax.Array], vocabulary: Vocabulary
) -> Group:
    """Each query followed by the body of each of its blocks.

    Args:
        tokens, lengths: blocks [B, K, L] and [B, K]; the body starts after the first [SEP].
        query: token group [B, Q] of one segment a row.
        vocabulary: of the tokens.

    Returns:
        a token group of B * K rows of Q + L tokens; a row without a block has no segment.
    """
    queries, count, length = tokens.shape
    asked = jnp.sum(query["segment_ids"] > 0, axis=1, dtype=jnp.int32)[:, None, None]  # [B, 1, 1]
    body_at = jnp.argmax(tokens == vocabulary.sep, axis=2)[:, :, None] + 1  # [B, K, 1]
    column = jnp.arange(query["tokens"].shape[1] + length, dtype=jnp.int32)[None, None]
    of_query = jnp.pad(query["tokens"], ((0, 0), (0, length)))[:, None]
    at = jnp.clip(column - asked + body_at, 0, length - 1)
    of_body = jnp.take_along_axis(tokens, jnp.broadcast_to(at, (queries, count, column.size)), 2)
    joint = jnp.where(column < asked, of_query, of_body)
    total = jnp.where(lengths > 0, (asked - body_at)[:, :, 0] + lengths, 0)
    ids = jnp.repeat(query["example_id"][:, 0], count)
    return row_group(joint.reshape(queries * count, -1), total.reshape(-1), ids)
