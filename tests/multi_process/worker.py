"""One process of a training run of the toy objective: `worker.py FOLDER STEPS`.

Which process it is stands in JAX's environment variables. Writes `rows-<process>.json`, the rows of
the global batch that it asked the pipeline for, and, from process 0, everything a run leaves.
"""

import functools
import json
import sys
from pathlib import Path

from t5x_style.distributed import startup

if __name__ == "__main__":
    startup.start()

    import jax

    from t5x_style.checkpoints import checkpointing
    from t5x_style.distributed import partitioning
    from t5x_style.interfaces.objective import GroupShape
    from t5x_style.step import optimizers
    from t5x_style.training import metric_writer, progress, trainer
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
        trainer.Cadence(steps, log_every=1, evaluate_every=100, save_every=4),
        seed=3,
    )
    run.start()
    first, main = int(run.state.step), jax.process_index() == 0
    log = metric_writer.MetricLog(folder, first, main)
    run.fit(log, progress.TrainingProgress("toy", first, steps, active=False), {})
    checkpointer.close()
    (folder / f"rows-{jax.process_index()}.json").write_text(json.dumps(sorted(asked)))
