"""A training that retrieves on the host, or the builder of its index; and how they are killed.

    python -m tests.multi_process.host build FOLDER VERSION
    python -m tests.multi_process.host train FOLDER VERSION [DEVICES]

The builder is killed while it publishes VERSION, the training between reading VERSION and using it;
0: neither is. JAX's environment variables say whether the process is one of several.
"""

import os
import signal
import sys
from pathlib import Path

from t5x_style.checkpoints import checkpointing
from t5x_style.distributed import startup
from t5x_style.model_dependent_data import retrieval_batches
from t5x_style.retrieval import versioned_folder
from tests.kits import host_kit as host


def die_publishing(version: int) -> None:
    """All files are there, and the manifest is not."""
    write = versioned_folder.write_manifest

    def writing(folder: Path, *arguments: object) -> None:
        if folder.name == f"{version}.tmp":
            os.kill(os.getpid(), signal.SIGKILL)
        write(folder, *arguments)

    versioned_folder.write_manifest = writing


def die_swapping(version: int) -> None:
    """The index is read, and no step has seen it."""

    class Dying(retrieval_batches.Searched):
        def __init__(
            self, retrieval: retrieval_batches.HostRetrieval, read: retrieval_batches.Version
        ) -> None:
            super().__init__(retrieval, read)
            if read.number == version:
                os.kill(os.getpid(), signal.SIGKILL)

    retrieval_batches.Searched = Dying


def main(what: str, folder: Path, version: int, devices: int = 1) -> None:
    """See the module's docstring."""
    startup.start()
    if what == "build":
        die_publishing(version)
        training = host.watched(folder, (folder / "ended").is_file)
        errors = (checkpointing.CheckpointError, OSError)
        host.refresher(folder).watch(training, 0.02, errors)
        return
    die_swapping(version)
    host.train(folder, mesh=(devices, 1, 1))
    (folder / "ended").touch()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
