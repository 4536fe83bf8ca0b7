"""Builds an index of each new checkpoint of a training that retrieves on the host.

    python -m t5x_style.build_index --watch --gin_file=gin_configs/runs/watch_index.gin ...

A companion of a training, no stage: what it makes is in the training's folder.
"""

from collections.abc import Sequence
from pathlib import Path

from t5x_style import checkpointing, gin_utils, runtime, stage_main, trained
from t5x_style.partitioning import Partitioner
from t5x_style.retrieval import version_record
from t5x_style.retrieval.refresher import Refresher, RefreshError, Training
from t5x_style.train_state import MakeObjective


def watch(
    refresher: Refresher,
    objective: MakeObjective,
    training: str,
    partitioner: Partitioner,
    poll_seconds: float,
) -> None:
    """Builds an index of each new checkpoint of a training, until that has ended.

    Args:
      refresher: embeds, builds and publishes.
      objective: the factory that is trained, built without a corpus.
      training: its folder; it need not exist yet, and may not have ended.
      partitioner: mesh to embed on.
      poll_seconds: between two looks.
    """
    folder = Path(training)
    watched = Training(
        run=lambda: version_record.run_of(folder),
        newest=lambda: checkpointing.newest(folder),
        load=lambda step: trained.load(objective, training, partitioner, step),
        parameters=lambda step: checkpointing.read_parameters(folder, step),
        finished=(folder / "stage.json").is_file,
    )
    # What a checkpoint says that goes while it is read.
    refresher.watch(watched, poll_seconds, (checkpointing.CheckpointError, OSError))


def main(argv: Sequence[str]) -> int:
    """Returns the exit code; 1 with a message where something is wrong."""

    def run(flags: gin_utils.Flags) -> int:
        if not flags.files:
            raise RefreshError("nothing to watch: pass --gin_file=gin_configs/runs/watch_index.gin")
        runtime.start()
        config = flags.read()
        gin_utils.check_names(config, ("t5x_style.watch_index.watch",))
        gin_utils.check_code(config)
        gin_utils.parse(config, flags)
        gin_utils.configured(watch)()
        return 0

    return stage_main.guarded(run, argv)
