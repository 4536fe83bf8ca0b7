"""Cross-entropy over a vocabulary: chunked forms compared with the plain one, value and gradient.

    python -m benchmarks.cross_entropy --positions=8192 --width=128 --vocabulary=8192

Prints one table: milliseconds (best of the repetitions) and positions per second.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks import code_hash
from models.losses import cross_entropy as ce

_POSITIONS = flags.DEFINE_integer("positions", 8192, "Predicted positions.")
_WIDTH = flags.DEFINE_integer("width", 128, "Hidden size.")
_VOCABULARY = flags.DEFINE_integer("vocabulary", 8192, "Rows of the table.")
_CHUNKS = flags.DEFINE_list("chunks", ["256", "1024", "4096"], "Positions at a time.")
_REPEAT = flags.DEFINE_integer("repeat", 5, "Repetitions; the best counts.")

Loss = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def plain(hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array) -> jax.Array:
    """The obvious form, holding [N, V]."""
    logits = jnp.einsum("nd,vd->nv", hidden, table, preferred_element_type=jnp.float32) + bias
    gold = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - gold)


def chunked(form: str, chunk: int) -> Loss:
    """One of the two forms of `models.losses.cross_entropy` as a mean loss."""
    size = {"vocab_size": _VOCABULARY.value, "chunk": chunk}
    if form == "mean":
        return lambda h, t, b, labels: ce.cross_entropy_mean(h, t, b, labels, **size)[0].value()
    return lambda h, t, b, labels: jnp.mean(ce.cross_entropy(h, t, b, labels, **size))


def measure(loss: Loss) -> float:
    """Seconds of one value-and-gradient, the best of several."""
    n, d, v = _POSITIONS.value, _WIDTH.value, _VOCABULARY.value
    keys = jax.random.split(jax.random.key(0), 3)
    hidden, table = jax.random.normal(keys[0], (n, d)), jax.random.normal(keys[1], (v, d)) * 0.1
    labels = jax.random.randint(keys[2], (n,), 0, v)
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    arguments = (hidden, table, jnp.zeros(v), labels)
    jax.block_until_ready(step(*arguments))
    seconds = []
    for _ in range(_REPEAT.value):
        start = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main(_: list[str]) -> None:
    forms: dict[str, Loss] = {"plain [N, V]": plain}
    for chunk in map(int, _CHUNKS.value):
        forms[f"per position, chunk {chunk}"] = chunked("per position", chunk)
        forms[f"mean, chunk {chunk}"] = chunked("mean", chunk)
    print(f"{'form':<28}{'ms':>10}{'positions/s':>14}")
    for name, loss in forms.items():
        seconds = measure(loss)
        print(f"{name:<28}{1000 * seconds:>10.1f}{_POSITIONS.value / seconds:>14,.0f}")


if __name__ == "__main__":
    code_hash.announce("cross_entropy")
    app.run(main)
