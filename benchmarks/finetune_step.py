"""A fine-tuning step of a published encoder compared with sentence-transformers' on equal data.

    python -m benchmarks.finetune_step --run=runs/finetune --model=path/to/encoder [--chunks=1]

`--run` is a finished `kennel finetune --model=... --data=...`, of which the tokenized texts and the
mined negatives are read. Ours is the program that recipes/finetune.gin trains with: packed rows, a
virtual device for each core, `--chunks` of GradCache. The peer is MultipleNegativesRankingLoss over
query, positive and negatives, padded to the longest text of each column, as its trainer pads them,
with PyTorch's fused attention and AdamW. Both start from the folder's weights, in float32, and see
the same texts in the same steps. Without dropout, their losses and the norms of their gradients
have to agree on the first batch before anything is timed. `--dropout=0.1` is what each drops by
default: the recipe states alone, the peer attention weights, too.

Prints queries and tokens that are not padding per second, and peak memory. Each runs in a separate
process, and they take turns. The first step of a turn, compilation, tokenizing and making the
batches are not counted. Needs the extra `interop`.
"""

import dataclasses
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import code_hash, contrastive_contestants, turns
from benchmarks.finetune_triplets import Triplets
from launch import children

_RUN = flags.DEFINE_string("run", None, "Folder of a finished `kennel finetune`.", required=True)
_MODEL = flags.DEFINE_string("model", None, "The encoder that it started from.", required=True)
_QUERIES = flags.DEFINE_integer("queries", 32, "Queries in a batch.")
_GROUP = flags.DEFINE_integer("group_size", 2, "Passages of a query: one answers, the rest do not.")
_LENGTH = flags.DEFINE_integer("length", 256, "Tokens at which texts are cut, and of a row.")
_ROW_LENGTH = flags.DEFINE_integer("row_length", None, "Tokens of a row of passages of ours.")
_CHUNKS = flags.DEFINE_integer("chunks", 1, "Parts in which ours encodes a batch (GradCache).")
_DEVICES = flags.DEFINE_integer("devices", 4, "As which a CPU counts at most; see CPU_DEVICES.")
_STEPS = flags.DEFINE_integer("steps", 1, "Steps in a round.")
_ROUNDS = flags.DEFINE_integer("rounds", 4, "Rounds; the median counts.")
_UNROLL = flags.DEFINE_integer("unroll", 12, "Layers of ours in an iteration of their loop.")
_DROPOUT = flags.DEFINE_float("dropout", 0.0, "Rate of dropout.")
_WORKER = flags.DEFINE_enum("worker", None, ["ours", "peer"], "Internal: which.")

TEMPERATURE = 0.05
NAMES = {"ours": "kennel", "peer": "sentence-transformers"}


def triplets() -> Triplets:
    """What both train on."""
    return Triplets(_RUN.value, _QUERIES.value, _GROUP.value, _LENGTH.value, _ROW_LENGTH.value)


def ours() -> turns.Contestant:
    """The program that the trainer runs."""
    import jax

    from models.interop import hf_config, import_hf
    from models.losses import contrastive
    from models.networks import text_embedding
    from models.objectives import bi_encoder
    from t5x_style.distributed import startup
    from t5x_style.interfaces import contract, objective
    from t5x_style.training import warm_start

    startup.schedule_for_memory()
    texts = triplets()
    rows = texts.fitting_rows(len(jax.devices()) * _CHUNKS.value)
    pairs = texts.pipeline(*rows)
    vocabulary = contract.Vocabulary.load(f"{_RUN.value}/tokenizer/tokenizer")
    config = hf_config.config_from_hf(
        folder=_MODEL.value, vocab_size=vocabulary.size, dtype="float32", remat="none",
        dropout=_DROPOUT.value, attention_dropout=0.0, vocab_multiple=128, unroll=_UNROLL.value,
    )  # fmt: skip
    vectors = text_embedding.EmbeddingConfig(
        "mean", True, "cosine", TEMPERATURE, _LENGTH.value, _LENGTH.value, "", ""
    )

    def make(*, rngs: Any) -> bi_encoder.BiEncoder:
        query, passage = (objective.GroupShape(*dataclasses.astuple(one)) for one in rows)
        loss = contrastive.ContrastiveConfig()
        return bi_encoder.BiEncoder(
            config, vectors, vocabulary, query, passage, loss, _CHUNKS.value, rngs=rngs
        )

    source = import_hf.HuggingFace(_MODEL.value, vocabulary.size)
    take_over = warm_start.Initialise(source, {"": ""}, unused=["^pooler/", "^head/"])
    return contrastive_contestants.kennel(make, pairs, 3e-5, [take_over])


def peer() -> turns.Contestant:
    """sentence-transformers over the same texts, its columns padded as its trainer pads them."""
    import torch
    from sentence_transformers.sentence_transformer import losses

    from benchmarks import torch_retromae

    model = contrastive_contestants.sentence_transformer(_MODEL.value)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = _DROPOUT.value
    loss_of = losses.MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    texts = triplets()
    pairs = texts.unpacked()

    def columns(number: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [
            torch_retromae.padded(store, rows, _LENGTH.value)
            for store, rows in texts.chosen(pairs, number)
        ]

    return contrastive_contestants.sentence_transformers(
        model, loss_of, columns, 3e-5, _QUERIES.value
    )


def table(workers: dict[str, turns.Worker]) -> None:
    """First losses, and speed, ratio and memory of each."""
    for name, worker in workers.items():
        facts = worker.facts
        print(
            f"first batch, {NAMES[name]}: loss {facts['loss']:.6f}, norm of the gradient "
            f"{facts['gradient_norm']:.6f}"
        )
    print(f"{'':<24}{'queries/s':>10}{'tokens/s':>10}{'(low to high)':>18}{'ours / it':>11}"
          f"{'padding':>9}{'peak MiB':>10}")  # fmt: skip
    for name, worker in workers.items():
        # Rounds are paired: what slows one slows its neighbours.
        both = zip(workers["ours"].rounds, worker.rounds, strict=True)
        ratio = statistics.median(b.seconds / a.seconds for a, b in both)
        seconds = statistics.median(one.seconds for one in worker.rounds)
        spread = f"{min(worker.speeds):,.0f} to {max(worker.speeds):,.0f}"
        print(
            f"{NAMES[name]:<24}{_QUERIES.value * _STEPS.value / seconds:>10.2f}"
            f"{statistics.median(worker.speeds):>10,.0f}{spread:>18}{ratio:>11.2f}"
            f"{1 - worker.tokens / worker.places:>9.1%}{worker.peak / 2**20:>10,.0f}"
        )


def main(_: list[str]) -> None:
    """Starts both, compares their losses, lets them take turns, prints the table."""
    if _WORKER.value:
        turns.serve(*((ours(), "jax") if _WORKER.value == "ours" else (peer(), "torch")))
        return
    os.environ.update(children.virtual_devices(_DEVICES.value))
    print(
        f"{Path(_MODEL.value).name}: {_QUERIES.value} queries a batch with {_GROUP.value} passages "
        f"each, cut at {_LENGTH.value} tokens; ours in {_CHUNKS.value} chunks; "
        f"{len(os.sched_getaffinity(0))} cores and as many threads",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch:

        def worker(name: str) -> turns.Worker:
            return turns.Worker("benchmarks.finetune_step", [f"--worker={name}"], scratch)

        worker("ours").close()  # the compiler's memory is no step's
        workers = {name: worker(name) for name in NAMES}
        if not _DROPOUT.value:
            turns.require_agreement(workers, contrastive_contestants.TOLERANCE)
        turns.race(workers, _ROUNDS.value, _STEPS.value)
        table(workers)
        for one in workers.values():
            one.close()


if __name__ == "__main__":
    code_hash.announce("finetune_step")
    app.run(main)
