"""What benchmarks of contrastive steps run: the trainer's program, and sentence-transformers' loss.

Both start from given weights and are asked for steps by their numbers. Neither JAX nor PyTorch is
imported before one of the two is made.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import turns
from benchmarks.shapes import Round

TOLERANCE = {"loss": 1e-4, "gradient_norm": 1e-3}  # relative, of the first batch


def kennel(
    make: Any,
    pairs: Any,
    learning_rate: float,
    take_over: Sequence[Any] = (),
    at_start: Callable[[Any], None] = lambda module: None,
) -> turns.Contestant:
    """The program that the trainer runs, in the process that calls this.

    JAX has read XLA's flags by then: call `startup.schedule_for_memory` first, as every command
    that trains does.

    Args:
        make: the objective, called with `rngs`.
        pairs: pipeline whose `batch(step)` is timed.
        learning_rate: at the peak.
        take_over: `warm_start.Initialise`, applied to the first weights.
        at_start: called with the module before the first step.

    Returns:
        a contestant whose facts are those of `TOLERANCE`, of batch 0. It ends the process with a
        message where a loss or gradient is not finite.
    """
    import jax

    from t5x_style.distributed import partitioning
    from t5x_style.step import compiled_step, optimizers, train_state
    from t5x_style.training import warm_start

    partitioner = partitioning.Partitioner()
    optimizer = optimizers.AdamW(learning_rate=learning_rate, warmup_steps=10, total_steps=10_000)
    definition, state, shardings = train_state.create(make, optimizer, partitioner, 0)
    if take_over:
        state = warm_start.apply(state, take_over, shardings)
    at_start(definition.module(state.params, state.variables))
    program = compiled_step.jit(definition, partitioner, shardings)

    def step(batch: Any) -> dict[str, Any]:
        nonlocal state
        state, metrics = program(state, jax.device_put(batch, partitioner.batch_sharding))
        return metrics

    def run(first: int, count: int) -> Round:
        batches = [pairs.batch(number) for number in range(first, first + count)]
        started = time.perf_counter()
        for batch in batches:
            metrics = step(batch)
        jax.block_until_ready((state, metrics))
        seconds = time.perf_counter() - started
        if float(metrics["healthy"].value()) != 1.0:
            raise SystemExit("the loss or a gradient is not finite: what was timed is no training")
        segments = [group["segment_ids"] for batch in batches for group in batch.values()]
        return Round(
            seconds, sum(int((s > 0).sum()) for s in segments), sum(s.size for s in segments)
        )

    first = step(pairs.batch(0))
    return turns.Contestant(run, {name: float(first[name].value()) for name in TOLERANCE})


def sentence_transformer(folder: str) -> Any:
    """The model of a folder, with PyTorch's fused attention, in float32, to train on all cores."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return SentenceTransformer(
        folder, device="cuda" if torch.cuda.is_available() else "cpu",
        model_kwargs={"attn_implementation": "sdpa", "dtype": torch.float32},
    ).train()  # fmt: skip


def columns_of(model: Any, texts: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[dict[str, Any]]:
    """What a loss of sentence-transformers takes, on the model's device.

    Args:
        model: of `sentence_transformer`.
        texts: tokens [B, width] int64 and sizes [B] of each column.
    """
    import torch

    made = []
    for tokens, sizes in texts:
        mask = (np.arange(tokens.shape[1]) < sizes[:, None]).astype(np.int64)
        arrays = {"input_ids": tokens, "attention_mask": mask}
        made.append({name: torch.from_numpy(a).to(model.device) for name, a in arrays.items()})
    return made


def sentence_transformers(
    model: Any,
    loss_of: Any,
    texts: Callable[[int], Sequence[tuple[np.ndarray, np.ndarray]]],
    learning_rate: float,
    mini_batch: int,
) -> turns.Contestant:
    """A loss of sentence-transformers and fused AdamW, in the process that calls this.

    Args:
        model: of `sentence_transformer`.
        loss_of: takes a list of columns, as its trainer gives them.
        texts: number of a step -> tokens [B, width] int64 and sizes [B] of each column.
        learning_rate: constant.
        mini_batch: texts of a column that it encodes at a time, cut to the longest of them.

    Returns:
        a contestant with the same facts as `kennel`'s.
    """
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, weight_decay=0.01, fused=True
    )

    def batch(number: int) -> list[dict[str, Any]]:
        return columns_of(model, texts(number))

    def step(one: list[dict[str, Any]]) -> tuple[Any, Any]:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of([dict(column) for column in one], None)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), norm

    def run(first: int, count: int) -> Round:
        batches = [batch(number) for number in range(first, first + count)]
        started = time.perf_counter()
        for one in batches:
            loss, _ = step(one)
        value = loss.item()  # waits for the device
        seconds = time.perf_counter() - started
        assert np.isfinite(value)
        sizes = [column["attention_mask"].sum(dim=1).cpu() for one in batches for column in one]
        parts = [part for column in sizes for part in column.split(mini_batch)]
        places = sum(len(part) * int(part.max()) for part in parts)
        return Round(seconds, sum(int(column.sum()) for column in sizes), places)

    loss, norm = step(batch(0))
    return turns.Contestant(run, {"loss": loss.item(), "gradient_norm": norm.item()})
