"""Time and memory of self-attention on CPUs: written out, and by groups of heads.

    python -m benchmarks.attention_cpu

Forward, and with the gradient, of rows with three segments, float32, on as many virtual devices as
there are cores (4 at most), in turns; the median of the rounds. Prints the table of
docs/attention.md.
"""

import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from absl import app, flags

from benchmarks import code_hash
from launch import children

_ROUNDS = flags.DEFINE_integer("rounds", 9, "Rounds; the median counts.", lower_bound=1)
_DEVICES = flags.DEFINE_integer("devices", 4, "As which a CPU counts at most.", lower_bound=1)

SIZES = (
    (128, 64, 12, 32),
    (64, 128, 12, 32),
    (32, 256, 12, 32),
    (64, 256, 12, 64),
    (16, 512, 12, 64),
)


class Program(NamedTuple):
    """Compiled for one size and form."""

    forward: Callable[[], object]
    gradient: Callable[[], object]
    temporaries: int  # bytes of the gradient, on a device


def program(form: str, size: tuple[int, int, int, int]) -> Program:
    """`attention`'s form, 'plain' or 'blocked', for [rows, length, heads, dimension]."""
    import jax
    import jax.numpy as jnp

    from models.networks import attention
    from t5x_style.distributed import partitioning

    partitioner = partitioning.Partitioner()
    rows, length = size[:2]
    keys = jax.random.split(jax.random.key(0), 4)
    ids = jnp.sort(jax.random.randint(keys[3], (rows, length), 1, 4), axis=1)
    q, k, v, ids = jax.device_put(
        (*(jax.random.normal(key, size) for key in keys[:3]), ids), partitioner.batch_sharding
    )

    def heads(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        if form == "plain":
            return attention.plain(q, k, v, attention.visibility(ids, ids))
        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            return attention.fused(q, k, v, attention.Segments(ids, False), "auto")

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(heads(q, k, v)))

    forward = jax.jit(heads).lower(q, k, v).compile()
    gradient = jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, k, v).compile()
    return Program(
        functools.partial(forward, q, k, v), functools.partial(gradient, q, k, v),
        gradient.memory_analysis().temp_size_in_bytes,
    )  # fmt: skip


def milliseconds(call: Callable[[], object]) -> float:
    """Of one call."""
    import jax

    started = time.perf_counter()
    jax.block_until_ready(call())
    return 1e3 * (time.perf_counter() - started)


def main(_: list[str]) -> None:
    """Prints the table."""
    os.environ.update(children.virtual_devices(_DEVICES.value))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from t5x_style.distributed import startup

    startup.schedule_for_memory()
    print("| rows x length, heads x dimension | form | forward, ms | with gradient, ms | MiB |")
    print("|---|---|---|---|---|")
    for size in SIZES:
        programs = {form: program(form, size) for form in ("plain", "blocked")}
        times: dict[str, list[tuple[float, float]]] = {form: [] for form in programs}
        for number in range(_ROUNDS.value + 1):
            for form, one in programs.items():
                found = milliseconds(one.forward), milliseconds(one.gradient)
                if number:  # the first round warms up
                    times[form].append(found)
        for form, one in programs.items():
            forward, gradient = map(statistics.median, zip(*times[form], strict=True))
            print(
                f"| {size[0]} x {size[1]}, {size[2]} x {size[3]} | {form} | {forward:,.0f} "
                f"| {gradient:,.0f} | {one.temporaries / 2**20:,.0f} |", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    code_hash.announce("attention_cpu")
    app.run(main)
