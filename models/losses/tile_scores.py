"""Scores of queries and passages by each kind of representation, of packed rows.

Representations are those of `t5x_style.interfaces.representation` on the device. Letters: r rows of
s queries with e entries each; c rows of t passages with f entries each; d vector size.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from t5x_style.interfaces.representation import DENSE, SEGMENTS, SPARSE

_NOTHING = jnp.finfo(jnp.float32).min  # below every inner product; finite, so that 0 x it is 0


def scores(kind: str, queries: Any, passages: Any, segments: tuple[int, int]) -> jax.Array:
    """[r, s, c, t] float32, in full float32 precision; 0 where texts have nothing in common.

    dense: the inner product. sparse: the sum over shared tokens of the product of their weights.
    multi_vector: the sum over the query's vectors of the largest inner product with one of the
    passage's (ColBERT, arXiv:2004.12832, section 3.3).

    Args:
        kind: of both representations.
        queries, passages: see the module's docstring; a text has a sparse token at most once.
        segments: (s, t), texts of a row.
    """
    if kind == DENSE:
        return _product("rsd,ctd->rsct", queries, passages)
    compare = _shared_weights if kind == SPARSE else _largest_products
    by_entry = compare(queries, passages, segments[1])  # [r, e, c, t]
    return _product("rect,res->rsct", by_entry, members(queries[SEGMENTS], segments[0]))


def members(numbers: jax.Array, segments: int) -> jax.Array:
    """[B, E, S] float32: 1 where an entry is of a text, from the segment numbers [B, E]."""
    return (numbers[:, :, None] == jnp.arange(1, segments + 1)).astype(jnp.float32)


def cells(kind: str, queries: Any, passages: Any) -> int:
    """Numbers that one row of queries against one of passages makes."""
    rows = [one if kind == DENSE else one[SEGMENTS] for one in (queries, passages)]
    return int(rows[0].shape[1] * rows[1].shape[1])


def _shared_weights(
    queries: Mapping[str, jax.Array], passages: Mapping[str, jax.Array], segments: int
) -> jax.Array:
    """[r, e, c, t]: the weight of an entry's token in the query times that in each passage."""
    same = queries["tokens"][:, :, None, None] == passages["tokens"]  # [r, e, c, f]
    weights = members(passages[SEGMENTS], segments) * passages["weights"][:, :, None]
    found = _product("recf,cft->rect", same.astype(jnp.float32), weights)
    return found * queries["weights"][:, :, None, None]


def _largest_products(
    queries: Mapping[str, jax.Array], passages: Mapping[str, jax.Array], segments: int
) -> jax.Array:
    """[r, e, c, t]: an entry's largest inner product with a vector of each passage."""
    products = _product("red,cfd->recf", queries["vectors"], passages["vectors"])
    numbers = passages[SEGMENTS]
    largest = [
        jnp.max(jnp.where(numbers == text, products, _NOTHING), axis=-1)
        for text in range(1, segments + 1)
    ]
    found = jnp.stack(largest, axis=-1)
    return jnp.where(found == _NOTHING, 0.0, found)


def _product(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(spec, a, b, precision="highest", preferred_element_type=jnp.float32)
