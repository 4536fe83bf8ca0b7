"""Garbage collection: which versions may go, and how they go.

A version stays if a link of a run points to it, if it is pinned, if it was used in the last days,
if a process is making it, or if one that stays was made from it. All others may be deleted, or only
lose what continues a training (`slim`). Nothing is deleted that was not planned and confirmed.
"""

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from t5x_style.workflow import files, links, records
from t5x_style.workflow.leases import Holder
from t5x_style.workflow.store import (
    GOING,
    PINNED,
    STAGE_FILE,
    STARTED_FILE,
    Store,
    Version,
    bytes_of,
)

DAYS = 7.0


@dataclass(frozen=True)
class Entry:
    """One version, and what becomes of it.

    Attributes:
      bytes: on disk.
      used: when it was last used, seconds since the epoch.
      links: of runs that point to it.
      stays: why it is not deleted; "" if it may be.
    """

    version: Version
    bytes: int
    used: float
    links: tuple[Path, ...]
    stays: str


@dataclass(frozen=True)
class Collection:
    """All versions of a store; those that may go are `removable`."""

    entries: tuple[Entry, ...]

    @property
    def removable(self) -> list[Entry]:
        """Versions that nothing keeps."""
        return [entry for entry in self.entries if not entry.stays]


def plan(store: Store, days: float = DAYS, clock: Callable[[], float] = time.time) -> Collection:
    """Decides what may go; deletes nothing.

    Args:
      store: whose versions.
      days: a version that was used in so many days stays.
      clock: seconds since the epoch.
    """
    versions = {version.id: version for version in store.all()}
    users: dict[str, list[Path]] = {}
    for link, name in links.all_of(store).items():
        users.setdefault(name, []).append(link)
    stays = {}
    for name, version in versions.items():
        if name in users:
            stays[name] = "current in " + ", ".join(str(link) for link in users[name][:2])
        elif (version.folder / PINNED).exists():
            stays[name] = "pinned"
        elif (holder := store.leases.holder(_lease_name(version))) is not None:
            stays[name] = f"being made by {holder}"
        elif clock() - version.last_used() < days * 86_400:
            stays[name] = "used recently"
    _keep_ancestors(versions, stays)
    return Collection(
        tuple(
            Entry(
                version,
                bytes_of(version.folder),
                version.last_used(),
                tuple(users.get(name, ())),
                stays.get(name, ""),
            )
            for name, version in versions.items()
        )
    )


def _lease_name(version: Version) -> str:
    """All revisions of a fingerprint share a lease."""
    name, _, revision = version.id.rpartition(".")
    return name if revision.isdigit() and name else version.id


def _keep_ancestors(versions: dict[str, Version], stays: dict[str, str]) -> None:
    """What a version that stays was made from stays, too."""
    todo = list(stays)
    while todo:
        name = todo.pop()
        for made_from in versions[name].record.get("made_from", ()):
            if made_from in versions and made_from not in stays:
                stays[made_from] = f"{name} was made from it"
                todo.append(made_from)


def delete(store: Store, entry: Entry) -> bool:
    """Deletes one version that `plan` left without a reason to stay.

    Under its lease, so that nobody begins to use it meanwhile; False if somebody has: it stays.
    A kill in here leaves a version that is not finished, or a folder that no version is.
    """
    version, moved = entry.version, False
    lease_name = _lease_name(version)
    if entry.stays or store.leases.holder(lease_name) is not None:
        return False
    lease = store.leases.acquire(lease_name, _nobody, lambda: None)
    try:
        with lease.guard():
            if version.last_used() <= entry.used and version.id not in links.all_of(store).values():
                going = version.folder.with_name(version.id + GOING)
                version.folder.rename(going)
                moved = True
    finally:
        lease.release()
    if moved:
        remove(going)
    return moved


def _nobody(holder: Holder) -> None:
    del holder


def remove(folder: Path) -> None:
    """Removes a folder that `delete` has renamed."""
    for name in (STAGE_FILE, STARTED_FILE):  # first: what is left over is no version
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder)


def leftovers(store: Store) -> list[Path]:
    """Folders that a killed `delete` left."""
    return sorted(store.versions.glob(f"*{GOING}")) if store.versions.is_dir() else []


def slim(store: Store, entry: Entry, drop: Callable[[Path], list[str]]) -> int:
    """Drops from a finished version what only continues it; returns the bytes freed.

    The manifest says first that it is being slimmed, and at the end what is left: a kill in between
    leaves a version that counts, and the next call ends what was begun.

    Args:
      store: whose version.
      entry: from `plan`, with no reason to stay.
      drop: removes what a version does not need from its folder, and returns what it removed.
    """
    version = entry.version
    if entry.stays or version.manifest is None or store.leases.holder(_lease_name(version)):
        return 0
    lease = store.leases.acquire(_lease_name(version), _nobody, lambda: None)
    try:
        with lease.guard():
            if not version.manifest.get("slimming"):
                records.write_json(
                    version.folder / STAGE_FILE, version.manifest | {"slimming": True}
                )
            gone = drop(version.folder)
            kept = files.files_of(version.folder)
            manifest = version.manifest | {
                "files": kept,
                "bytes": sum(size for size, *_ in kept.values()),
                "slimmed": sorted({*version.manifest.get("slimmed", ()), *gone}),
                "slimming": False,
            }
            records.write_json(version.folder / STAGE_FILE, manifest)
    finally:
        lease.release()
    return int(version.manifest["bytes"]) - int(manifest["bytes"])


def pin(version: Version, pinned: bool) -> None:
    """Keeps a version from being collected, or no longer."""
    if pinned:
        (version.folder / PINNED).touch()
    else:
        with contextlib.suppress(FileNotFoundError):
            (version.folder / PINNED).unlink()
