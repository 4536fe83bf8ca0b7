"""Sample tokens from a language model without storing [N, V] logits.

Letters: N positions, V padded vocabulary, E width of what the output layer takes.
"""

import jax
import jax.numpy as jnp
import numpy as np

from models.losses import chunked
from t5x_style.distributed import collectives

BLOCK = 128  # tokens whose probabilities are added up first


def sample_tokens(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    numbers: jax.Array,
    *,
    vocab_size: int,
    chunk: int,
) -> jax.Array:
    """One token a position from softmax(hidden . table^T + bias), by inversion.

    The token is the first at which the cumulated probability exceeds the position's own random
    number, so that it does not depend on chunks, rows or devices. No gradient.

    Args:
        hidden: [N, E], already through the head's transform; its dtype is that of the products.
        table: [V, E], usually the word embeddings.
        bias: [V].
        numbers: [N] uint32, random; the first 24 bits count.
        vocab_size: the true vocabulary size; later rows are never drawn.
        chunk: positions whose probabilities exist at a time on a device.

    Returns:
        [N] int32.
    """
    devices = collectives.row_mesh()
    missing = -hidden.shape[0] % devices.size
    rows = (jnp.pad(hidden, [(0, missing), (0, 0)]), jnp.pad(numbers, (0, missing)))
    real = np.arange(table.shape[0]) < vocab_size
    whole = (table.astype(hidden.dtype), jnp.where(real, bias.astype(jnp.float32), -jnp.inf))

    def local(hidden: jax.Array, numbers: jax.Array, *whole: jax.Array) -> jax.Array:
        def one(_: None, part: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
            return None, _drawn(*part, *whole, vocab_size)

        return chunked.scan_rows(one, None, (hidden, numbers), chunk)[1]

    drawn = devices.run(local, *rows, whole=whole)
    return jax.lax.stop_gradient(drawn[: hidden.shape[0]])


def _drawn(
    hidden: jax.Array, numbers: jax.Array, table: jax.Array, bias: jax.Array, vocab_size: int
) -> jax.Array:
    """[n] int32: the block of tokens in which the number falls, then the token of that block.

    Adding up in two steps costs a third of one long running sum, and rounds less.
    """
    product = jnp.einsum("ne,ve->nv", hidden, table, preferred_element_type=jnp.float32)
    logits = product + bias
    weights = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
    weights = jnp.pad(weights, [(0, 0), (0, -weights.shape[1] % BLOCK)])
    blocks = weights.reshape(weights.shape[0], -1, BLOCK)
    ends = jnp.cumsum(jnp.sum(blocks, axis=2), axis=1)  # [n, blocks]
    uniform = (numbers >> 8).astype(jnp.float32) * 2.0**-24  # [0, 1), exactly
    sought = (uniform * ends[:, -1])[:, None]
    block = _first_above(ends, sought)
    before = jnp.where(block > 0, jnp.take_along_axis(ends, jnp.maximum(block - 1, 0), axis=1), 0.0)
    inside = jnp.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]
    token = block * BLOCK + _first_above(jnp.cumsum(inside, axis=1), sought - before)
    return jnp.minimum(token[:, 0], vocab_size - 1)


def _first_above(sums: jax.Array, sought: jax.Array) -> jax.Array:
    """[n, 1] int32: where `sums` [n, m], which do not fall, first exceed `sought` [n, 1]."""
    passed = jnp.sum(sums <= sought, axis=1, keepdims=True, dtype=jnp.int32)
    return jnp.minimum(passed, sums.shape[1] - 1)
