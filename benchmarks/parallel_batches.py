"""Tokens a second of a bundle's model, with one batch or several on the device at a time.

    python -m benchmarks.parallel_batches --bundle=runs/mine/bundle

Each thread computes batches of `--rows` passages of `--length` random tokens, without padding, and
waits for each. The numbers of threads alternate, `--rounds` times, as a machine's speed changes.
`t5x_style.serving.batch_shapes.parallel_batches` chooses how many a server has.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks import code_hash
from t5x_style.interfaces.representation import PASSAGE, function_name
from t5x_style.retrieval import versioned_folder
from t5x_style.serving import programs

_BUNDLE = flags.DEFINE_string("bundle", None, "Folder of a bundle.", required=True)
_ROWS = flags.DEFINE_integer("rows", 8, "Texts of a batch.")
_LENGTH = flags.DEFINE_integer("length", 192, "Tokens of each.")
_BATCHES = flags.DEFINE_integer("batches", 12, "Of each measurement.")
_ROUNDS = flags.DEFINE_integer("rounds", 2, "Measurements of each number of threads.")
_THREADS = flags.DEFINE_list("threads", ["1", "2", "3"], "Batches at a time.")


def tokens_per_second(
    model: programs.Programs, tokens: np.ndarray, count: int, threads: int
) -> float:
    """Of `count` batches `tokens` [b, s] int32, of which `threads` are computed at a time."""
    mask = np.ones_like(tokens)

    def compute(_: int) -> None:
        for array in model(function_name(PASSAGE), tokens, mask).values():
            np.asarray(array)

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(compute, range(count)))
    return count * tokens.size / (time.perf_counter() - begin)


def main(argv: Sequence[str]) -> None:
    """Prints the table."""
    code_hash.announce("parallel_batches")
    folder = versioned_folder.current(Path(_BUNDLE.value))
    model = programs.Programs(folder / programs.FOLDER)
    shape = (_ROWS.value, _LENGTH.value)
    tokens = np.random.default_rng(0).integers(1_000, 20_000, shape).astype(np.int32)
    model.compile(function_name(PASSAGE), shape)
    tokens_per_second(model, tokens, 1, 1)
    for _ in range(_ROUNDS.value):
        for threads in map(int, _THREADS.value):
            rate = tokens_per_second(model, tokens, _BATCHES.value, threads)
            print(f"{threads} at a time: {rate:,.0f} tokens/s", flush=True)


if __name__ == "__main__":
    app.run(main)
