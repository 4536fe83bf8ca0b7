"""Adopts run folders that were made without a store, and copies of versions, into a store.

An old folder says in its `config.gin` what it was made from. It becomes the version that this
configuration describes today, if its inputs are those that it was made from. First its record is
written in the new form, then it is moved into the store and linked to; a kill in between leaves a
folder that the same command adopts. What cannot be adopted stays unchanged, with the reason.
"""

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from t5x_style.configuration import gin_checks, parameters, signatures
from t5x_style.configuration.gin_reader import FOLDER_MACRO, GinError
from t5x_style.storage import records
from t5x_style.workflow import files, fingerprints, links, plans, stages
from t5x_style.workflow.store import FORMAT, STAGE_FILE, STARTED_FILE, Store, StoreError, version_at

OLD_RECORD = "stage.before_store.json"  # the record that an adopted folder had
CONFIG, OPERATIVE = "config.gin", "operative_config.gin"


def adopt(run: Path, store_root: str | None, allow: Sequence[str] = ()) -> int:
    """Adopts every stage folder of a run; returns the number of those that were not adopted.

    Args:
      run: the run's folder; relative paths in its records count from the current directory.
      store_root: the store; by default that of the run.
      allow: further modules that gin files may import.

    Raises:
      StoreError: there is no stage folder in it.
    """
    store = Store(Path(store_root)) if store_root else links.of_run(run)
    found = [path for path in sorted(run.iterdir()) if _is_stage(path)] if run.is_dir() else []
    if not found:
        raise StoreError(f"{run}: expected folders of stages to adopt, found none")
    left = 0
    for folder in sorted(found, key=_order):
        try:
            _convert(folder, store, allow)
            moved = _move(folder, store)
            print(f"{folder} -> {moved}", flush=True)
        except (
            StoreError, plans.StageError, GinError, fingerprints.InputError,
            signatures.DeclarationError, gin_checks.GinError,
        ) as error:  # fmt: skip
            left += 1
            print(f"{folder} was not adopted: {error}", flush=True)
    return left


def _is_stage(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    return (path / STAGE_FILE).is_file() or (path / STARTED_FILE).is_file()


def _order(folder: Path) -> tuple[bool, str]:
    """Inputs before what was made from them: by the time that they were finished."""
    record = records.read_json(folder / STAGE_FILE)
    return record is None, str((record or {}).get("finished", ""))


def _convert(folder: Path, store: Store, allow: Sequence[str]) -> None:
    """Writes the record of an old folder in the new form; a copy of a version has it already."""
    finished = records.read_json(folder / STAGE_FILE)
    old = finished or records.read_json(folder / STARTED_FILE)
    if old is None:
        raise StoreError("its record was cut short")
    if old.get("format") == FORMAT:
        return
    flags = gin_checks.Flags(
        (str(folder / CONFIG),),
        ((FOLDER_MACRO, repr(str(folder))), (stages.STORE_SETTING, repr(str(store.root)))),
        allow=tuple(allow),
    )
    planned = stages.plan(flags)
    _check_inputs(planned, old)
    _check_defaults(planned, folder, flags)
    started = planned.record() | {
        "token": 0,
        "seconds": old.get("seconds", 0.0),
        "mixed_code": False,
        "parent": None,
        "limit": None,
        "code": old["code"],
        "code_hash": plans.code_hash(old["code"]),
        "adopted_from": old["fingerprint"],
    }
    if finished is None:
        records.write_json(folder / STARTED_FILE, started)
        return
    records.write_json(folder / OLD_RECORD, finished)
    records.write_json(folder / STARTED_FILE, started)
    written = files.files_of(folder)
    manifest = started | {
        "outputs": finished["outputs"],
        "files": written,
        "bytes": sum(size for size, *_ in written.values()),
        "finished": finished["finished"],
        "libraries": finished.get("versions", {}),
    }
    records.write_json(folder / STAGE_FILE, manifest)


def _check_inputs(planned: plans.Plan, old: dict[str, Any]) -> None:
    """The inputs that its configuration names must still be those that it was made from."""
    now = planned.inputs
    for name, value in now.identities.items():
        for key, identity in fingerprints.named(value):
            path = dict(fingerprints.named(now.paths[name]))[key]
            before = old["inputs"].get(f"{name}[{key}]" if key else name)
            if before != _old_identity(identity, path):
                raise StoreError(
                    f"input {name} is {path} now, and that is not what it was made from. Adopt "
                    "the folder that it was made from first, or keep this one unchanged."
                )


def _check_defaults(planned: plans.Plan, folder: Path, flags: gin_checks.Flags) -> None:
    """Defaults that were in use, which `operative_config.gin` holds, must be those of today."""
    if not (folder / OPERATIVE).is_file():
        return
    config = replace(flags, files=(str(folder / CONFIG), str(folder / OPERATIVE))).read()
    used = parameters.of_job(config, planned.entry, planned.inputs.identities).semantic
    now = planned.values.semantic
    if names := fingerprints.differences(used, now):
        found = [f"{name} {used.get(name)}, now {now.get(name)}" for name in names]
        raise StoreError(f"it was made with other defaults: {plans.some(found)}")


def _old_identity(identity: str, path: Any) -> str:
    """Identity of an input in a record without a store."""
    version = version_at(Path(path)) if isinstance(path, str) and path else None
    if version is not None:
        return str(version.record.get("adopted_from", version.record.get("fingerprint")))
    return identity.rpartition("sha256 ")[2]


def _move(folder: Path, store: Store) -> Path:
    """Moves a folder with a new record into the store, and puts a link in its place."""
    record = records.read_json(folder / STAGE_FILE) or records.read_json(folder / STARTED_FILE)
    assert record is not None
    name, fingerprint = record["job"]["name"], record["fingerprint"]
    there = store.revisions_of(name, fingerprint)
    if any(version.manifest for version in there):
        raise StoreError(
            f"the store has this version already, {there[-1].folder}: remove the folder or move it "
            "away, and run the recipe, which links to that version"
        )
    copy = store.read(folder)
    if copy.manifest is not None and (changed := files.changed_files(copy)):
        raise StoreError(f"files are not as its record says: {plans.some(changed)}")
    target = store.new_folder(name, fingerprint)
    try:
        folder.rename(target)
    except OSError as error:
        target.rmdir()
        if error.errno == errno.EXDEV:
            raise StoreError(
                f"the store {store.root} is on another disk. Name one on this disk: --store=PATH"
            ) from error
        raise
    links.point(store, folder, target)
    return target
