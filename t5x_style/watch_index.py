"""Builds an index of each new checkpoint of a training that retrieves on the host.

    python -m t5x_style.watch_index --gin_file=gin_configs/runs/indexes/watch.gin ...

A companion of a training, no stage: it publishes to a folder of its own. It writes nothing into the
training's folder, a version that never changes once it is finished.
"""

import importlib
import sys
from pathlib import Path
from typing import Annotated

from t5x_style import companion
from t5x_style.checkpoints import checkpointing, restored_model
from t5x_style.distributed import startup
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.model_dependent_data import version_log
from t5x_style.model_dependent_data.index_builder import Refresher, RefreshError, Training
from t5x_style.step.train_state import MakeObjective
from t5x_style.workflow.store import STAGE_FILE, version_at


def watch(
    refresher: Refresher,
    objective: MakeObjective,
    training: str,
    partitioner: Partitioner,
    poll_seconds: Annotated[float, "operational"],
) -> None:
    """Builds an index of each new checkpoint of a training, until that has ended.

    Args:
      refresher: embeds, builds and publishes.
      objective: the factory that is trained, built without a corpus.
      training: its folder, or the link to its current version; it need not exist yet, and may not
        have ended. A link is followed again before each look.
      partitioner: mesh to embed on.
      poll_seconds: between two looks.

    Raises:
      RefreshError: the training has ended, or a stage's folder would be written to.
    """
    if (version := version_at(Path(refresher.folder))) is not None:
        raise RefreshError(
            f"Refresher.folder: {refresher.folder} is inside the stage folder {version.folder}, "
            "which only its stage writes. Choose another folder, for the training too."
        )
    current = _Current(Path(training))
    watched = Training(
        run=lambda: version_log.run_of(current.folder),
        newest=lambda: checkpointing.newest(current.folder),
        load=lambda step: restored_model.load(objective, str(current.folder), partitioner, step),
        parameters=lambda step: checkpointing.read_parameters(current.folder, step),
        finished=current.finished,
    )
    # What a checkpoint says that goes while it is read.
    refresher.watch(watched, poll_seconds, (checkpointing.CheckpointError, OSError))


class _Current:
    """The folder that a training's link points to, the same for all that one look reads.

    A training that is started with other settings points its link to another version, perhaps
    between two readings of ours.

    Attributes:
      folder: where the link pointed when `finished` was last called, or this object made.
    """

    def __init__(self, link: Path):
        self._link = link
        self.folder = link.resolve()

    def finished(self) -> bool:
        """Whether the training has ended; what a look asks first."""
        self.folder = self._link.resolve()
        return (self.folder / STAGE_FILE).is_file()


if __name__ == "__main__":
    # through the import system: gin must meet this module under its own name, not as __main__
    module = importlib.import_module("t5x_style.watch_index")
    sys.exit(companion.main(module.watch, sys.argv[1:], startup.start))
