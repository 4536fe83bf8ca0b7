"""The store: stage versions that all runs share.

    .store/
      versions/train-3f2a9c0d1e2b4a5c/     job's name and start of the fingerprint
          stage.started.json               first: what it is being made from, and by whom
          ...                              what the job writes
          stage.json                       the manifest, last: from now on the version is finished
          .used, .pinned                   when it was last asked for; never collected
      versions/train-3f2a9c0d1e2b4a5c.2/   a second revision of the same fingerprint: made again on
                                           request, with other code, or after a lost lease
      leases/                              who makes what, see `leases`
      users/                               links that point here, one file each
      index.json                           summary of all versions; rebuilt when it is lost

A finished version never changes, and nothing here deletes one; `collection` does, when asked.
"""

import contextlib
import functools
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5x_style.leases.file_leases import FileLeases
from t5x_style.leases.lease import Leases
from t5x_style.leases.object_leases import ObjectLeases
from t5x_style.storage import fetched, places, records

STAGE_FILE = "stage.json"
STARTED_FILE = "stage.started.json"
FORMAT = 2  # of the manifest; 1 was that of run folders without a store
USED, PINNED = ".used", ".pinned"
RUN_FILE = ".run.json"  # in a run's folder: where its store is
DELETED_SUFFIX = ".deleted"  # suffix of a folder that is being deleted
ID_DIGITS = 16  # of the fingerprint, in a version's name
HERE_FILE = "stage.here.json"  # on this machine alone: which attempt wrote its files
OWN_FILES = (STAGE_FILE, STARTED_FILE, HERE_FILE, USED, PINNED, fetched.LIST, fetched.FETCHING)


class StoreError(ValueError):
    """A store or a link that cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Version:
    """One revision of a stage version, finished or not.

    Attributes:
      folder: where it is.
      manifest: of a finished one; None otherwise.
      started: the record of its start; {} if that is missing.
      damage: why its manifest does not count, or "".
      foreign: its manifest is whole, and has another format: it is left alone.
    """

    folder: Path
    manifest: dict[str, Any] | None
    started: dict[str, Any] = field(default_factory=dict)
    damage: str = ""
    foreign: bool = False

    @property
    def id(self) -> str:
        """Job's name, start of the fingerprint, and the revision if it is not the first."""
        return self.folder.name

    @property
    def url(self) -> str:
        """URL on object storage, if its folder is a copy; or ""."""
        return places.remote(self.folder)

    @property
    def identity(self) -> str:
        """Identity of a finished version as an input: fingerprint, and the code that made it.

        Not the number of its revision: a version that is made again by the same code is the same.
        One that several codes made is like no other.
        """
        assert self.manifest is not None
        base = version_id(self.manifest["job"]["name"], self.manifest["fingerprint"])
        mixed = f" mixed {self.manifest['finished']}" if self.manifest.get("mixed_code") else ""
        return f"{base} by code {self.manifest['code_hash']}{mixed}"

    @property
    def record(self) -> dict[str, Any]:
        """The manifest, or what was recorded when it started."""
        return self.manifest or self.started

    def output(self, name: str) -> Path:
        """Path of a finished version's output."""
        assert self.manifest is not None
        return Path(os.path.normpath(self.folder / self.manifest["outputs"][name]))

    def missing_outputs(self) -> list[str]:
        """Outputs of the manifest that are not there any more."""
        if self.url:  # a version there never changes, and its files need not be here
            return []
        outputs = (self.manifest or {"outputs": {}})["outputs"]
        return [path for path in outputs.values() if not (self.folder / path).exists()]

    def last_used(self) -> float:
        """Time of the last use or write: seconds since the epoch."""
        times = []
        for name in (USED, STAGE_FILE, STARTED_FILE):
            with contextlib.suppress(OSError):
                times.append((self.folder / name).stat().st_mtime)
        return max(times) if times else self.folder.stat().st_mtime


class Store:
    """A folder of stage versions.

    Attributes:
      url: where the store is on object storage, if this folder is a copy (`remote_store`); or "".
    """

    def __init__(self, root: Path):
        self.root = Path(root)
        self.versions = self.root / "versions"
        self.url = places.remote(self.root)

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    @functools.cached_property
    def leases(self) -> Leases:
        """Leases on versions, held while they are made."""
        if self.url:
            return ObjectLeases(f"{self.url}/leases")
        return FileLeases(self.root / "leases")

    def read(self, folder: Path) -> Version:
        """The version in a folder of `versions/`."""
        manifest = records.read_json(folder / STAGE_FILE)
        started = records.read_json(folder / STARTED_FILE) or {}
        if manifest is None:
            broken = (folder / STAGE_FILE).exists()
            return Version(folder, None, started, "its manifest was cut short" if broken else "")
        wanted = {"fingerprint", "outputs", "files", "parameters", "format"}
        if not wanted <= manifest.keys() or manifest["format"] != FORMAT:
            found = f"manifest: expected format {FORMAT}, found {manifest.get('format', 'none')}"
            return Version(folder, None, started, found, foreign=True)
        return Version(folder, manifest, started)

    def all(self) -> list[Version]:
        """Every version, in the order of names."""
        return [self.read(self.versions / name) for name in self._names()]

    def _names(self) -> list[str]:
        if not self.versions.is_dir():
            return []
        folders = [entry.name for entry in os.scandir(self.versions) if entry.is_dir()]
        return sorted(name for name in folders if not name.endswith(DELETED_SUFFIX))

    def revisions_of(self, name: str, fingerprint: str) -> list[Version]:
        """All revisions of a fingerprint, in the order they were begun.

        Raises:
          StoreError: a version of another fingerprint has the same id.
        """
        base = version_id(name, fingerprint)
        numbered = []
        for entry in self._names():
            if entry == base or (entry.startswith(base + ".") and entry[len(base) + 1 :].isdigit()):
                numbered.append((int(entry[len(base) + 1 :] or 1), entry))
        found = [self.read(self.versions / entry) for _, entry in sorted(numbered)]
        for version in found:
            other = version.record.get("fingerprint", fingerprint)
            if other != fingerprint:
                raise StoreError(
                    f"{version.folder} has fingerprint {other}, and {fingerprint} starts the "
                    "same. Move that folder out of the store."
                )
        return found

    def new_folder(self, name: str, fingerprint: str) -> Path:
        """Makes the folder of a new revision, or takes one that was made and never begun."""
        revisions = self.revisions_of(name, fingerprint)
        if revisions and not any(revisions[-1].folder.iterdir()):
            return revisions[-1].folder
        taken = [version.id for version in revisions]
        base = version_id(name, fingerprint)
        numbers = [int(one[len(base) + 1 :] or 1) for one in taken]
        number = max(numbers, default=0) + 1
        folder = self.versions / (base if number == 1 else f"{base}.{number}")
        folder.mkdir(parents=True)
        return folder

    def mark_used(self, folder: Path) -> None:
        """Remembers that the version in a folder was asked for; not on a read-only disk."""
        with contextlib.suppress(OSError):
            (folder / USED).touch()

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Version id -> `bytes` and when it was `finished` ("" if it is not).

        From the index; versions that it lacks, or whose manifest changed, are read again.
        """
        path = self.root / "index.json"
        known = (records.read_json(path) or {}).get("versions", {})
        found = {}
        for name in self._names():
            stamp = _stamp(self.versions / name / STAGE_FILE)
            old = known.get(name)
            if old is not None and stamp and old["stamp"] == stamp:
                found[name] = old
            else:
                found[name] = _summary(self.read(self.versions / name)) | {"stamp": stamp}
        finished = {name: one for name, one in found.items() if one["stamp"]}
        if finished != known and self.root.is_dir():
            with contextlib.suppress(OSError):  # a read-only store is still listed
                records.write_here(path, json.dumps({"versions": finished}, indent=1))
        return found

    def size(self) -> int:
        """Bytes of all versions."""
        return sum(one["bytes"] for one in self.summaries().values())


def version_id(name: str, fingerprint: str) -> str:
    """The name of a version's folder: what it is, and the start of its fingerprint."""
    return f"{name}-{fingerprint[:ID_DIGITS]}"


def store_of(folder: Path) -> Store | None:
    """The store that a version's folder belongs to; None for a folder elsewhere."""
    folder = Path(folder).resolve()
    return Store(folder.parent.parent) if folder.parent.name == "versions" else None


def version_at(path: Path) -> Version | None:
    """The version that holds a path, links followed; None where no stage wrote it."""
    resolved = Path(path).resolve()
    for folder in (resolved, *resolved.parents):
        if (folder / STAGE_FILE).is_file() or (folder / STARTED_FILE).is_file():
            return Store(folder.parent.parent).read(folder)
    return None


def bytes_of(folder: Path) -> int:
    """Bytes of all files below a folder; files that come and go meanwhile may be left out."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def now() -> str:
    """The time, for records."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _stamp(path: Path) -> list[int]:
    try:
        stat = path.stat()
    except OSError:
        return []
    return [stat.st_mtime_ns, stat.st_size]


def _summary(version: Version) -> dict[str, Any]:
    manifest = version.manifest or {}
    return {
        "finished": manifest.get("finished", ""),
        "bytes": manifest.get("bytes") or bytes_of(version.folder),
    }
