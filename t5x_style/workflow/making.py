"""Making a version: its folder, its records, and the moment from which it counts."""

import contextlib
import importlib.metadata
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from t5x_style.gin_reader import FOLDER_MACRO, closest
from t5x_style.workflow import continuation, files, links, records, space, store
from t5x_style.workflow.leases import Lease
from t5x_style.workflow.plans import Decision, Plan, StageError
from t5x_style.workflow.store import STAGE_FILE, STARTED_FILE

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tensorflow-cpu")


def begin(planned: Plan, decision: Decision, lease: Lease) -> Path:
    """The folder to write, marked as ours and linked to; the caller holds the version's lease.

    Raises:
      space.NoRoom: the version would not fit.
    """
    version = decision.version
    seconds, mixed, parent = 0.0, False, None
    if decision.status == "resume" and version is not None:
        folder, before = version.folder, version.started
        seconds, parent = before.get("seconds", 0.0), before.get("parent")
        mixed = bool(before.get("mixed_code")) or before["code"] != planned.code
        if lease.before == "silent":
            folder = _copy(planned, folder)
    else:
        space.require(planned)
        folder = planned.store.new_folder(planned.job.name, planned.fingerprint)
        found = continuation.parent(planned)
        parent = None if found is None else found.id
    record = planned.record() | {
        "token": lease.token,
        "seconds": seconds,
        "mixed_code": mixed,
        "parent": parent,
        "limit": planned.limit,
    }
    record["made_from"] = sorted({*record["made_from"], *([parent] if parent else [])})
    records.write_json(folder / STARTED_FILE, record)
    links.point(planned.store, planned.link, folder)
    for name in record["made_from"]:  # nothing collects them while they are read
        planned.store.mark_used(planned.store.versions / name)
    return folder


def _copy(planned: Plan, silent: Path) -> Path:
    """A copy to continue in: whoever stopped without dying may wake up and write to its folder."""
    folder = planned.store.new_folder(planned.job.name, planned.fingerprint)
    names = shutil.ignore_patterns(STARTED_FILE, STAGE_FILE)
    shutil.copytree(silent, folder, ignore=names, dirs_exist_ok=True, symlinks=True)
    return folder


def finish(planned: Plan, folder: Path, outputs: Any, seconds: float, lease: Lease) -> None:
    """Writes the manifest: from now on the version is finished.

    Raises:
      StageError: the job did not write what it returned.
      leases.LeaseLost: another process has taken over meanwhile; nothing is recorded.
    """
    checked = check_outputs(folder, outputs, planned.entry)
    started = records.read_json(folder / STARTED_FILE) or {}
    written = files.files_of(folder)
    manifest = started | {
        "outputs": checked,
        "files": written,
        "bytes": sum(size for size, *_ in written.values()),
        "seconds": round(started.get("seconds", 0.0) + seconds, 3),
        "finished": store.now(),
        "libraries": libraries(),
    }
    with lease.guard():
        records.write_json(folder / STAGE_FILE, manifest)


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
        with contextlib.suppress(OSError):  # a full disk: the time is the least of what is missing
            records.write_json(folder / STARTED_FILE, record | {"seconds": total})


def parent_of(model_dir: str) -> Path | None:
    """The shorter, finished version that the one being made in this folder may continue."""
    record = records.read_json(Path(model_dir) / STARTED_FILE) or {}
    found = store.store_of(Path(model_dir))
    if found is None or not record.get("parent"):
        return None
    folder = found.versions / record["parent"]
    return folder if (folder / STAGE_FILE).is_file() else None


def name_of(model_dir: str) -> str:
    """What to call the stage that is being made in this folder, for people who watch it."""
    record = records.read_json(Path(model_dir) / STARTED_FILE) or {}
    return str(record.get("name") or Path(model_dir).name)


def libraries() -> dict[str, str]:
    """Versions of Python and of the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
