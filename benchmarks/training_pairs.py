"""How long a batch of training pairs takes to make, by kind, and where the time goes.

    python -m benchmarks.training_pairs [--store=FOLDER] [--pairs=512]

Without a store: the documentation of this installation, prepared by the stages of the main job.
Milliseconds a batch, median and slowest of `--batches`, without prefetching and on one thread: what
a training step hides as long as it takes longer. `cuts` is the part without packing into rows.
Batches parse no record; `read` says what parsing the same passages would cost.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks import code_hash, corpora
from input_pipelines.batches import token_groups
from input_pipelines.pairs import pair_rows
from input_pipelines.pairs.pair_kinds import (
    Neighbours,
    PairKind,
    RandomCrops,
    Sentences,
    TitleToBody,
)
from input_pipelines.pairs.pair_mixture import PairMixture
from input_pipelines.pairs.training_pairs import TrainingPairs
from input_pipelines.store.token_store import TokenStore

_STORE = flags.DEFINE_string(
    "store", "", "A token store that runs/stores/passages_in_parts.gin made."
)
_PAIRS = flags.DEFINE_integer("pairs", 512, "Pairs in a batch.")
_BATCHES = flags.DEFINE_integer("batches", 200, "Batches of each mixture.")

LENGTH, QUERY_LENGTH = 128, 32
KINDS: dict[str, PairKind] = {
    "crops": RandomCrops(4, 20, False, 0.9),
    "two_crops": RandomCrops(4, 20, True, 0.0),
    "sentences": Sentences(4, 0.9),
    "titles": TitleToBody(),
    "neighbours": Neighbours(),
}


def prepared(scratch: Path) -> str:
    """The documentation as a token store with tables."""
    corpus = corpora.documentation(scratch)
    corpora.run_stage(["runs/tokenizers/corpus.gin"], scratch / "t", CORPUS=str(corpus))
    corpora.run_stage(
        ["sources/beir_passages.gin", "runs/stores/passages_in_parts.gin"], scratch / "p",
        CORPUS=str(corpus), TOKENIZER=str(scratch / "t/tokenizer"), LENGTH=LENGTH,
    )  # fmt: skip
    return str(scratch / "p/store")


def milliseconds(work: Callable[[int], object]) -> list[float]:
    """Of each of the batches."""
    times = []
    for number in range(_BATCHES.value):
        started = time.perf_counter()
        work(number)
        times.append(1e3 * (time.perf_counter() - started))
    return times


def report(store: str, weights: dict[str, float]) -> None:
    """Prints a line about one mixture."""
    mixture = PairMixture(
        passages=store, kinds=KINDS, weights=weights, batch=_PAIRS.value, group_size=1,
        query_length=QUERY_LENGTH, passage_length=LENGTH, seed=0,
    )  # fmt: skip
    query, passage = (
        pair_rows.fitting_rows(mixture, side, LENGTH, 16, LENGTH, 8) for side in pair_rows.SIDES
    )
    pipeline = TrainingPairs(
        mixture, token_groups.Rows(query, LENGTH, 16), token_groups.Rows(passage, LENGTH, 8),
        pair_rows.known_positives(mixture),
    )  # fmt: skip
    times = milliseconds(pipeline.batch)
    cuts = statistics.median(milliseconds(pipeline.pairs.step))
    batches = [pipeline.batch(number) for number in range(20)]
    padding = [
        1 - np.mean([(batch[side]["segment_ids"] > 0).mean() for batch in batches])
        for side in pair_rows.SIDES
    ]
    name = next(iter(weights)) if len(weights) == 1 else "all"
    print(
        f"  {name:<12}{pipeline.pairs.batch:>6}{statistics.median(times):>9.1f}{max(times):>9.1f}"
        f"{cuts:>9.1f}{query:>8} x {LENGTH}{passage:>6} x {LENGTH}"
        f"{100 * padding[0]:>8.1f} %{100 * padding[1]:>6.1f} %"
    )


def main(_: list[str]) -> None:
    """Prints a table."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = _STORE.value or prepared(Path(scratch))
        store = TokenStore.open(folder)
        rows = np.random.default_rng(0)
        read = milliseconds(lambda _: store.read(rows.integers(0, len(store), _PAIRS.value)))
        print(f"{len(store):,} passages of {store.lengths.mean():.1f} tokens; ms a batch")
        print(f"  read {_PAIRS.value} passages from disk: {statistics.median(read):.1f}")
        print("  kind         pairs   median  slowest    cuts  query rows passage rows  padding")
        for name in KINDS:
            report(folder, {name: 1.0})
        report(folder, dict.fromkeys(KINDS, 1.0))


if __name__ == "__main__":
    code_hash.announce("training_pairs")
    app.run(main)
