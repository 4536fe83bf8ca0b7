"""Seconds from the command to the first training step, with a cold and a warm compilation cache.

    python -m benchmarks.startup [--model=tiny] [--repeats=3]

Runs `python -m t5x_style.train` as a user does, one step of RetroMAE over the documentation corpus,
until the line of its first step appears.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import app, flags

from benchmarks import code_hash, corpora

_MODEL = flags.DEFINE_string("model", "tiny", "A file of gin_configs/models.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Runs each; the median counts.")

MARK = "step 1/1 "


def seconds_to_first_step(store: Path, tokenizer: Path, folder: Path, cache: Path) -> float:
    """Of one run in a fresh folder."""
    store_of_runs = folder.with_name("runs")
    shutil.rmtree(store_of_runs, ignore_errors=True)
    folder.unlink(missing_ok=True)
    files = [
        "runs/training/train",
        f"models/{_MODEL.value}",
        "objectives/retromae",
        "data/pretraining/packed",
    ]
    macros = {
        "MODEL_DIR": str(folder), "STORE": str(store), "TOKENIZER": str(tokenizer),
        "ROWS": 16, "ROW_LENGTH": 128, "SEGMENTS": 8, "QUERY_LENGTH": 32, "PASSAGE_LENGTH": 128,
        "STEPS": 1, "WARMUP_STEPS": 0, "LEARNING_RATE": 1e-3, "SEED": 0, "LOG_EVERY": 1,
        "stage.run.store": str(store_of_runs),
    }  # fmt: skip
    command = [sys.executable, "-m", "t5x_style.train", "--strict_code"]
    command += [f"--gin_file=gin_configs/{name}.gin" for name in files]
    command += [f"--gin.{name}={value!r}" for name, value in macros.items()]
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    started, found = time.perf_counter(), None
    with subprocess.Popen(
        command, cwd=corpora.ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if MARK in line and found is None:
                found = time.perf_counter() - started
    if process.returncode or found is None:
        raise SystemExit(f"the run failed ({process.returncode}):\n{''.join(lines)[-4000:]}")
    return found


def main(_: list[str]) -> None:
    """Prints both times."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        store, tokenizer = corpora.tokenized(corpora.documentation(work), work / "stages", 128)
        cold, warm = [], []
        for number in range(_REPEATS.value):
            cache = work / f"cache{number}"
            cold.append(seconds_to_first_step(store, tokenizer, work / "run", cache))
            warm.append(seconds_to_first_step(store, tokenizer, work / "run", cache))
    print(f"seconds from command to first step, models/{_MODEL.value}.gin:")
    for name, times in (("cold cache", cold), ("warm cache", warm)):
        print(f"  {name}  {statistics.median(times):6.1f}  ({min(times):.1f} to {max(times):.1f})")


if __name__ == "__main__":
    code_hash.announce("startup")
    app.run(main)
