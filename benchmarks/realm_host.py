"""REALM with its index in the step, and with ScaNN on the host: steps, waiting, refreshing.

    python -m benchmarks.realm_host --rows=10000,30000

The model and the random blocks of benchmarks.realm_step. In the step, each step also embeds the
rows whose turn it is; on the host another process would, which is timed alone: all rows embedded,
the index built, measured and published. `waiting` is the share of the training's time in which it
had no batch. Host and device are one machine here, and share its cores. Reading blocks from a
store, and taking over a new version, are not timed.
"""

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import realm_step
from models import evidence
from t5x_style import host_retrieval, optim, partitioning, tables, train_state, train_step
from t5x_style.optim import path_string
from t5x_style.retrieval import index_versions, version_record
from t5x_style.retrieval.encoding import Embeddings
from t5x_style.retrieval.retriever import Batch, HostRetrieval, Spec
from t5x_style.retrieval.scann_index import ScannSettings

SETTINGS = ScannSettings(brute_force_below=20_000, leaves=0, searched_share=0.3, reorder=200)


class Blocks(realm_step.RandomBlocks):
    """Random blocks by number, as the host wants them."""

    @property
    def ids(self) -> list[str]:
        """See `retriever.Corpus`."""
        return [str(row) for row in range(self.rows)]

    def tokens_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `retriever.Corpus`."""
        return self.tokens(0, len(rows)), np.full(len(rows), self.length, np.int32)


class Sentences:
    """Batches of random sentences, the same each step."""

    fingerprint = "random"

    def __init__(self, count: int, rows: int) -> None:
        made = realm_step.queries(count, rows, 48)
        self._group = {name: np.asarray(array) for name, array in made.items()}

    def specs(self) -> Spec:
        """See `trainer.Pipeline`."""
        return {"query": {name: (a.shape, a.dtype) for name, a in self._group.items()}}

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """See `trainer.Pipeline`."""
        return {"query": self._group}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="10000,30000")
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--length", type=int, default=128, help="tokens of a block")
    parser.add_argument("--staleness", type=int, default=1000, help="steps, in the step")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    print("| rows | in the step, ms | on the host, ms | waiting | refresh: embed, s | build, s |")
    print("|---|---|---|---|---|---|")
    for rows in map(int, arguments.rows.split(",")):
        corpus = Blocks(rows, arguments.length)
        inside = in_step(corpus, arguments)
        with tempfile.TemporaryDirectory() as folder:
            outside, waiting, embed, build = on_host(corpus, Path(folder), arguments)
        cells = (f"{rows:,}", f"{inside:.0f}", f"{outside:.0f}", f"{waiting:.1%}")
        print("|", " | ".join((*cells, f"{embed:.1f}", f"{build:.1f}")), "|", flush=True)


def created(make: Callable[..., Any]) -> Any:
    """Definition, state and jitted step of an objective, and the shardings of its state."""
    partitioner = partitioning.Partitioner()
    optimizer = optim.AdamW(1e-4, 10, 1000)
    definition, state, shardings = train_state.create(make, optimizer, partitioner, 0)
    step = functools.partial(train_step.train_step, definition, partitioner.mesh)
    return definition, state, jax.jit(step, donate_argnums=0), shardings


def in_step(corpus: Blocks, arguments: argparse.Namespace) -> float:
    """Milliseconds of a step."""
    make = realm_step.objective(corpus, arguments.queries, arguments.staleness)
    definition, state, step, shardings = created(make)
    module = definition.module(state.params, state.variables)
    variables = tables.fill(state.variables, module.table_sources(), shardings.variables)
    variables["index"]["row_steps"][...] = jnp.zeros_like(variables["index"]["row_steps"][...])
    state = state.replace(variables=variables)
    clean = Sentences(arguments.queries, corpus.rows).batch(0)
    taken, _ = timed(step, state, iter(lambda: clean, None), arguments.steps)
    return taken


def on_host(
    corpus: Blocks, folder: Path, arguments: argparse.Namespace
) -> tuple[float, float, float, float]:
    """Milliseconds of a step, share of waiting, seconds of embedding and of building."""
    make = realm_step.objective(corpus, arguments.queries, arguments.staleness, on_host=True)
    definition, state, step, _ = created(make)
    retrieval = HostRetrieval(str(folder / "versions"), corpus, 7, corpus.length)
    pipeline = Sentences(arguments.queries, corpus.rows)
    host = host_retrieval.OnHost(pipeline, retrieval, definition, state, folder)
    host.begin(state.key)
    seconds = refreshed(definition, state, corpus, folder)
    made = host.pipeline.batches(0, np.arange(arguments.queries))
    taken, waiting = timed(step, state, made, arguments.steps)
    made.close()
    return taken, waiting, *seconds


def refreshed(definition: Any, state: Any, corpus: Blocks, folder: Path) -> tuple[float, float]:
    """Embeds all rows, builds and publishes for the run in a folder: seconds of both."""
    module = definition.module(state.params, state.variables)
    embed = jax.jit(lambda group: module.functions()["embed_passage"].call(group)[:, 0])

    def vectors(start: int) -> np.ndarray:
        tokens = jnp.asarray(corpus.tokens(start, start + 64))
        group = evidence.row_group(tokens, jnp.full(64, corpus.length), jnp.zeros(64, jnp.int32))
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
    run = version_record.run_of(folder) or ""
    versions = folder / "versions"
    index_versions.write(versions, found, run, 0, parameters, SETTINGS, keep=1, minimum_recall=0.0)
    return embedded - started, time.perf_counter() - embedded


def timed(
    step: Callable[..., Any], state: Any, batches: Iterator[Batch], count: int
) -> tuple[float, float]:
    """Median milliseconds of a step, and which share of all of them no batch was there."""
    state, _ = step(state, next(batches))
    taken, waited = [], 0.0
    for _ in range(count):
        started = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - started
        state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
        taken.append(time.perf_counter() - started)
    return 1e3 * statistics.median(taken), waited / sum(taken)


if __name__ == "__main__":
    main()
