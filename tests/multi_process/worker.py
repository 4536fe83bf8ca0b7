"""One process of a training run of the toy objective: `worker.py FOLDER STEPS`.

JAX's environment variables say which process it is. Writes `rows-<process>.json`, the rows of
the global batch that it asked the pipeline for, and, from process 0, everything a run leaves.

COMPARE_EVERY=N: steps between two comparisons of the hosts. CHANGE=STEP: after that step one bit of
one replica of the parameter `scale` changes, on this process alone.
"""

import functools
import json
import os
import sys
from pathlib import Path

from t5x_style.distributed import startup

if __name__ == "__main__":
    startup.start()

    import jax
    import numpy as np

    from t5x_style.checkpoints import checkpointing
    from t5x_style.distributed import partitioning
    from t5x_style.interfaces.objective import GroupShape
    from t5x_style.step import optimizers
    from t5x_style.training import divergence, metric_writer, progress, trainer
    from tests.kits.toys.toy_objective import Toy, ToyPipeline

    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    text = GroupShape(rows=16, length=12, segments=1)
    asked: set[int] = set()

    class CountingPipeline(ToyPipeline):
        def batch(self, step, rows=None):
            asked.update(range(16) if rows is None else rows.tolist())
            return super().batch(step, rows)

    checkpointer = checkpointing.Checkpointer(
        folder / "checkpoints", checkpointing.Checkpointing(keep=2)
    )
    run = trainer.Trainer(
        functools.partial(Toy, text, 32, 8, 16),
        CountingPipeline(text, 32),
        optimizers.AdamW(0.05, 2, 12, no_decay=("scale",)),
        partitioning.Partitioner(partitioning.MeshShape(2, 2, 2)),
        checkpointer,
        trainer.Cadence(
            steps,
            log_every=1,
            evaluate_every=100,
            save_every=4,
            compare_hosts_every=int(os.environ.get("COMPARE_EVERY", "100")),
        ),
        seed=3,
    )
    run.start()
    first, main = int(run.state.step), jax.process_index() == 0
    log = metric_writer.MetricLog(folder, first, main)
    run.compile()
    compiled = run._compiled

    def step_and_change(state, batch):
        state, metrics = compiled(state, batch)
        if "CHANGE" in os.environ and int(state.step) == int(os.environ["CHANGE"]):
            scale = state.params["scale"]
            parts = [np.array(shard.data) for shard in scale.get_value().addressable_shards]
            parts[0].view(np.uint32)[0] ^= 1
            devices = [shard.device for shard in scale.get_value().addressable_shards]
            scale.set_value(
                jax.make_array_from_single_device_arrays(
                    scale.get_value().shape,
                    scale.get_value().sharding,
                    [jax.device_put(*one) for one in zip(parts, devices, strict=True)],
                )
            )
        return state, metrics

    run._compiled = step_and_change
    try:
        run.fit(log, progress.TrainingProgress("toy", first, steps, active=False), {})
    except divergence.DivergenceError as error:
        print(f"error: {error}", flush=True)
        startup.peers().end(1, f"failed: {error}")
    checkpointer.close()
    (folder / f"rows-{jax.process_index()}.json").write_text(json.dumps(sorted(asked)))
