"""Drawing tokens from a language model, without ever holding [N, V].

Letters: N positions, V padded vocabulary, E width of what the output layer takes.
"""

import jax
import jax.numpy as jnp
import numpy as np

from models.losses import chunked
from t5x_style import collectives


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
    product = jnp.einsum("ne,ve->nv", hidden, table, preferred_element_type=jnp.float32)
    logits = product + bias
    cumulated = jnp.cumsum(jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True)), axis=1)
    uniform = (numbers >> 8).astype(jnp.float32) * 2.0**-24  # [0, 1), exactly
    passed = cumulated <= (uniform * cumulated[:, -1])[:, None]
    return jnp.minimum(jnp.sum(passed, axis=1, dtype=jnp.int32), vocab_size - 1)
