"""Builds what a training needs from each of its new checkpoints: an index, or hard negatives.

    python -m t5x_style.watch_index --gin_file=gin_configs/runs/indexes/watch.gin ...
    python -m t5x_style.watch_index --gin_file=gin_configs/runs/negatives/watch.gin ...

A companion of a training, no stage: it publishes to a separate folder. It writes nothing into the
training's folder, a version that never changes once it is finished. Either folder may be on object
storage: what is read there is copied first, what is built is uploaded.
"""

import dataclasses
import functools
import hashlib
import importlib
import sys
from pathlib import Path
from typing import Annotated

from t5x_style.checkpoints import checkpointing, restored_model
from t5x_style.companions import companion_runner, watched_training
from t5x_style.distributed import startup
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.text_encoder import TextEncoder
from t5x_style.model_dependent_data.index_builder import Builder, RefreshError, Training
from t5x_style.retrieval import remote_versions
from t5x_style.step.train_state import MakeObjective
from t5x_style.storage import places
from t5x_style.workflow.store import version_at


def watch(
    refresher: Builder,
    objective: MakeObjective,
    training: str,
    partitioner: Partitioner,
    poll_seconds: Annotated[float, "operational"],
) -> None:
    """Publishes a version from each new checkpoint of a training, until that has ended.

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
    here = places.local(refresher.folder)
    if (version := version_at(here)) is not None:
        raise RefreshError(
            f"{type(refresher).__name__}.folder: {refresher.folder} is inside the stage folder "
            f"{version.folder}, which only its stage writes. Choose another folder, for the "
            "training too."
        )
    name = hashlib.sha256(f"{training} {refresher.folder}".encode()).hexdigest()[:16]
    copies = places.cache() / "watched" / name
    watched = watched_training.of(training, copies / "training")

    def load(step: int) -> TextEncoder:
        return restored_model.load(objective, str(watched.folder(step)), partitioner, step)

    asked = Training(
        run=watched.run,
        newest=watched.newest,
        load=load,
        parameters=lambda step: checkpointing.read_parameters(watched.folder(step), step),
        finished=watched.finished,
    )
    publisher = _publisher(refresher, copies / "versions")
    # What a checkpoint says that goes while it is read.
    publisher.watch(asked, poll_seconds, (checkpointing.CheckpointError, OSError))


def _publisher(refresher: Builder, work: Path) -> Builder:
    """The same; for a folder on object storage one that builds in `work`, and uploads."""
    url = places.remote(places.local(refresher.folder))
    if not url:
        return refresher
    remote_versions.begin(work, url)
    push = functools.partial(remote_versions.push, work, url)
    return dataclasses.replace(refresher, folder=str(work), published=push)


if __name__ == "__main__":
    # through the import system: gin must meet this module under its own name, not as __main__
    module = importlib.import_module("t5x_style.watch_index")
    sys.exit(companion_runner.main(module.watch, sys.argv[1:], startup.start))
