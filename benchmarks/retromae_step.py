"""Our RetroMAE step over a token store, timed: what several benchmarks hold others against."""

import dataclasses
import time

import jax

from benchmarks.shapes import SIZES, Round, Shape
from input_pipelines.batches.packed_text import Pipeline
from input_pipelines.store.token_store import TokenStore
from models.networks import bert, text_embedding
from models.objectives import retromae
from t5x_style.distributed import partitioning, startup
from t5x_style.interfaces import contract, objective
from t5x_style.preflight import flops
from t5x_style.step import compiled_step, optimizers, train_state

SEGMENTS = 8
CHUNK = 256  # positions whose logits exist at a time


def encoder_config(size: str, vocabulary: int, length: int) -> bert.BertConfig:
    """An encoder without dropout; on CPU float32 and its layers unrolled, else bfloat16.

    Args:
        size: a key of SIZES.
        vocabulary: rows of the word table.
        length: of the longest row, in tokens.
    """
    layers, width, heads = SIZES[size]
    on_cpu = jax.devices()[0].platform == "cpu"
    return bert.BertConfig(
        vocab_size=vocabulary, hidden=width, layers=layers, heads=heads, mlp=4 * width,
        max_positions=max(512, length), dropout=0.0, attention_dropout=0.0,
        dtype="float32" if on_cpu else "bfloat16", unroll=layers if on_cpu else 1,
    )  # fmt: skip


class RetroMaeStep:
    """The program that the trainer runs, fed by the pipeline.

    Attributes:
        dtype: name of the model's: float32 on CPU, else bfloat16.
        pipeline: where its batches come from.
    """

    def __init__(self, store: TokenStore, tokenizer: str, shape: Shape):
        startup.schedule_for_memory()  # as every command that trains or encodes does
        vocabulary = contract.Vocabulary.load(tokenizer)
        if shape.vocabulary is not None:
            vocabulary = dataclasses.replace(vocabulary, size=shape.vocabulary)
        config = encoder_config(shape.size, vocabulary.size, shape.length)
        rows, length = shape.rows, shape.length
        pooled = text_embedding.EmbeddingConfig("cls", False, "dot", 1.0, length, length, "", "")

        def make(*, rngs):
            group = objective.GroupShape(rows, length, SEGMENTS)
            return retromae.RetroMAE(config, pooled, vocabulary, group, 0.3, 0.5, CHUNK, rngs=rngs)

        self.dtype = config.dtype
        self.pipeline = Pipeline(
            [store], weights=None, temperature=1.0, seed=0, rows=rows, length=length,
            segments=SEGMENTS, block=4096,
        )  # fmt: skip
        self._partitioner = partitioning.Partitioner()
        optimizer = optimizers.AdamW(learning_rate=1e-4, warmup_steps=10, total_steps=10_000)
        definition, self._state, shardings = train_state.create(
            make, optimizer, self._partitioner, 0
        )
        self._step = compiled_step.jit(definition, self._partitioner, shardings)

    def flops(self) -> float:
        """FLOPs of a step's matrix products divided by the tokens of its batch, with padding."""
        batch = self.pipeline.batch(0)
        traced = self._step.trace(self._state, batch)
        return flops.count(traced.jaxpr).flops / batch["text"]["segment_ids"].size

    def run(self, first: int, count: int) -> Round:
        """Steps first, first + 1, ...; making the batches is not counted."""
        batches = [self.pipeline.batch(step) for step in range(first, first + count)]
        started = time.perf_counter()
        for batch in batches:
            placed = jax.device_put(batch, self._partitioner.batch_sharding)
            self._state, metrics = self._step(self._state, placed)
        jax.block_until_ready((self._state, metrics))
        seconds = time.perf_counter() - started
        if float(metrics["healthy"].value()) != 1.0:
            raise SystemExit("the loss or a gradient is not finite: what was timed is no training")
        segments = [batch["text"]["segment_ids"] for batch in batches]
        return Round(
            seconds, sum(int((s > 0).sum()) for s in segments), sum(s.size for s in segments)
        )
