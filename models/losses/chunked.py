"""A loop over chunks of rows, so that only one chunk of scores exists at a time."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Body = Callable[[Any, Any], tuple[Any, Any]]


def number_of_chunks(rows: int, chunk: int) -> int:
    """Smallest number of chunks of at most `chunk` rows, preferably one that divides evenly.

    An even division needs no padding; it is taken where it makes less than twice as many chunks.
    """
    min_count = max(1, math.ceil(rows / chunk))
    return next(
        (count for count in range(min_count, 2 * min_count) if rows % count == 0), min_count
    )


def scan_rows(body: Body, carry: Any, arrays: Any, chunk: int, fills: Any = None) -> Any:
    """`jax.lax.scan` over chunks of at most `chunk` rows.

    Args:
      body: (carry, chunk of `arrays`) -> (carry, results [rows of the chunk, ...]).
      carry: where it begins.
      arrays: pytree of [N, ...].
      chunk: 1 or more.
      fills: pytree like `arrays`: the value of rows that are added to the last chunk where
        it is not full; None: 0 everywhere.

    Returns:
      (carry, results [N, ...]).
    """
    rows = jax.tree.leaves(arrays)[0].shape[0]
    count = number_of_chunks(rows, chunk)
    missing = -rows % count

    def cut(x: jax.Array, fill: Any) -> jax.Array:
        if missing:
            x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)
        return x.reshape(count, -1, *x.shape[1:])

    fills = jax.tree.map(lambda _: 0, arrays) if fills is None else fills
    carry, results = jax.lax.scan(body, carry, jax.tree.map(cut, arrays, fills))
    return carry, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:rows], results)
