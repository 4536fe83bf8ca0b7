"""LaBSE's training step with local, gathered and ring negatives: time and memory.

    python -m benchmarks.labse_step [--devices=8] [--pairs=256] [--size=tiny] [--rounds=3]
    TPU_SKIP_MDS_QUERY=1 JAX_PLATFORMS=cpu python -m benchmarks.labse_step \
        --topology=v5e:8x8 --size=base --vocabulary=501153 --length=32 --pairs=4096 --tensor=4

Times the trainer's program of objectives/labse.gin, a sentence a row, on virtual devices of this
CPU, which share its cores: what is compared is the work, not a network. The three take turns, and
their first step is not counted; after as many steps the losses of gathered and ring negatives are
to be equal. With --topology nothing runs: the program is compiled for a slice that need not be
there, and what the compiler allocates on one device is printed.
"""

import dataclasses
import os
import statistics
import time
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import code_hash
from benchmarks.shapes import SIZES

_SIZE = flags.DEFINE_enum("size", "tiny", list(SIZES), "Of the encoder; Turc et al. 2019.")
_VOCABULARY = flags.DEFINE_integer("vocabulary", 48_000, "Rows of the word table.")
_PAIRS = flags.DEFINE_integer("pairs", 256, "Translations of a global batch.")
_LENGTH = flags.DEFINE_integer("length", 48, "Tokens of a row.")
_DEVICES = flags.DEFINE_integer("devices", 8, "Virtual devices.")
_TENSOR = flags.DEFINE_integer("tensor", 1, "Devices that share a copy of the parameters.")
_STEPS = flags.DEFINE_integer("steps", 3, "Steps in a round.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds; the median counts.")
_TOPOLOGY = flags.DEFINE_string("topology", "", "A slice to compile for, see docs/tpu.md.")

EXCHANGES = ("local", "gather", "ring")


def batch(pairs: int, length: int, vocabulary: int) -> dict[str, dict[str, np.ndarray]]:
    """Sentences of random words, as the pipeline gives them, a sentence a row."""
    from input_pipelines.batches import token_groups
    from input_pipelines.store.token_store import Passages

    rng = np.random.default_rng(0)

    def side() -> dict[str, np.ndarray]:
        lengths = rng.integers(8, length + 1, pairs)
        tokens = rng.integers(5, vocabulary, lengths.sum()).astype(np.int32)
        passages = Passages(tokens, np.ones(len(tokens), bool), lengths)
        return dict(token_groups.build_group(passages, np.arange(pairs)[:, None], length))

    extra = {
        "relevance": np.ones((pairs, 1), np.int32),
        "document_id": np.arange(pairs, dtype=np.int32)[:, None],
    }
    return {"source": side(), "target": side() | extra}


class LabseStep:
    """The trainer's program with negatives one way."""

    def __init__(self, exchange: str, given: dict[str, dict[str, np.ndarray]], devices: Any):
        import jax
        from flax import nnx

        from benchmarks.retromae_step import encoder_config
        from models.losses import contrastive
        from models.networks import text_embedding
        from models.objectives import labse
        from t5x_style.distributed import partitioning
        from t5x_style.interfaces import contract, objective
        from t5x_style.step import compiled_step, optimizers, train_state

        config = encoder_config(_SIZE.value, _VOCABULARY.value, _LENGTH.value)
        if _TOPOLOGY.value:
            config = dataclasses.replace(config, dtype="bfloat16", unroll=1, remat="full")
        length = _LENGTH.value
        pooled = text_embedding.EmbeddingConfig(
            "pooler", True, "cosine", 0.01, length, length, "", ""
        )
        words = contract.Vocabulary(_VOCABULARY.value, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), "random")
        shape = objective.GroupShape(_PAIRS.value, length, 1)

        def make(*, rngs: nnx.Rngs) -> labse.LaBSE:
            loss = contrastive.ContrastiveConfig(
                both_directions=True, margin=0.3, exchange=exchange
            )
            return labse.LaBSE(config, pooled, words, shape, shape, loss, rngs=rngs)

        mesh = partitioning.MeshShape(tensor=_TENSOR.value)
        partitioner = partitioning.Partitioner(mesh, devices=devices)
        definition, self._state, shardings = train_state.create(
            make,
            optimizers.AdamW(1e-4, 10, 1000),
            partitioner,
            seed=0,
            abstract=bool(_TOPOLOGY.value),
        )
        step = compiled_step.jit(definition, partitioner, shardings)
        specs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), given)
        self.program = compiled_step.trace(step, partitioner, self._state, specs).lower().compile()
        self._sharding = partitioner.batch_sharding

    def run(self, given: dict[str, dict[str, np.ndarray]], steps: int) -> tuple[float, float]:
        """(seconds of so many steps, the last one's loss)."""
        import jax

        placed = jax.block_until_ready(jax.device_put(given, self._sharding))
        started = time.perf_counter()
        for _ in range(steps):
            self._state, metrics = self.program(self._state, placed)
        loss = float(metrics["loss"].value())
        return time.perf_counter() - started, loss

    def temporaries(self) -> float:
        """MiB between arguments and results, on one device."""
        return self.program.memory_analysis().temp_size_in_bytes / 2**20


def main(_: list[str]) -> None:
    if not _TOPOLOGY.value:
        # Before JAX is imported; on an accelerator its own devices are taken.
        flag = f"--xla_force_host_platform_device_count={_DEVICES.value}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    import jax

    from t5x_style.distributed import startup
    from t5x_style.preflight import topology

    startup.schedule_for_memory()
    devices = topology.devices(_TOPOLOGY.value) if _TOPOLOGY.value else jax.devices()
    given = batch(_PAIRS.value, _LENGTH.value, _VOCABULARY.value)
    steps = {exchange: LabseStep(exchange, given, devices) for exchange in EXCHANGES}
    seconds: dict[str, list[float]] = {exchange: [] for exchange in EXCHANGES}
    losses = dict.fromkeys(EXCHANGES, float("nan"))
    for number in range(0 if _TOPOLOGY.value else 1 + _ROUNDS.value):
        for exchange, step in steps.items():
            spent, losses[exchange] = step.run(given, _STEPS.value if number else 1)
            seconds[exchange] += [spent / _STEPS.value] if number else []
    where = _TOPOLOGY.value or f"{jax.devices()[0].platform} x {len(devices)}"
    print(
        f"{where}: {_PAIRS.value:,} pairs, {_LENGTH.value} tokens, encoder {_SIZE.value}, "
        f"{_VOCABULARY.value:,} words, {_TENSOR.value} devices share a copy"
    )
    print(f"{'negatives':<12}{'s a step':>10}{'temporaries, MiB':>20}{'loss':>10}")
    for exchange, step in steps.items():
        spent = f"{statistics.median(seconds[exchange]):.3f}" if seconds[exchange] else "-"
        print(f"{exchange:<12}{spent:>10}{step.temporaries():>20,.1f}{losses[exchange]:>10.4f}")


if __name__ == "__main__":
    code_hash.announce("labse_step")
    app.run(main)
