"""REALM with its index in the step, and with ScaNN on the host: steps, waiting, refreshing.

    python -m benchmarks.realm_host --rows=10000,30000

The model and the random blocks of benchmarks.realm_step, in a token store. In the step, each step
also embeds the rows whose turn it is; on the host another process would, which is timed alone: all
rows embedded, the index built, measured and published. Halfway through the steps on the host a new
version appears and is read in the background. `waiting` is the share of the time in which the
training had no batch, `longest` the longest of these moments. Host and device are one machine here,
and share its cores.
"""

import argparse
import contextlib
import functools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import code_hash, realm_step
from input_pipelines.batches.corpus_table import StoreCorpus
from input_pipelines.store import store_writer
from models.corruption import evidence_layout
from t5x_style.distributed import partitioning
from t5x_style.interfaces.batch_source import Batch, Specs
from t5x_style.interfaces.contract import TITLE_AND_BODY
from t5x_style.interfaces.objective import embedder
from t5x_style.model_dependent_data import version_log, versioned_index
from t5x_style.model_dependent_data.retrieval_batches import HostRetrieval
from t5x_style.retrieval import versioned_folder
from t5x_style.retrieval.encoding import Embeddings
from t5x_style.retrieval.scann_index import Scann
from t5x_style.step import optimizers, static_tables, train_state, train_step
from t5x_style.step.optimizers import path_string
from t5x_style.training.model_view import TrainingView

INDEX = Scann(brute_force_below=20_000, leaves=0, searched_share=0.3, reorder=200)


def write_store(folder: Path, rows: int, length: int) -> StoreCorpus:
    """A token store of random blocks."""
    tokens = realm_step.RandomBlocks(rows, length).tokens(0, rows)
    starts = np.ones(length, bool)
    ids = [str(row) for row in range(rows)]
    folder.mkdir()
    shard = store_writer.write_shard(
        str(folder / store_writer.shard_name("random", "all", 0, 1)),
        [
            store_writer.StoreRecord(name, "", "", "", row, starts)
            for name, row in zip(ids, tokens, strict=True)
        ],
    )
    summary = store_writer.StoreSummary(
        name="random",
        split="all",
        kind="passage",
        tokenizer_fingerprint=realm_step.VOCABULARY.fingerprint,
        vocabulary_size=realm_step.VOCABULARY.size,
        max_length=length,
        prefix="",
        layout=TITLE_AND_BODY,
        total_words=tokens.size,
        truncated=0,
        dropped={},
    )
    lengths, hashes = np.full(rows, length), np.arange(rows, dtype=np.uint64)
    store_writer.finish(str(folder), [shard], lengths, ids, summary, {"minhash": hashes})
    return StoreCorpus(str(folder))


class Sentences:
    """Batches of random sentences, the same each step."""

    fingerprint = "random"

    def __init__(self, count: int, rows: int) -> None:
        made = realm_step.queries(count, rows, 48)
        self._group = {name: np.asarray(array) for name, array in made.items()}

    def specs(self) -> Specs:
        """See `BatchSource`."""
        return {"query": {name: (a.shape, a.dtype) for name, a in self._group.items()}}

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """See `BatchSource`."""
        return {"query": self._group}

    def batches(self, start_step: int, rows: np.ndarray) -> Generator[Batch, None, None]:
        """See `BatchSource`."""
        while True:
            yield self.batch(start_step)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="10000,30000")
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--length", type=int, default=128, help="tokens of a block")
    parser.add_argument("--staleness", type=int, default=1000, help="steps, in the step")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    print(
        "| rows | in the step, ms | on the host, ms | waiting | longest, ms "
        "| refresh: embed, s | build, s |"
    )
    print("|---|---|---|---|---|---|---|")
    for rows in map(int, arguments.rows.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            corpus = write_store(Path(folder) / "store", rows, arguments.length)
            inside, _, _ = in_step(corpus, arguments)
            outside, waiting, slowest, embed, build = on_host(corpus, Path(folder), arguments)
        cells = (f"{rows:,}", f"{inside:.0f}", f"{outside:.0f}", f"{waiting:.1%}", f"{slowest:.0f}")
        print("|", " | ".join((*cells, f"{embed:.1f}", f"{build:.1f}")), "|", flush=True)


def created(make: Callable[..., Any], corrupted: bool = False) -> Any:
    """Definition, state and jitted step of an objective, and the shardings of its state."""
    partitioner = partitioning.Partitioner()
    optimizer = optimizers.AdamW(1e-4, 10, 1000)
    definition, state, shardings = train_state.create(
        make, optimizer, partitioner, 0, corrupted=corrupted
    )
    step = functools.partial(train_step.train_step, definition, partitioner.mesh)
    return definition, state, jax.jit(step, donate_argnums=0), shardings


def in_step(corpus: StoreCorpus, arguments: argparse.Namespace) -> tuple[float, float, float]:
    """See `timed`."""
    make = realm_step.objective(corpus, arguments.queries, arguments.staleness)
    definition, state, step, shardings = created(make)
    module = definition.module(state.params, state.variables)
    variables = static_tables.fill(state.variables, module.table_sources(), shardings.variables)
    variables["index"]["row_steps"][...] = jnp.zeros_like(variables["index"]["row_steps"][...])
    state = state.replace(variables=variables)
    clean = Sentences(arguments.queries, corpus.rows).batch(0)
    return timed(step, state, iter(lambda: clean, None), arguments.steps)


def on_host(
    corpus: StoreCorpus, folder: Path, arguments: argparse.Namespace
) -> tuple[float, float, float, float, float]:
    """What `timed` says, and seconds of embedding and of building."""
    make = realm_step.objective(corpus, arguments.queries, arguments.staleness, on_host=True)
    definition, state, step, _ = created(make, HostRetrieval.corrupts)
    clean = Sentences(arguments.queries, corpus.rows)
    source = HostRetrieval(clean, str(folder / "versions"), corpus, 7, corpus.length)
    view = TrainingView(
        definition=definition,
        state=lambda: state,
        partitioner=partitioning.Partitioner(),
        folder=folder,
        save_every=1,
        functions=dict,
        snapshot=lambda: None,  # the index is built here
        refreshing=contextlib.nullcontext,
        stop_asked=lambda: False,
    )
    made = source.bind(view).batches(0, np.arange(arguments.queries))
    seconds = refreshed(definition, state, corpus, folder)
    first = versioned_folder.version_folder(folder / "versions", 1)

    def publish_again() -> None:
        shutil.copytree(first, first.with_name("2.tmp"))
        first.with_name("2.tmp").rename(first.with_name("2"))

    found = timed(step, state, made, arguments.steps, publish_again)
    made.close()
    seen = (folder / version_log.RECORD).read_text(encoding="utf-8")
    assert json.loads(seen.splitlines()[-1])["version"] == 2, "no step saw the new version"
    return *found, *seconds


def refreshed(
    definition: Any, state: Any, corpus: StoreCorpus, folder: Path
) -> tuple[float, float]:
    """Embeds all rows, builds and publishes for the run in a folder: seconds of both."""
    module = definition.module(state.params, state.variables)
    embed = jax.jit(lambda group: embedder(module.functions(), "passage")(group)[:, 0])

    def vectors(start: int) -> np.ndarray:
        rows = np.minimum(np.arange(start, start + 64), corpus.rows - 1)
        tokens, lengths = map(jnp.asarray, corpus.tokens_of(rows))
        group = evidence_layout.row_group(tokens, lengths, jnp.zeros(64, jnp.int32))
        return np.asarray(embed(group))

    vectors(0)  # compiled
    started = time.perf_counter()
    table = np.concatenate([vectors(start) for start in range(0, corpus.rows, 64)])[: corpus.rows]
    embedded = time.perf_counter()
    parameters = {
        path_string(path): np.asarray(leaf[...])
        for path, leaf in nnx.to_flat_state(state.params)
        if path[0] == "embedder"
    }
    found = Embeddings(table, corpus.ids, module.contract())
    run = version_log.run_of(folder) or ""
    versions = folder / "versions"
    versioned_index.write(versions, found, run, 0, parameters, INDEX, keep=1, minimum_recall=0.0)
    return embedded - started, time.perf_counter() - embedded


def timed(
    step: Callable[..., Any],
    state: Any,
    batches: Iterator[Batch],
    count: int,
    halfway: Callable[[], None] = lambda: None,
) -> tuple[float, float, float]:
    """Median milliseconds of a step, share of all time without a batch, longest such, ms."""
    state, _ = step(state, next(batches))
    taken, waited = [], []
    for number in range(count):
        if number == count // 2:
            halfway()
        started = time.perf_counter()
        batch = next(batches)
        waited.append(time.perf_counter() - started)
        state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
        taken.append(time.perf_counter() - started)
    return 1e3 * statistics.median(taken), sum(waited) / sum(taken), 1e3 * max(waited)


if __name__ == "__main__":
    code_hash.announce("realm_host")
    main()
