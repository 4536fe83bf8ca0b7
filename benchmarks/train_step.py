"""A RetroMAE training step compared with its peer in PyTorch, on the same passages.

    python -m benchmarks.train_step --size=mini [--length=128] [--rows=16] [--rounds=5]

Prints tokens that are not padding per second and peak memory of three: ours (packed rows, masks
drawn on the device, inside the step), the peer over length-sorted batches padded to their longest
passage, and the peer padded to the full length. float32 on CPU, bfloat16 on an accelerator. Next to
them the matrix products of each, a token that is not padding, and how fast they ran.

Each runs in a separate process, with memory in huge pages, and they take turns, so that other
load on the machine meets all alike. The first step of a turn, compilation, tokenizing and the
peer's masks, which it is given for nothing, are not counted. Needs the extra `interop`.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks import code_hash, corpora, turns
from benchmarks.shapes import SIZES, Round, Shape
from input_pipelines.store.token_store import TokenStore
from input_pipelines.tokenizers.tokenization import Tokenizer

_SIZE = flags.DEFINE_enum("size", "mini", list(SIZES), "Of the encoder; Turc et al. 2019.")
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens at which passages are cut, and of a row.")
_ROWS = flags.DEFINE_integer("rows", 16, "Rows of `length` tokens in a batch.")
_VOCABULARY = flags.DEFINE_integer("vocabulary", 30522, "Rows of the word table.")
_STEPS = flags.DEFINE_integer("steps", 4, "Steps in a round.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds; the median counts.")
_STORE = flags.DEFINE_string("store", "", "A token store; by default of SQuAD's paragraphs.")
_TOKENIZER = flags.DEFINE_string("tokenizer", "", "The tokenizer's folder, with --store.")
_WORKER = flags.DEFINE_enum("worker", None, ["ours", "sorted", "padded"], "Internal: one of three.")

PRODUCT = 2048  # rows and columns of the matrices whose product shows what the machine can do
NAMES = {
    "ours": "kennel, packed",
    "sorted": "PyTorch, sorted by length",
    "padded": "PyTorch, padded to full length",
}


def product_rate(multiply: Callable[[], object]) -> float:
    """FLOP/s of a product of two PRODUCT x PRODUCT matrices, the best of ten; it waits itself."""

    def seconds() -> float:
        started = time.perf_counter()
        multiply()
        return time.perf_counter() - started

    return 2 * PRODUCT**3 / min(seconds() for _ in range(10))


def ours(store: TokenStore) -> turns.Contestant:
    """The trainer's own program."""
    import jax

    from benchmarks.retromae_step import RetroMaeStep

    shape = Shape(_SIZE.value, _VOCABULARY.value, _ROWS.value, _LENGTH.value)
    step = RetroMaeStep(store, _TOKENIZER.value, shape)
    matrix = jax.numpy.ones((PRODUCT, PRODUCT), step.dtype)
    product = jax.jit(jax.numpy.matmul)
    rate = product_rate(lambda: product(matrix, matrix).block_until_ready())
    return contestant(step.run, step.flops(), rate)


def peer(store: TokenStore, sort: bool) -> turns.Contestant:
    """The same passages, one a row; as many rows as bring about the tokens of our batch."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from benchmarks import torch_retromae

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = torch_retromae.hugging_face_config(_SIZE.value, _VOCABULARY.value, _LENGTH.value)
    model = torch_retromae.RetroMAE(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    generator = torch.Generator().manual_seed(0)
    lengths = np.minimum(store.lengths, _LENGTH.value)
    rows = max(1, round(_ROWS.value * _LENGTH.value / lengths.mean()))
    order = np.random.default_rng(0).permutation(len(store))
    if sort:  # batches of like lengths, in random order
        order = np.sort(order[: len(order) // rows * rows])
        order = order[np.argsort(lengths[order], kind="stable")].reshape(-1, rows)
        order = np.random.default_rng(1).permutation(order).reshape(-1)

    def batch(number: int) -> dict:
        chosen = order[number * rows : (number + 1) * rows]
        width = None if sort else _LENGTH.value
        tokens, sizes = torch_retromae.padded(store, chosen, _LENGTH.value, width)
        made = torch_retromae.masked_batch(
            torch.from_numpy(tokens), torch.from_numpy(sizes),
            Tokenizer(_TOKENIZER.value).vocabulary["mask"], generator,
        )  # fmt: skip
        return {name: tensor.to(device) for name, tensor in made.items()}

    def step(one: dict) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda"):
            loss = model(one)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    def run(first: int, count: int) -> Round:
        batches = [batch(number) for number in range(first, first + count)]
        started = time.perf_counter()
        for one in batches:
            loss = step(one)
        value = loss.item()  # waits for the device
        seconds = time.perf_counter() - started
        assert np.isfinite(value)
        real = sum(int(one["attention_mask"].sum()) for one in batches)
        return Round(seconds, real, sum(one["tokens"].numel() for one in batches))

    counted = batch(0)
    with FlopCounterMode(display=False) as counter:
        step(counted)
    flops = counter.get_total_flops() / counted["tokens"].numel()
    matrix = torch.ones(PRODUCT, PRODUCT, device=device)
    matrix = matrix if device == "cpu" else matrix.bfloat16()

    def multiply() -> None:
        torch.mm(matrix, matrix)
        if device == "cuda":
            torch.cuda.synchronize()

    return contestant(run, flops, product_rate(multiply))


def contestant(
    run: Callable[[int, int], Round], flops: float, product_rate: float
) -> turns.Contestant:
    """With the FLOPs of a step's matrix products divided by the tokens of its batch, padding
    included; and FLOP/s of its library in the product of two large square matrices."""
    return turns.Contestant(run, {"flops": flops, "product_rate": product_rate})


def work() -> None:
    """A worker."""
    store = TokenStore.open(_STORE.value)
    if _WORKER.value == "ours":
        turns.serve(ours(store), "jax")
    else:
        turns.serve(peer(store, _WORKER.value == "sorted"), "torch")


def flops_per_token(worker: turns.Worker) -> float:
    """FLOPs of its products, of a token that is not padding."""
    return worker.facts["flops"] * worker.places / worker.tokens


def seconds(worker: turns.Worker) -> float:
    """Of all its rounds."""
    return sum(one.seconds for one in worker.rounds)


def table(workers: dict[str, turns.Worker]) -> None:
    """Speed, ratio and memory of each; its arithmetic; and what the machine allows."""
    speeds = {name: worker.speeds for name, worker in workers.items()}
    print(
        f"{'':<30}{'tokens/s':>10}{'(low to high)':>18}{'ours / it':>11}{'padding':>9}"
        f"{'peak MiB':>10}{'MFLOP/token':>13}{'GFLOP/s':>9}"
    )
    for name, worker in workers.items():
        # Rounds are paired: what slows one slows its neighbours.
        ratio = statistics.median(a / b for a, b in zip(speeds["ours"], speeds[name], strict=True))
        spread = f"{min(speeds[name]):,.0f} to {max(speeds[name]):,.0f}"
        print(
            f"{NAMES[name]:<30}{statistics.median(speeds[name]):>10,.0f}{spread:>18}{ratio:>11.2f}"
            f"{1 - worker.tokens / worker.places:>9.1%}{worker.peak / 2**20:>10,.0f}"
            f"{flops_per_token(worker) / 1e6:>13,.0f}"
            f"{flops_per_token(worker) * worker.tokens / seconds(worker) / 1e9:>9,.0f}"
        )
    ours = workers["ours"]
    products = {name: worker.facts["product_rate"] for name, worker in workers.items()}
    products_alone = max(products.values()) / flops_per_token(ours)  # tokens/s
    print(
        f"one product of {PRODUCT} x {PRODUCT} matrices: {products['ours'] / 1e9:,.0f} GFLOP/s "
        f"in JAX, {products['sorted'] / 1e9:,.0f} in PyTorch; a step of ours that did nothing "
        "but its products, at that rate, would be "
        f"{products_alone / statistics.median(speeds['sorted']):.2f} "
        "times as fast as the sorted peer"
    )


def main(_: list[str]) -> None:
    """Starts the three, lets them take turns, prints the table."""
    if _WORKER.value:
        work()
        return
    with tempfile.TemporaryDirectory() as scratch:
        store, tokenizer = Path(_STORE.value), Path(_TOKENIZER.value)
        if not _STORE.value:
            store, tokenizer = corpora.squad_tokenized(Path(scratch), _LENGTH.value)
        print(
            f"{_SIZE.value}: {SIZES[_SIZE.value]} layers, width, heads; vocabulary "
            f"{_VOCABULARY.value:,}; about {_ROWS.value} x {_LENGTH.value} tokens a batch; "
            f"{len(os.sched_getaffinity(0))} cores and as many threads",
            flush=True,
        )
        cache = f"{scratch}/compiled"
        given = [f"--store={store}", f"--tokenizer={tokenizer}"]

        def worker(name: str) -> turns.Worker:
            return turns.Worker("benchmarks.train_step", [*given, f"--worker={name}"], cache)

        worker("ours").close()  # the compiler's memory is no step's
        workers = {name: worker(name) for name in NAMES}
        turns.race(workers, _ROUNDS.value, _STEPS.value)
        table(workers)
        for one in workers.values():
            one.close()


if __name__ == "__main__":
    code_hash.announce("train_step")
    app.run(main)
