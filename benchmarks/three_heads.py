"""Time of a pass that gives all representations of a bundle's model, next to the vector alone.

    python -m benchmarks.three_heads --bundle=runs/mine/bundle

A server always computes all of them, since a request may ask for any. The program of passages is
compiled twice, whole and with the vector as its only output, so that XLA leaves out what that does
not need. Both compute the same random tokens without padding, in turns; times are medians.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks import code_hash
from t5x_style.interfaces.representation import PASSAGE, function_name
from t5x_style.retrieval import versioned_folder
from t5x_style.serving import programs

_BUNDLE = flags.DEFINE_string("bundle", None, "Folder of a bundle.", required=True)
_SHAPES = flags.DEFINE_list("shapes", ["1x192", "4x192", "8x96", "64x16"], "Texts x tokens.")
_CALLS = flags.DEFINE_integer("calls", 12, "Of each of the two, for each shape.")

_VECTOR = "embedding"  # see `serving.saved_model`
Pass = Callable[[np.ndarray], Mapping[str, jax.Array]]  # token ids [b, s] -> outputs


def passes(folder: Path, shape: tuple[int, int]) -> tuple[Pass, Pass]:
    """The whole pass and that of the vector alone, compiled for batches of a shape (b, s).

    Raises:
      ValueError: the model makes nothing besides the vector, or no vector.
    """
    function = programs.read_program(folder, function_name(PASSAGE))
    arrays = programs.read_parameters(folder)
    mask = jnp.ones(shape, jnp.int32)
    outputs = sorted(jax.tree.unflatten(function.out_tree, function.out_avals))
    if _VECTOR not in outputs or len(outputs) == 1:
        raise ValueError(f"{folder}: expected a vector and more, found {outputs}")

    def compiled(kept: Sequence[str]) -> Pass:
        def call(arrays: Any, tokens: jax.Array) -> Mapping[str, jax.Array]:
            made = function.call(arrays, tokens, mask)
            return {name: made[name] for name in kept}

        tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
        program = jax.jit(call).lower(arrays, tokens).compile()
        return lambda tokens: jax.block_until_ready(program(arrays, tokens))

    return compiled(outputs), compiled([_VECTOR])


def milliseconds(call: Pass, tokens: np.ndarray) -> float:
    """Of one call."""
    begin = time.perf_counter()
    call(tokens)
    return 1000 * (time.perf_counter() - begin)


def main(argv: Sequence[str]) -> None:
    """Prints a line for each shape."""
    code_hash.announce("three_heads")
    folder = versioned_folder.current(Path(_BUNDLE.value)) / programs.FOLDER
    generator = np.random.default_rng(0)
    for text in _SHAPES.value:
        shape = tuple(map(int, text.split("x")))
        tokens = generator.integers(1_000, 20_000, shape).astype(np.int32)
        contestants = passes(folder, shape)
        for call in contestants:
            call(tokens)
        times = [[milliseconds(call, tokens) for call in contestants] for _ in range(_CALLS.value)]
        whole, vector = map(statistics.median, zip(*times, strict=True))
        print(
            f"{text}: all {whole:.1f} ms, the vector {vector:.1f} ms, {whole / vector:.2f} times",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
