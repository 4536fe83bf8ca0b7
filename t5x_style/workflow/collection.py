"""Garbage collection: choose versions to delete, and delete them.

A version stays if a link of a run points to it, if it is pinned, if it was used in the last days,
if a process is making it, or if one that stays was made from it. All others may be deleted, or only
lose what continues a training (`slim`). Nothing is deleted that was not planned and confirmed.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from t5x_style.leases.holders import Holder
from t5x_style.leases.lease import Lease
from t5x_style.storage import records
from t5x_style.workflow import files, links
from t5x_style.workflow.store import (
    DELETED_SUFFIX,
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
    """One version, and the decision about it.

    Attributes:
      bytes: on disk.
      used: when it was last used, seconds since the epoch.
      links: of runs that point to it.
      making: the process that makes it, or "".
      stays: why it is not deleted; "" if it may be.
    """

    version: Version
    bytes: int
    used: float
    links: tuple[Path, ...]
    making: str
    stays: str


@dataclass(frozen=True)
class Collection:
    """All versions of a store, what was made from others before them."""

    entries: tuple[Entry, ...]

    @property
    def removable(self) -> list[Entry]:
        """Versions that nothing keeps; deleted in this order, no version loses its inputs."""
        return [entry for entry in self.entries if not entry.stays]


def plan(store: Store, days: float = DAYS, sizes: bool = True) -> Collection:
    """Decides what may go; deletes nothing.

    Args:
      store: whose versions.
      days: a version that was used in so many days stays.
      sizes: False leaves `bytes` at 0, which is faster.
    """
    versions = {version.id: version for version in store.all()}
    users: dict[str, list[Path]] = {}
    for link, name in links.all_of(store).items():
        users.setdefault(name, []).append(link)
    making, stays = {}, {}
    for name, version in versions.items():
        holder = store.leases.holder(lease_name(version))
        making[name] = str(holder) if holder and version.manifest is None else ""
        if why := _why(version, users.get(name, []), making[name], days):
            stays[name] = why
    _keep_ancestors(versions, stays)
    entries = [
        Entry(
            version,
            bytes_of(version.folder) if sizes else 0,
            _used(version),
            tuple(users.get(name, ())),
            making[name],
            stays.get(name, ""),
        )
        for name, version in versions.items()
    ]
    return Collection(tuple(sorted(entries, key=lambda entry: -_made(entry.version))))


def _why(version: Version, users: list[Path], making: str, days: float) -> str:
    """Why a version stays, for itself; "" if it may go."""
    if users:
        return "current in " + ", ".join(map(_shown, users[:2]))
    if version.foreign:
        return version.damage
    if (version.folder / PINNED).exists():
        return "pinned"
    if making:
        return f"being made by {making}"
    return "used recently" if time.time() - _used(version) < days * 86_400 else ""


def _shown(link: Path) -> str:
    if link.parent.is_dir():
        return str(link)
    return f"{link}, which is not here (if it is gone for good: runs forget {link.parent})"


def _used(version: Version) -> float:
    """Time of the last use; 0 if another process has just deleted it."""
    with contextlib.suppress(FileNotFoundError):
        return version.last_used()
    return 0.0


def _made(version: Version) -> float:
    """Time of completion; unfinished versions sort after all others."""
    with contextlib.suppress(OSError):
        return (version.folder / STAGE_FILE).stat().st_mtime
    return time.time()


def lease_name(version: Version) -> str:
    """All revisions of a fingerprint share a lease."""
    name, _, revision = version.id.rpartition(".")
    return name if revision.isdigit() and name else version.id


def _keep_ancestors(versions: dict[str, Version], stays: dict[str, str]) -> None:
    """Keep the inputs of every version that stays."""
    todo = list(stays)
    while todo:
        name = todo.pop()
        record = versions[name].record
        # An unfinished version may still continue its parent.
        for made_from in (*record.get("made_from", ()), record.get("parent")):
            if made_from in versions and made_from not in stays:
                stays[made_from] = f"{name} was made from it"
                todo.append(made_from)


@contextlib.contextmanager
def _free(store: Store, entry: Entry, days: float) -> Iterator[bool]:
    """Holds the version's lease; whether nothing keeps the version, looked up again."""
    name = lease_name(entry.version)
    if entry.stays or store.leases.holder(name) is not None:
        yield False
        return
    lease: Lease = store.leases.acquire(name, _nobody, lambda: None)
    try:
        with lease.guard():
            now = {one.version.id: one for one in plan(store, days, sizes=False).entries}
            found = now.get(entry.version.id)
            ours = found is not None and found.making and found.stays.startswith("being made")
            yield found is not None and (not found.stays or bool(ours))
    finally:
        lease.release()


def delete(store: Store, entry: Entry, days: float = DAYS) -> bool:
    """Deletes one version that `plan` left without a reason to stay.

    Under its lease, and only if there still is no reason; False if there is. A kill in here leaves
    a folder that is no version, see `leftovers`.
    """
    going = entry.version.folder.with_name(entry.version.id + DELETED_SUFFIX)
    with _free(store, entry, days) as free:
        if not free:
            return False
        entry.version.folder.rename(going)
    remove(going)
    return True


def _nobody(holder: Holder) -> None:
    del holder


def remove(folder: Path) -> None:
    """Removes a folder that `delete` has renamed."""
    for name in (STAGE_FILE, STARTED_FILE):  # first: what is left over is no version
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)  # another `gc` may remove it, too


def leftovers(store: Store) -> list[Path]:
    """Folders that a killed `delete` left."""
    return sorted(store.versions.glob(f"*{DELETED_SUFFIX}")) if store.versions.is_dir() else []


def slim(
    store: Store,
    entry: Entry,
    dropped: tuple[str, ...],
    drop: Callable[[Path], object],
    days: float = DAYS,
) -> int:
    """Drops from a finished version what only continues it; returns the bytes freed.

    The manifest says first which files may be missing, and at the end what is left: a kill in
    between leaves a version that counts, and the next call ends what was begun. A version with
    files that are not as its manifest says is left alone: it would be recorded as good.

    Args:
      store: whose version.
      entry: from `plan`, with no reason to stay.
      dropped: the files that go, and those that are rewritten when they go.
      drop: removes them from the version's folder.
      days: as for `plan`.
    """
    folder = entry.version.folder
    with _free(store, entry, days) as free:
        manifest = store.read(folder).manifest
        if not free or manifest is None or files.changed_files(store.read(folder)):
            return 0
        records.write_json(folder / STAGE_FILE, manifest | {"slimming": list(dropped)})
        drop(folder)
        kept = dict(manifest["files"])
        for name in dropped:
            kept.pop(name, None)
            if (folder / name).is_file():
                kept[name] = files.entry_of(folder / name)
        left = sum(size for size, *_ in kept.values())
        slimmed = {"files": kept, "bytes": left, "slimmed": True, "slimming": []}
        records.write_json(folder / STAGE_FILE, manifest | slimmed)
    return int(manifest["bytes"]) - left


def pin(version: Version, pinned: bool) -> None:
    """Keeps a version from being collected, or no longer."""
    if pinned:
        (version.folder / PINNED).touch()
    else:
        (version.folder / PINNED).unlink(missing_ok=True)
