"""How fast the input pipeline makes batches, compared with the training step on this CPU.

    python -m benchmarks.input_pipeline [--store=FOLDER --tokenizer=FOLDER] [--rows=16]

Tokens that are not padding per second: of the pipeline alone (reading, packing, prefetching), and
of the RetroMAE step at the main job's size, fed with batches that lie ready. They take turns.
Without a store: SQuAD's paragraphs, prepared by the main job's stages.
"""

import statistics
import tempfile
import time
from pathlib import Path

from absl import app, flags

from benchmarks import code_hash, corpora
from benchmarks.retromae_step import RetroMaeStep
from benchmarks.shapes import SIZES, Shape
from input_pipelines.batches.packed_text import Pipeline
from input_pipelines.store.token_store import TokenStore

_STORE = flags.DEFINE_string("store", "", "A token store.")
_TOKENIZER = flags.DEFINE_string("tokenizer", "", "Its tokenizer's folder.")
_SIZE = flags.DEFINE_enum("size", "tiny", list(SIZES), "Of the encoder.")
_ROWS = flags.DEFINE_integer("rows", 16, "Rows of a batch.")
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens in a row, and in a passage at most.")
_BATCHES = flags.DEFINE_integer("batches", 500, "Batches of the pipeline in a round.")
_STEPS = flags.DEFINE_integer("steps", 5, "Steps in a round.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds; the median counts.")


def pipeline_speed(pipeline: Pipeline, first: int) -> float:
    """Tokens that are not padding per second."""
    batches = pipeline.batches(first)
    next(batches)  # starts the threads
    started, tokens = time.perf_counter(), 0
    for _ in range(_BATCHES.value):
        tokens += int((next(batches)["text"]["segment_ids"] > 0).sum())
    seconds = time.perf_counter() - started
    batches.close()
    return tokens / seconds


def main(_: list[str]) -> None:
    """Prints both speeds and their ratio."""
    with tempfile.TemporaryDirectory() as scratch:
        store, tokenizer = Path(_STORE.value), Path(_TOKENIZER.value)
        if not _STORE.value:
            store, tokenizer = corpora.squad_tokenized(Path(scratch), _LENGTH.value)
        opened = TokenStore.open(str(store))
        shape = Shape(_SIZE.value, None, _ROWS.value, _LENGTH.value)
        step = RetroMaeStep(opened, str(tokenizer), shape)
        step.run(0, 2)
        pipelines, steps = [], []
        for number in range(_ROUNDS.value):
            pipelines.append(pipeline_speed(step.pipeline, number * _BATCHES.value))
            timed = step.run(number * _STEPS.value, _STEPS.value)
            steps.append(timed.tokens / timed.seconds)
    ratio = statistics.median(a / b for a, b in zip(pipelines, steps, strict=True))
    print(f"batches of {_ROWS.value} x {_LENGTH.value}, tokens that are not padding per second:")
    for name, speeds in (("pipeline alone", pipelines), (f"{_SIZE.value} step", steps)):
        spread = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
        print(f"  {name:<16}{statistics.median(speeds):>12,.0f}  ({spread})")
    print(f"  the pipeline makes {ratio:.0f} times what the step takes")


if __name__ == "__main__":
    code_hash.announce("input_pipeline")
    app.run(main)
