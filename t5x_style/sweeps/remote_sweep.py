"""Copy what other machines have written of a sweep's folder on object storage.

What is written here goes to object storage first (`storage.records`). What others write is found by
one listing of the folder, at most every 10 seconds: records of trials, links of their runs. The log
of a trial that runs elsewhere is copied as far as its machine has pushed it.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from t5x_style.storage import errors, fetched, mirror, objects, places
from t5x_style.storage.fetched import File
from t5x_style.sweeps.trial_records import FILE, RUN
from t5x_style.training import metric_writer
from t5x_style.workflow import remote_store
from t5x_style.workflow.store import Store, Version

LOOK_SECONDS = 10.0  # between two listings; a running stage pushes as often
PUSHED = "pushed"  # folder of a trial, here alone: copies of logs, by version
RECORDS = ("*.json", "*/*.json", f"trials/*/{FILE}")  # settings of axes that were asked for, too
_RECORD = re.compile(rf"([^/]+/)?[^/]+\.json|trials/[^/]+/{re.escape(FILE)}")
_LINK = re.compile(rf"trials/[^/]+/{RUN}/[^/]+{re.escape(remote_store.LINK)}")
_NOTES = "kennel-tpu/"  # of jobs on hosts, which nobody here reads


class RemoteSweep:
    """Keeps the copy of a sweep's folder fresh; does nothing for a folder of this machine."""

    def __init__(
        self, folder: Path, store: Store, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        folder: of the sweep: a copy, see `storage.places`, or a folder of this machine.
        store: of its trials.
        clock: seconds, for the time between two listings.
        """
        self._folder, self._store, self._clock = folder, store, clock
        self._url = places.remote(folder)
        self._seen: dict[str, int] = {}  # object -> generation that is here
        self._logs: dict[str, tuple[int, int]] = {}  # log's object -> look, generation
        self._looks = 0
        self._looked = -LOOK_SECONDS

    def look(self, now: bool = False) -> None:
        """Copies records and links that have changed.

        Args:
          now: also where the last listing was a moment ago.

        Raises:
          errors.StorageError: object storage does not answer, or forbids it.
        """
        if not self._url or not (now or self._clock() - self._looked >= LOOK_SECONDS):
            return
        # before the listing, which need not have what is written meanwhile
        before = {path for pattern in RECORDS for path in self._folder.glob(pattern)}
        found = objects.default().below(f"{self._url}/")
        there = {one.path: one.generation for one in found if self._counts(one.path)}
        changed = [name for name, one in there.items() if self._seen.get(name) != one]
        mirror.in_parallel(self._copy, changed)
        for path in before - set(map(places.local, there)):
            path.unlink(missing_ok=True)
        for gone in self._seen.keys() - there.keys():
            places.local(gone.removesuffix(remote_store.LINK)).unlink(missing_ok=True)
        self._seen = there
        self._looks += 1
        self._looked = self._clock()

    def look_at(self, record: Path, log: Path) -> None:
        """Copies the record of one trial, and what it has printed elsewhere.

        Args:
          record: of a trial whose lease this process holds: nobody changes it meanwhile.
          log: its log, which stays if it is longer here.
        """
        if not self._url:
            return
        remote_store.copy_record(record)
        there = objects.default().find(places.remote(log))
        if there is not None and there.size > _size(log):
            mirror.download(there, log)

    def publish(self, log: Path) -> None:
        """Uploads the log of a trial that has ended here, if it printed any."""
        if log.is_file():
            remote_store.publish_file(log)

    def look_at_store(self) -> None:
        """Copies the records of stages that were made elsewhere."""
        remote_store.refresh(self._store)

    def log(self, link: Path) -> Path:
        """The log of a training, here or as far as another machine has pushed it.

        The one that was written last counts: of a training that continued elsewhere from an earlier
        checkpoint, the pushed one is right, and may be shorter.

        Args:
          link: of a trial's run to the training, which may run.
        """
        here = link / metric_writer.JSONL
        if not self._url or not link.is_symlink():
            return here
        folder = self._store.versions / os.path.basename(os.readlink(link))
        copy = link.parent.parent / PUSHED / f"{folder.name}.jsonl"
        self._copy_log(f"{places.remote(folder)}/{metric_writer.JSONL}", copy)
        return max((here, copy), key=_written)

    def _copy_log(self, url: str, copy: Path) -> None:
        look, generation = self._logs.get(url, (-1, 0))
        if look == self._looks:
            return
        there = objects.default().find(url)
        if there is not None and (there.generation != generation or not copy.exists()):
            with contextlib.suppress(errors.Missing):  # written again meanwhile: the next look
                mirror.download(there, copy)
                written = there.updated.timestamp()
                os.utime(copy, (written, written))
                generation = there.generation
        self._logs[url] = self._looks, generation

    @contextlib.contextmanager
    def output(self, version: Version, name: str) -> Iterator[Path]:
        """Inside, an output of a finished version is here, and no other file of it need be.

        Args:
          version: that made it.
          name: of the output, which is one file.
        """
        path = version.output(name)
        inside = os.path.relpath(path, version.folder)
        assert version.manifest is not None
        entry = version.manifest["files"].get(inside)
        if not version.url or entry is None:
            yield path
            return
        with fetched.kept(version.folder, {inside: File(*entry)}):
            yield path

    def _counts(self, path: str) -> bool:
        """Whether an object is a record of the sweep, or a link of a trial's run."""
        inside = path.removeprefix(f"{self._url}/")
        if inside.startswith(_NOTES):
            return False
        return bool(_RECORD.fullmatch(inside) or _LINK.fullmatch(inside))

    def _copy(self, path: str) -> None:
        if path.endswith(remote_store.LINK):
            remote_store.copy_link(self._store, path)
        else:
            remote_store.copy_record(places.local(path))


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return -1.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
