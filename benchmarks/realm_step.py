"""Where the time of a REALM step goes, for corpora of several sizes.

    python -m benchmarks.realm_step --rows=10000,100000,1000000

A model of 2 layers of width 128 and random blocks; the index is as in training. Each part is timed
as a separate program, embedder and reader there and back, and has its share of the step's time:
the parts need not add up to it.
"""

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import code_hash
from models.corruption import evidence_layout, span_masks
from models.networks import bert, projected_encoder, text_embedding
from models.objectives import realm
from t5x_style.distributed import partitioning
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.objective import GroupShape
from t5x_style.retrieval import device_index
from t5x_style.retrieval.device_index import DeviceIndexConfig
from t5x_style.step import optimizers, static_tables, train_state, train_step

VOCABULARY = Vocabulary(
    size=8192, pad=0, unk=1, cls=2, sep=3, mask=4, special_ids=(0, 1, 2, 3, 4), fingerprint="random"
)


PARTS = ("search", "embedder", "reader", "refresh")


@dataclasses.dataclass(frozen=True)
class RandomBlocks:
    """Blocks of random tokens, the same each time."""

    rows: int
    length: int
    vocabulary_size: int = VOCABULARY.size
    fingerprint: str = "random"

    def tokens(self, start: int, end: int) -> np.ndarray:
        """See `device_index.Corpus`."""
        rng = np.random.default_rng(start)
        found = rng.integers(5, self.vocabulary_size, (end - start, self.length), np.int32)
        found[:, 0], found[:, [4, -1]] = VOCABULARY.cls, VOCABULARY.sep
        return found

    def column(self, name: str, start: int, end: int) -> np.ndarray:
        """See `device_index.Corpus`."""
        return np.full(end - start, self.length, np.int32)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="10000,100000,1000000")
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--length", type=int, default=128, help="tokens of a block")
    parser.add_argument("--staleness", type=int, default=1000, help="steps")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"| rows | step, ms | {' | '.join(PARTS)} | rows refreshed a step |")
    print("|---" * (3 + len(PARTS)) + "|")
    for rows in map(int, arguments.rows.split(",")):
        print(line(rows, arguments), flush=True)


def line(rows: int, arguments: argparse.Namespace) -> str:
    """One line of the table."""
    make = objective(RandomBlocks(rows, arguments.length), arguments.queries, arguments.staleness)
    partitioner = partitioning.Partitioner()
    optimizer = optimizers.AdamW(1e-4, 10, 1000)
    definition, state, shardings = train_state.create(make, optimizer, partitioner, 0)
    module = definition.module(state.params, state.variables)
    variables = static_tables.fill(state.variables, module.table_sources(), shardings.variables)
    variables["index"]["row_steps"][...] = jnp.zeros_like(variables["index"]["row_steps"][...])
    state = dataclasses.replace(state, variables=variables)
    batch = {"query": queries(arguments.queries, rows, arguments.length)}

    def retrieved(state: Any) -> Any:
        module: Any = definition.module(state.params, state.variables)
        return module.retrieve(module.corrupt(batch, state.key), state.key)

    def of_scores(field: str) -> Callable[[Any, Any], Any]:
        def total(params: Any, found: Any) -> jax.Array:
            module: Any = definition.module(params, state.variables)
            return jnp.sum(getattr(module.score(found, state.key), field))

        return jax.grad(total)  # of one field: the rest is no part of the program

    def refresh(state: Any) -> Any:
        return train_step.after_update(
            definition, state.params, state.variables, state.step, state.key
        )

    step = functools.partial(train_step.train_step, definition, partitioner.mesh)
    found = jax.jit(retrieved)(state)
    programs: tuple[tuple[Callable[..., Any], Any], ...] = (
        (lambda state: retrieved(state)["candidate"]["tokens"], (state,)),
        (of_scores("relevance"), (state.params, found)),
        (of_scores("gold"), (state.params, found)),
        (refresh, (state,)),
    )
    alone = [median(jax.jit(one), given, arguments.rounds) for one, given in programs]
    whole = training(jax.jit(step, donate_argnums=0), state, batch, arguments.rounds)
    refreshed = definition.module(state.params, state.variables).index.rows_per_step()
    shares = " | ".join(f"{taken:.0f} ms, {taken / whole:.0%}" for taken in alone)
    return f"| {rows:,} | {whole:.0f} | {shares} | {refreshed} |"


def objective(
    corpus: device_index.Corpus, rows: int, staleness: int, on_host: bool = False
) -> Callable[..., realm.REALM]:
    """A factory, as the trainer wants one; `on_host`: batches bring what is retrieved."""
    config = bert.BertConfig(
        vocab_size=VOCABULARY.size, hidden=128, layers=2, heads=2, mlp=512, max_positions=256,
        dropout=0.0, attention_dropout=0.0, unroll=2,
    )  # fmt: skip
    vectors = text_embedding.EmbeddingConfig(
        pooling="cls", normalise=False, similarity="dot", temperature=1.0, query_length=48,
        passage_length=corpus.length, query_prefix="", passage_prefix="",
        passage_layout="title_and_body",
    )  # fmt: skip
    return functools.partial(
        realm.REALM,
        config=config,
        reader_config=config,
        projection=projected_encoder.ProjectionConfig(128),
        embedding_config=vectors,
        vocabulary=VOCABULARY,
        query=GroupShape(rows, 48, 1),
        spans=1,
        masking=span_masks.SalientSpan(10),
        evaluation_masking=span_masks.SalientSpan(10),
        corpus=None if on_host else corpus,
        index_config=DeviceIndexConfig(128, staleness, "float32"),
        chunk=2048,
        evidence_length=corpus.length if on_host else None,
    )


def queries(count: int, rows: int, length: int) -> dict[str, jax.Array]:
    """A clean batch of random sentences of 32 tokens."""
    tokens = jnp.asarray(RandomBlocks(count, 48).tokens(0, count)).at[:, 4].set(9)
    group = evidence_layout.row_group(tokens, jnp.full(count, 32), jnp.arange(count))
    one = jnp.ones((count, 1), jnp.int32)
    return {**group, "source_row": jnp.arange(count)[:, None] % rows,
            "span_start": 6 * one, "span_end": 8 * one}  # fmt: skip


def median(run: Callable[..., Any], given: tuple[Any, ...], rounds: int) -> float:
    """Milliseconds of a call, compiled before."""
    jax.block_until_ready(run(*given))
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        jax.block_until_ready(run(*given))
        taken.append(time.perf_counter() - started)
    return 1e3 * statistics.median(taken)


def training(step: Callable[..., Any], state: Any, batch: Any, rounds: int) -> float:
    """Milliseconds of a step, the old state being donated."""
    state = jax.tree.map(jnp.copy, state)
    state, _ = step(state, batch)
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
        taken.append(time.perf_counter() - started)
    return 1e3 * statistics.median(taken)


if __name__ == "__main__":
    code_hash.announce("realm_step")
    main()
