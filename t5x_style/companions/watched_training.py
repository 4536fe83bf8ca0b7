"""Read a training from its companion: on a disk that both see, or on object storage.

A training that is started with other settings points its link to another version, perhaps between
two readings of ours: so the link is followed once in each look, and all that the look reads is of
one version.
"""

import json
import shutil
from pathlib import Path
from typing import Protocol

from t5x_style.checkpoints import checkpoint_directory, checkpointing, checksums
from t5x_style.interfaces.contract import FILE_NAME as CONTRACT
from t5x_style.model_dependent_data import version_log
from t5x_style.storage import errors, mirror, objects, places
from t5x_style.workflow import links, remote_store
from t5x_style.workflow.store import STAGE_FILE

NOT_READ = (checkpoint_directory.OPTIMIZER, "progress")  # only a resumed training does


class Watched(Protocol):
    """A training's current version."""

    def finished(self) -> bool:
        """Whether the training has ended; what a look asks first, which follows the link again."""
        ...

    def run(self) -> str | None:
        """The identifier of this training; None before it has begun."""
        ...

    def newest(self) -> int | None:
        """The step of the newest complete checkpoint, None before the first."""
        ...

    def folder(self, step: int) -> Path:
        """On this disk: with the contract, and what a model of this checkpoint is made of.

        Raises:
          OSError, errors.StorageError: it went while it was copied.
        """
        ...


def of(link: str, copies: Path) -> Watched:
    """The training at a link.

    Args:
      link: local, or on object storage.
      copies: a folder for what is copied of the latter; nobody else's.
    """
    url = places.remote(places.local(link))
    return Remote(places.local(link), copies) if url else Local(Path(link))


class Local:
    """A training in a folder that this process sees."""

    def __init__(self, link: Path):
        """Args:
        link: to its version, or the folder itself; it need not lead anywhere yet.
        """
        self._link = link
        self._folder = link.resolve()

    def finished(self) -> bool:
        """See `Watched`."""
        self._folder = self._link.resolve()
        return (self._folder / STAGE_FILE).is_file()

    def run(self) -> str | None:
        """See `Watched`."""
        return version_log.run_of(self._folder)

    def newest(self) -> int | None:
        """See `Watched`."""
        return checkpointing.newest(self._folder)

    def folder(self, step: int) -> Path:
        """See `Watched`."""
        del step
        return self._folder


class Remote:
    """A training that other machines write to object storage."""

    def __init__(self, link: Path, copies: Path):
        """Args:
        link: the local place of a run's link.
        copies: see `of`.
        """
        self._link, self._copies = link, copies
        self._url = ""  # of the version

    def finished(self) -> bool:
        """See `Watched`."""
        self._url = ""
        remote_store.has_run_file(self._link.parent)
        version = remote_store.link_target(self._link)
        if version:
            store = links.of_run(self._link.parent)
            self._url = f"{store.url}/versions/{version}"
            return remote_store.is_finished(store, version)
        return False

    def run(self) -> str | None:
        """See `Watched`."""
        content = self._read(version_log.RUN)
        return None if content is None else str(json.loads(content)["run"])

    def newest(self) -> int | None:
        """See `Watched`."""
        if not self._url:
            return None
        _, found = objects.default().children(f"{self._url}/checkpoints/")
        names = [path.rpartition("/")[2] for path in found]
        for step in sorted((int(name) for name in names if name.isdigit()), reverse=True):
            if objects.default().find(f"{self._url}/checkpoints/{step}/{checksums.FILE_NAME}"):
                return step
        return None

    def folder(self, step: int) -> Path:
        """See `Watched`."""
        here = self._copies / self._url.rpartition("/")[2]
        place = here / "checkpoints" / str(step)
        if checksums.is_complete(place):
            return here
        shutil.rmtree(self._copies, ignore_errors=True)  # one checkpoint at a time
        inside = f"{self._url}/checkpoints/{step}/"
        there = {one.path.removeprefix(inside): one for one in objects.default().below(inside)}
        record = there.pop(checksums.FILE_NAME, None)
        contract = objects.default().stat(f"{self._url}/{CONTRACT}")
        if record is None:
            raise errors.Missing(f"{inside}: the checkpoint went while it was copied")
        wanted = [name for name in there if name.partition("/")[0] not in NOT_READ]
        mirror.in_parallel(lambda name: mirror.download(there[name], place / name), wanted)
        mirror.download(contract, here / CONTRACT)
        mirror.download(record, place / checksums.FILE_NAME)
        return here

    def _read(self, name: str) -> bytes | None:
        try:
            return objects.default().read(f"{self._url}/{name}")[0] if self._url else None
        except errors.Missing:
            return None
