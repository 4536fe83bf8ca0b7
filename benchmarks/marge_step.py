"""MARGE's training step compared with the same network in PyTorch, on the same chunks.

    python -m benchmarks.marge_step [--size=mini] [--rows=8] [--chunk=128] [--rounds=5]

A row is a sub-batch: --targets written from all tokens of --evidence, chunks of random words that
have between half of --chunk tokens and all. Ours is the trainer's program of objectives/marge.gin,
a sub-batch's chunks packed into one row of each group. The peer, benchmarks/torch_marge.py, has a
row for every chunk, which spares it attention between chunks, and PyTorch's
scaled_dot_product_attention and AdamW. Both start from the same weights, without dropout, in
float32, and see the same chunks in the same steps; their losses and the norms of their gradients
have to agree on the first batch before anything is timed.

Prints tokens per second, of targets and evidence together, that are not padding, and peak memory.
Each runs in a separate process, and they take turns. The first step of a turn and compilation are
not counted, nor is making the batches. Needs the extra `interop`.

The package marge-pytorch (0.2.9) is no peer: its step runs on a CPU, but its network cannot be made
this one (pre-LN, gated feed-forward layers, two to a layer that reads evidence, no shared output
table, always 8 heads of the decoder over always 4 layers that read none, evidence for each target
by itself, no cosine), so that neither its loss nor its work could be held against ours.
"""

import dataclasses
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import code_hash, turns
from benchmarks.shapes import SIZES, Round

_SIZE = flags.DEFINE_enum("size", "mini", list(SIZES), "Of the encoder; Turc et al. 2019.")
_BASE = flags.DEFINE_integer("base", 4, "Layers of the decoder without cross-attention.")
_UPPER = flags.DEFINE_integer("upper", 4, "Layers of the decoder with it.")
_AFTER = flags.DEFINE_integer("after", 2, "Layers of the encoder after which g is read.")
_ROWS = flags.DEFINE_integer("rows", 8, "Sub-batches of a step.")
_TARGETS = flags.DEFINE_integer("targets", 2, "Of a sub-batch.")
_EVIDENCE = flags.DEFINE_integer("evidence", 4, "Chunks of a sub-batch that are read.")
_CHUNK = flags.DEFINE_integer("chunk", 128, "Tokens of a chunk at most.")
_VOCABULARY = flags.DEFINE_integer("vocabulary", 16_000, "Rows of the word table.")
_STEPS = flags.DEFINE_integer("steps", 2, "Steps in a round.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds; the median counts.")
_WORKER = flags.DEFINE_enum("worker", None, ["ours", "peer"], "Internal: one of two.")
_WEIGHTS = flags.DEFINE_string("weights", "", "Internal: file of the weights to start from.")

NAMES = {"ours": "kennel", "peer": "PyTorch"}
TOLERANCE = {"loss": 1e-5, "gradient_norm": 1e-4}  # relative
# Of the weights to start from. With those of a training (0.02, 1) the first loss is the same within
# a millionth without beta or with g of another layer, so that agreement would say nothing of them.
STDDEV, BETA = 0.1, 8.0
LANGUAGE = 5

Groups = dict[str, dict[str, np.ndarray]]


def batch(number: int) -> Groups:
    """A step's `target` and `evidence`, as the pipeline gives them."""
    from input_pipelines.batches import token_groups
    from input_pipelines.store.token_store import Passages

    rng = np.random.default_rng(number)
    made = {}
    for side, together in (("target", _TARGETS.value), ("evidence", _EVIDENCE.value)):
        slots = np.arange(_ROWS.value * together).reshape(-1, together)
        lengths = rng.integers(_CHUNK.value // 2, _CHUNK.value + 1, slots.size)
        tokens = rng.integers(10, _VOCABULARY.value, lengths.sum()).astype(np.int32)
        passages = Passages(tokens, np.ones(len(tokens), bool), lengths)
        made[side] = dict(token_groups.build_group(passages, slots, together * _CHUNK.value))
        made[side]["sub_batch"] = np.zeros(slots.shape, np.int32)
    made["target"]["language"] = np.full_like(made["target"]["sub_batch"], LANGUAGE)
    return made


def timed(step: Callable[[Any], Any], first: int, count: int, placed: Callable[..., Any]) -> Round:
    """What `step` takes for so many batches; its loss is read at the end, which waits for all.

    Args:
        step: what `placed` gave -> loss.
        first, count: which batches.
        placed: a batch -> the same, where the step wants it.
    """
    real = [batch(number) for number in range(first, first + count)]
    given = [placed(one) for one in real]
    started = time.perf_counter()
    for one in given:
        loss = step(one)
    value = float(loss)
    seconds = time.perf_counter() - started
    if not np.isfinite(value):
        raise SystemExit(f"the loss is {value}: what was timed is no training")
    ids = [group["segment_ids"] for one in real for group in one.values()]
    return Round(seconds, sum(int((x > 0).sum()) for x in ids), sum(x.size for x in ids))


def objective(vocabulary: Any) -> Callable[..., Any]:
    """A factory of our objective, as the trainer wants one."""
    from benchmarks.retromae_step import encoder_config
    from models.networks import decoding, seq2seq, text_embedding
    from models.objectives import marge
    from t5x_style.interfaces.objective import GroupShape

    chunk = _CHUNK.value
    config = encoder_config(_SIZE.value, vocabulary.size, chunk)
    config = dataclasses.replace(config, dtype="float32", initializer_range=STDDEV)
    pooled = text_embedding.EmbeddingConfig(
        "cls", False, "cosine", 1.0, chunk, chunk, "", "", "text"
    )
    target, evidence = (
        GroupShape(_ROWS.value, together * chunk, together)
        for together in (_TARGETS.value, _EVIDENCE.value)
    )
    decoder = seq2seq.DecoderConfig(_UPPER.value, config.mlp, _BASE.value, config.mlp, chunk)

    def make(*, rngs: Any) -> marge.Marge:
        return marge.Marge(
            config, decoder, marge.RelevanceConfig(_AFTER.value, BETA), pooled, vocabulary, target,
            evidence, 1024, decoding.GenerationConfig(chunk), rngs=rngs,
        )  # fmt: skip

    return make


def ours() -> turns.Contestant:
    """The trainer's own program; writes its first weights to --weights if they are not there."""
    import jax
    from flax import nnx

    from t5x_style.distributed import partitioning, startup
    from t5x_style.interfaces import contract
    from t5x_style.step import compiled_step, optimizers, train_state

    startup.schedule_for_memory()  # as every command that trains does
    words = contract.Vocabulary(_VOCABULARY.value, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), "random words")
    partitioner = partitioning.Partitioner()
    optimizer = optimizers.AdamW(learning_rate=1e-4, warmup_steps=10, total_steps=10_000)
    made = train_state.create(objective(words), optimizer, partitioner, 0)
    definition, state, shardings = made
    weights = {
        optimizers.path_string(path): np.asarray(leaf[...])
        for path, leaf in nnx.to_flat_state(state.params)
    }
    if not Path(_WEIGHTS.value).exists():
        np.savez(_WEIGHTS.value, **weights)
    program = compiled_step.jit(definition, partitioner, shardings)

    def placed(one: Groups) -> Any:
        return jax.block_until_ready(jax.device_put(one, partitioner.batch_sharding))

    def step(one: Any) -> dict[str, Any]:
        nonlocal state
        state, metrics = program(state, one)
        return metrics

    def run(first: int, count: int) -> Round:
        return timed(lambda one: step(one)["loss"].value(), first, count, placed)

    metrics = step(placed(batch(0)))
    facts = {name: float(metrics[name].value()) for name in TOLERANCE}
    return turns.Contestant(run, facts | {"parameters": sum(x.size for x in weights.values())})


def peer() -> turns.Contestant:
    """The same chunks, a row for each."""
    import torch

    from benchmarks import torch_marge

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers, width, heads = SIZES[_SIZE.value]
    with np.load(_WEIGHTS.value) as weights:
        positions = len(weights["encoder/embeddings/position/embedding"])
        model = torch_marge.Marge(
            torch_marge.Sizes(
                _VOCABULARY.value, width, heads, positions, _CHUNK.value, layers, _AFTER.value,
                _BASE.value, _UPPER.value,
            )
        )  # fmt: skip
        torch_marge.load(model, weights)
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def placed(groups: Groups) -> tuple[torch_marge.Chunks, torch_marge.Chunks]:
        target, evidence = (torch_marge.chunks(groups[side], device) for side in groups)
        return target, evidence

    def step(both: tuple[torch_marge.Chunks, torch_marge.Chunks]) -> tuple[Any, Any]:
        optimizer.zero_grad(set_to_none=True)
        loss = model(*both, LANGUAGE)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), norm

    def run(first: int, count: int) -> Round:
        return timed(lambda one: step(one)[0], first, count, placed)

    loss, norm = step(placed(batch(0)))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = {"loss": loss.item(), "gradient_norm": norm.item(), "parameters": parameters}
    return turns.Contestant(run, facts)


def table(workers: dict[str, turns.Worker]) -> None:
    """Time, speed, ratio and memory of each."""
    ours = workers["ours"]
    facts = ours.facts
    print(
        f"first batch, both: loss {facts['loss']:.5f}, norm of the gradient "
        f"{facts['gradient_norm']:.6f}; padding {1 - ours.tokens / ours.places:.1%}\n"
        f"{'':<10}{'parameters':>12}{'ms a step':>11}{'tokens/s':>10}{'(low to high)':>18}"
        f"{'ours / it':>11}{'(low to high)':>16}{'peak MiB':>10}"
    )
    for name, worker in workers.items():
        # Rounds are paired: what slows one slows its neighbour.
        both = zip(ours.speeds, worker.speeds, strict=True)
        ratios = [a / b for a, b in both]
        step = statistics.median(one.seconds for one in worker.rounds) / _STEPS.value
        spread = f"{min(worker.speeds):,.0f} to {max(worker.speeds):,.0f}"
        around = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(
            f"{NAMES[name]:<10}{worker.facts['parameters']:>12,.0f}{1000 * step:>11,.0f}"
            f"{statistics.median(worker.speeds):>10,.0f}{spread:>18}"
            f"{statistics.median(ratios):>11.2f}{around:>16}{worker.peak / 2**20:>10,.0f}"
        )


def main(_: list[str]) -> None:
    """Starts both, compares their losses, lets them take turns, prints the table."""
    if importlib.util.find_spec("torch") is None:
        raise SystemExit("the peer needs PyTorch, which is not installed: make interop")
    if _WORKER.value == "ours":
        turns.serve(ours(), "jax")
    elif _WORKER.value == "peer":
        turns.serve(peer(), "torch")
    if _WORKER.value:
        return
    print(
        f"{_SIZE.value}: {SIZES[_SIZE.value]} layers, width, heads of the encoder, g behind "
        f"{_AFTER.value}; decoder {_BASE.value} + {_UPPER.value} layers; vocabulary "
        f"{_VOCABULARY.value:,}; {_ROWS.value} sub-batches of {_TARGETS.value} targets and "
        f"{_EVIDENCE.value}\nchunks of evidence, {_CHUNK.value} tokens at most; float32; "
        f"{len(os.sched_getaffinity(0))} cores and as many threads",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch:

        def worker(name: str) -> turns.Worker:
            given = [f"--worker={name}", f"--weights={scratch}/weights.npz"]
            return turns.Worker("benchmarks.marge_step", given, f"{scratch}/compiled")

        worker("ours").close()  # the compiler's memory is no step's
        workers = {name: worker(name) for name in NAMES}
        turns.require_agreement(workers, TOLERANCE)
        turns.race(workers, _ROUNDS.value, _STEPS.value)
        table(workers)
        for one in workers.values():
            one.close()


if __name__ == "__main__":
    code_hash.announce("marge_step")
    app.run(main)
