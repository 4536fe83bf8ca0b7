"""Making a version: its folder, its records, and the moment from which it counts."""

import contextlib
import importlib.metadata
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from t5x_style.configuration.gin_reader import FOLDER_MACRO, closest
from t5x_style.leases.lease import Lease
from t5x_style.storage import fetched, records
from t5x_style.storage.errors import StorageError
from t5x_style.workflow import (
    continuation,
    files,
    fingerprints,
    links,
    remote_store,
    space,
    store,
)
from t5x_style.workflow.plans import Decision, Plan, StageError, is_of_code, some
from t5x_style.workflow.store import HERE_FILE, STAGE_FILE, STARTED_FILE, Version, version_at

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tensorflow-cpu")


def begin(
    planned: Plan, decision: Decision, lease: Lease, process_start: float | None = None
) -> Path:
    """The folder to write, marked as ours and linked to; the caller holds the version's lease.

    Args:
      planned, decision: what is made, and why.
      lease: of the version.
      process_start: of this process, in seconds since the epoch; None: not known.

    Raises:
      space.NoRoom: the version would not fit.
      leases.LeaseLost: another process has acquired the lease already.
    """
    version = decision.version
    before: dict[str, Any] = {}
    if decision.status == "resume" and version is not None:
        folder, before = version.folder, version.started
        if lease.before == "silent" or before.get("silent"):
            folder = _copy(planned, version, lease)
        else:
            remote_store.pull(planned.store, folder)
    else:
        space.require(planned)
        folder = planned.store.new_folder(planned.job.name, planned.fingerprint)
        found = continuation.parent(planned)
        before = {"parent": None if found is None else found.id}
    other_code = bool(before.get("code")) and before["code"] != planned.code
    record = planned.record() | {
        "token": lease.token,
        "seconds": before.get("seconds", 0.0),
        "process_start": process_start,
        "mixed_code": bool(before.get("mixed_code")) or other_code,
        "parent": before.get("parent"),  # what the job may continue
        "continues": before.get("continues"),  # what it did continue
        "limit": planned.limit,
    }
    with lease.guard():
        records.write_json(folder / STARTED_FILE, record)
    remote_store.mark(planned.store, folder, lease.token)
    links.point(planned.store, planned.link, folder)
    for name in [*record["made_from"], *filter(None, [record["parent"]])]:
        planned.store.mark_used(planned.store.versions / name)  # nothing collects it meanwhile
    return folder


def _copy(planned: Plan, silent: Version, lease: Lease) -> Path:
    """A copy to continue in: whoever stopped without dying may wake up and write to its folder."""
    with lease.guard():  # whoever follows copies, too, should this process be stopped here
        marked = silent.started | {"silent": True}
        records.write_json(silent.folder / STARTED_FILE, marked)
    if remote_store.fence(silent.folder / STAGE_FILE, lease):
        raise StageError(f"{silent.id} was finished in this moment. Run the same command again.")
    remote_store.pull(planned.store, silent.folder)
    size = store.bytes_of(silent.folder)
    space.check(planned.store, planned.link.name, size, planned.limit, f"a copy of {silent.id}")
    folder = planned.store.new_folder(planned.job.name, planned.fingerprint)
    not_copied = (STARTED_FILE, STAGE_FILE, HERE_FILE, fetched.LIST, fetched.FETCHING)
    shutil.copytree(
        silent.folder,
        folder,
        ignore=shutil.ignore_patterns(*not_copied),
        dirs_exist_ok=True,
        symlinks=True,
    )
    remote_store.push(planned.store, folder)  # before the record that lets others continue it
    return folder


def read_by(planned: Plan, folder: Path) -> list[Version]:
    """The versions whose files the job may read: its inputs, and what it may continue."""
    paths = [path for one in planned.inputs.paths.values() for _, path in fingerprints.named(one)]
    found = [version_at(Path(path)) for path in paths if isinstance(path, str) and path]
    parent = (records.read_json(folder / STARTED_FILE) or {}).get("parent")
    if parent:
        found.append(planned.store.read(planned.store.versions / parent))
    return [version for version in found if version is not None]


def use(planned: Plan, version: Version) -> None:
    """Makes a finished version the current one.

    Raises:
      StageError: it was deleted in this very moment.
    """
    planned.store.mark_used(version.folder)  # first: from now on nothing collects it
    links.point(planned.store, planned.link, version.folder)
    if not (version.folder / STAGE_FILE).is_file():
        raise StageError(f"{version.folder} was just deleted. Run the same command again.")


def finish(planned: Plan, folder: Path, outputs: Any, seconds: float, lease: Lease) -> None:
    """Writes the manifest: from now on the version is finished.

    Raises:
      StageError: the job did not write what it returned, or an input changed meanwhile.
      leases.LeaseLost: another process has acquired the lease meanwhile; nothing is recorded.
    """
    checked = check_outputs(folder, outputs, planned.entry)
    started = records.read_json(folder / STARTED_FILE) or {}
    check_inputs(planned, folder, started)
    written = files.files_of(folder)
    parent = started.get("continues")
    record = planned.record()
    mixed = bool(started.get("mixed_code"))
    if parent:
        continued = planned.store.read(planned.store.versions / parent)
        mixed = mixed or not is_of_code(continued, planned.code)
    manifest = {
        **record,
        "made_from": sorted({*record["made_from"], *([parent] if parent else [])}),
        "token": lease.token,
        "mixed_code": mixed,
        "parent": parent,
        "outputs": checked,
        "files": written,
        "bytes": sum(size for size, *_ in written.values()),
        "seconds": round(started.get("seconds", 0.0) + seconds, 3),
        "finished": store.now(),
        "libraries": libraries(),
    }
    remote_store.require_pushed(planned.store, folder, written)
    remote_store.publish(folder / STAGE_FILE, manifest, lease)
    remote_store.keep(planned.store, folder, written)


def check_inputs(planned: Plan, folder: Path, started: dict[str, Any]) -> None:
    """Refuses what was made while its inputs changed: nobody knows what it was made from."""
    try:
        now = fingerprints.of_inputs(planned.inputs.paths).flat()
    except fingerprints.InputError as error:
        changed = str(error)
    else:
        changed = some(fingerprints.differences(planned.inputs.flat(), now))
    if changed:
        records.write_json(folder / STARTED_FILE, started | {"spoiled": changed})
        raise StageError(
            f"{planned.link}: inputs changed while the stage ran: {changed}. What it made is not "
            "recorded. Run the same command again: it starts from the current inputs."
        )


def check_outputs(folder: Path, outputs: Any, job: str) -> dict[str, str]:
    """Refuses outputs that are not a dict of existing relative paths."""
    if not isinstance(outputs, dict) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in outputs.items()
    ):
        raise StageError(
            f"{job} must return its outputs, a dict of name -> path relative to {FOLDER_MACRO}, "
            f"or None when it was stopped; found {outputs!r}."
        )
    for name, path in outputs.items():
        inside = (folder / path).resolve().is_relative_to(folder.resolve())
        if os.path.isabs(path) or not inside or not (folder / path).exists():
            present = [p.name for p in folder.iterdir()]
            raise StageError(
                f"{job} promised output {name!r} at {path!r}, but {folder} has no such path"
                f"{closest(path, present)}"
            )
    return outputs


def add_seconds(folder: Path, seconds: float) -> None:
    """Remembers the time that a stopped run has spent; the run that finishes adds its own."""
    record = records.read_json(folder / STARTED_FILE)
    if record:
        total = record.get("seconds", 0.0) + seconds
        # a full disk, object storage that is away: the time is the least of what is missing
        with contextlib.suppress(OSError, StorageError):
            records.write_json(folder / STARTED_FILE, record | {"seconds": total})


def parent_of(model_dir: str) -> Path | None:
    """The shorter, finished version that the one being made in this folder may continue."""
    record = records.read_json(Path(model_dir) / STARTED_FILE) or {}
    found = store.store_of(Path(model_dir))
    if found is None or not record.get("parent"):
        return None
    folder = found.versions / record["parent"]
    return folder if (folder / STAGE_FILE).is_file() else None


def continues(model_dir: str, parent: Path) -> None:
    """Records that the job really continues what `parent_of` gave; the manifest will say so."""
    path = Path(model_dir) / STARTED_FILE
    record = records.read_json(path)
    if record is not None:
        records.write_json(path, record | {"continues": parent.name})


def process_start(model_dir: str) -> float | None:
    """Start time of the process that makes the version in this folder; None where no stage does."""
    record = records.read_json(Path(model_dir) / STARTED_FILE) or {}
    found = record.get("process_start")
    return None if found is None else float(found)


def name_of(model_dir: str) -> str:
    """Name of the stage that is being made in this folder, for people who watch it."""
    record = records.read_json(Path(model_dir) / STARTED_FILE) or {}
    return str(record.get("name") or Path(model_dir).name)


def libraries() -> dict[str, str]:
    """Versions of Python and of the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
