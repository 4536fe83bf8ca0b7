"""A bi-encoder's training step in chunks, compared with sentence-transformers' cached loss.

    python -m benchmarks.contrastive_step --size=mini [--pairs=128] [--mini_batch=32] [--rounds=4]

Questions of SQuAD with their paragraphs, every other paragraph of the batch a negative. Ours is the
trainer's program of objectives/bi_encoder.gin: packed rows, ENCODE_CHUNKS chunks. The peer is
CachedMultipleNegativesRankingLoss in mini-batches of as many pairs, with PyTorch's fused attention
and AdamW: over pairs in any order, as its trainer takes them, and sorted by the length of their
paragraphs, so that its mini-batches hold little padding. All start from the same weights,
without dropout, in float32, and see the same pairs in the same steps; their losses and the norms of
their gradients have to agree on the first batch before anything is timed.

Prints tokens that are not padding per second and peak memory. Each runs in a separate process,
and they take turns. The first step of a turn, compilation and tokenizing are not counted, nor is
making the batches. Needs the extra `interop`.
"""

import dataclasses
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import code_hash, contrastive_contestants, corpora, turns
from benchmarks.shapes import SIZES
from input_pipelines.batches import packing_plan, token_groups
from input_pipelines.pairs import pair_packing
from input_pipelines.pairs.retriever_batches import PairsPipeline
from input_pipelines.store.token_store import TokenStore

_SIZE = flags.DEFINE_enum("size", "mini", list(SIZES), "Of the encoder; Turc et al. 2019.")
_VOCABULARY = flags.DEFINE_integer("vocabulary", 30522, "Rows of the word table.")
_PAIRS = flags.DEFINE_integer("pairs", 128, "Of a batch.")
_MINI_BATCH = flags.DEFINE_integer("mini_batch", 32, "Pairs that are encoded at a time.")
_QUERY_LENGTH = flags.DEFINE_integer("query_length", 32, "Tokens at which questions are cut.")
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens at which paragraphs are cut, and of a row.")
_STEPS = flags.DEFINE_integer("steps", 1, "Steps in a round.")
_ROUNDS = flags.DEFINE_integer("rounds", 4, "Rounds; the median counts.")
_DATA = flags.DEFINE_string("data", "", "Folder that keeps the stores for another run.")
_WORKER = flags.DEFINE_enum("worker", None, ["ours", "sorted", "unsorted"], "Internal: which.")
_ENCODER = flags.DEFINE_string("encoder", "", "Internal: folder of the weights to start from.")

TEMPERATURE = 0.05
SEGMENTS = 16
NAMES = {
    "ours": "kennel, packed",
    "sorted": "sentence-transformers, sorted by length",
    "unsorted": "sentence-transformers, as they come",
}


def pipeline(query_rows: token_groups.Rows, passage_rows: token_groups.Rows) -> PairsPipeline:
    """The pairs; which are in which step does not depend on the rows."""
    data = _DATA.value
    return PairsPipeline(
        f"{data}/queries/store", f"{data}/passages/store", f"{data}/pairs.jsonl",
        batch=_PAIRS.value, group_size=1, query_length=_QUERY_LENGTH.value,
        passage_length=_LENGTH.value, query_rows=query_rows, passage_rows=passage_rows, seed=0,
    )  # fmt: skip


def unpacked() -> PairsPipeline:
    """A text a row."""
    lengths = (_QUERY_LENGTH.value, _LENGTH.value)
    return pipeline(*(token_groups.Rows(_PAIRS.value, length, 1) for length in lengths))


def texts(pairs: PairsPipeline, step: int) -> Iterator[tuple[TokenStore, np.ndarray, int]]:
    """Questions, then paragraphs of a step: (their store, rows in it [pairs], where to cut)."""
    picked, documents = pairs.plan.choose(step)
    yield pairs.query_store, pairs.pairs.queries[picked], pairs.query_length
    yield pairs.passage_store, documents[:, 0], pairs.passage_length


def fitting_rows(chunks: int) -> tuple[token_groups.Rows, token_groups.Rows]:
    """Rows of questions and of paragraphs that take all steps with the least padding.

    Both numbers divide by `chunks`, one by the other: what the model and the pipeline ask for.
    """
    pairs = unpacked()
    run = turns.WARMUP + _ROUNDS.value * _STEPS.value
    steps = range(max(run, pair_packing.PROBE))  # the pipeline checks so many
    sizes = [
        [np.minimum(store.lengths[rows], cut) for store, rows, cut in texts(pairs, step)]
        for step in steps
    ]

    def needed(side: int, length: int) -> int:
        return max(len(packing_plan.pack_rows(one[side], length, SEGMENTS)) for one in sizes)

    length, max_length = _LENGTH.value, 2 * _LENGTH.value
    lengths = range(_QUERY_LENGTH.value, max_length + 1, 8)
    query_needs = {query_length: needed(0, query_length) for query_length in lengths}
    min_passages = -(-needed(1, length) // chunks) * chunks
    fits = [
        (passages * length + queries * query_length, passages, queries, query_length)
        for passages in range(min_passages, 2 * min_passages, chunks)
        for queries in range(chunks, passages + 1, chunks)
        for query_length in lengths
        if passages % queries == 0 and queries >= query_needs[query_length]
    ]
    _, passages, queries, query_length = min(fits)
    return (
        token_groups.Rows(queries, query_length, SEGMENTS),
        token_groups.Rows(passages, length, SEGMENTS),
    )


def ours() -> turns.Contestant:
    """The program that the trainer runs; writes its first weights to --encoder unless it exists."""
    from benchmarks.retromae_step import encoder_config
    from models.losses import contrastive
    from models.networks import text_embedding
    from models.objectives import bi_encoder
    from t5x_style.distributed import startup
    from t5x_style.interfaces import contract, objective

    startup.schedule_for_memory()
    chunks = -(-_PAIRS.value // _MINI_BATCH.value)
    rows = fitting_rows(chunks)
    pairs = pipeline(*rows)
    vocabulary = contract.Vocabulary.load(f"{_DATA.value}/tokenizer/tokenizer")
    vocabulary = dataclasses.replace(vocabulary, size=_VOCABULARY.value)
    config = encoder_config(_SIZE.value, vocabulary.size, _LENGTH.value)
    config = dataclasses.replace(config, dtype="float32")
    vectors = text_embedding.EmbeddingConfig(
        "cls", True, "cosine", TEMPERATURE, _QUERY_LENGTH.value, _LENGTH.value, "", ""
    )

    def make(*, rngs: Any) -> bi_encoder.BiEncoder:
        query, passage = (objective.GroupShape(*dataclasses.astuple(one)) for one in rows)
        loss = contrastive.ContrastiveConfig()
        return bi_encoder.BiEncoder(
            config, vectors, vocabulary, query, passage, loss, chunks, rngs=rngs
        )

    def keep(module: Any) -> None:
        if not Path(_ENCODER.value).exists():
            export(module)

    return contrastive_contestants.kennel(make, pairs, 1e-4, at_start=keep)


def export(module: Any) -> None:
    """Writes the encoder for sentence-transformers, as runs/exports/huggingface.gin does."""
    from flax import nnx

    from models.interop import export_hf
    from t5x_style.step import optimizers

    class Weights:
        def arrays(self) -> dict[str, np.ndarray]:
            flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
            return {optimizers.path_string(path): np.asarray(value[...]) for path, value in flat}

    folder = Path(_ENCODER.value)
    folder.mkdir()
    module.contract().save(folder)
    export_hf.export(
        str(folder), str(folder), Weights(), module.config, module.vocabulary,
        f"{_DATA.value}/tokenizer/tokenizer",
    )  # fmt: skip


def peer(sort: bool) -> turns.Contestant:
    """sentence-transformers over the same pairs.

    Args:
        sort: the pairs of a batch by the length of their paragraphs; its loss is the same in any
            order.
    """
    from sentence_transformers.sentence_transformer import losses

    from benchmarks import torch_retromae

    model = contrastive_contestants.sentence_transformer(f"{_ENCODER.value}/encoder")
    cached = losses.CachedMultipleNegativesRankingLoss(
        model, scale=1 / TEMPERATURE, mini_batch_size=_MINI_BATCH.value
    )
    pairs = unpacked()

    def columns(number: int) -> list[tuple[np.ndarray, np.ndarray]]:
        sides = list(texts(pairs, number))
        passages, rows, cut = sides[1]
        lengths = np.minimum(passages.lengths[rows], cut)
        shuffled = np.random.default_rng(number).permutation(len(rows))  # the pipeline sorts them
        order = np.argsort(-lengths, kind="stable") if sort else shuffled
        return [torch_retromae.padded(store, rows[order], cut) for store, rows, cut in sides]

    return contrastive_contestants.sentence_transformers(
        model, cached, columns, 1e-4, _MINI_BATCH.value
    )


def table(workers: dict[str, turns.Worker]) -> None:
    """Speed, ratio and memory of each."""
    facts = workers["ours"].facts
    print(
        f"first batch, all three: loss {facts['loss']:.5f}, norm of the gradient "
        f"{facts['gradient_norm']:.6f}\n"
        f"{'':<40}{'tokens/s':>10}{'(low to high)':>18}{'ours / it':>11}{'padding':>9}"
        f"{'peak MiB':>10}"
    )
    for name, worker in workers.items():
        # Rounds are paired: what slows one slows its neighbours.
        both = zip(workers["ours"].speeds, worker.speeds, strict=True)
        ratio = statistics.median(a / b for a, b in both)
        spread = f"{min(worker.speeds):,.0f} to {max(worker.speeds):,.0f}"
        print(
            f"{NAMES[name]:<40}{statistics.median(worker.speeds):>10,.0f}{spread:>18}{ratio:>11.2f}"
            f"{1 - worker.tokens / worker.places:>9.1%}{worker.peak / 2**20:>10,.0f}"
        )


def work() -> None:
    """A worker."""
    if _WORKER.value == "ours":
        turns.serve(ours(), "jax")
    else:
        turns.serve(peer(_WORKER.value == "sorted"), "torch")


def main(_: list[str]) -> None:
    """Starts the three, compares their losses, lets them take turns, prints the table."""
    if _WORKER.value:
        work()
        return
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(_DATA.value or f"{scratch}/data").resolve()
        corpora.squad_pairs(data, _QUERY_LENGTH.value, _LENGTH.value)
        print(
            f"{_SIZE.value}: {SIZES[_SIZE.value]} layers, width, heads; vocabulary "
            f"{_VOCABULARY.value:,}; {_PAIRS.value} pairs a batch, {_MINI_BATCH.value} at a time; "
            f"{len(os.sched_getaffinity(0))} cores and as many threads",
            flush=True,
        )
        given = [f"--data={data}", f"--encoder={scratch}/encoder"]

        def worker(name: str) -> turns.Worker:
            arguments = [*given, f"--worker={name}"]
            return turns.Worker("benchmarks.contrastive_step", arguments, f"{scratch}/compiled")

        worker("ours").close()  # the compiler's memory is no step's
        workers = {name: worker(name) for name in NAMES}
        turns.require_agreement(workers, contrastive_contestants.TOLERANCE)
        turns.race(workers, _ROUNDS.value, _STEPS.value)
        table(workers)
        for one in workers.values():
            one.close()


if __name__ == "__main__":
    code_hash.announce("contrastive_step")
    app.run(main)
