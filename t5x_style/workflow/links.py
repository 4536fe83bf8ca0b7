"""Links of runs: `RUN_DIR/<stage>` points to the current version of the stage.

Also where a run's store is: `RUN_DIR/.run.json` remembers it, relative to the run and absolute, so
that a run finds its store again when both are moved together, or the run alone.
"""

import functools
import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t5x_style.storage import objects, places, records
from t5x_style.workflow import remote_store
from t5x_style.workflow.store import (
    ID_DIGITS,
    RUN_FILE,
    STAGE_FILE,
    STARTED_FILE,
    Store,
    StoreError,
    Version,
    store_of,
)

OTHER_FOLDER = "another folder (--gin.RUN_DIR of a recipe, --gin.MODEL_DIR of a stage)"
DEFAULT_NAME = ".store"
DEFAULT_STORE = Path("runs") / DEFAULT_NAME


def point(store: Store, link: Path, folder: Path) -> None:
    """Points a run's link to a version, atomically, and remembers it as a user.

    Raises:
      StoreError: something else is at the link's place; see `check`.
    """
    check(store, link)
    records.point(link, _target(link, folder))
    remote_store.publish_link(link, folder.name)
    _remember(store, link, folder.name)


def _remember(store: Store, link: Path, version: str) -> None:
    """Records in the run where its store is, and in the store that the run uses the version."""
    root, run_dir = store.root.resolve(), link.parent.resolve()
    run = (records.read_json(link.parent / RUN_FILE) or {}).get("run") or uuid.uuid4().hex
    place = {"run": run, "store": os.path.relpath(root, run_dir), "absolute": str(root)}
    _write_once(link.parent / RUN_FILE, place)
    user = {"link": str(run_dir / link.name), "version": version, "run": run}
    name = hashlib.sha256(user["link"].encode()).hexdigest()[:ID_DIGITS]
    path = root / "users" / f"{name}.json"
    if _write_once(path, user):
        for other, moved in _users(store):  # the same link, from where the run was before
            same = moved["run"] == run and Path(moved["link"]).name == link.name
            if same and other.name != path.name and not Path(moved["link"]).parent.is_dir():
                other.unlink(missing_ok=True)


def check(store: Store, link: Path) -> Version | None:
    """The version that a run's link points to; None where there is no link yet.

    Raises:
      StoreError: a folder, a file, or a link out of the store is at its place.
    """
    parent = link.parent.resolve()
    for above in (parent, *parent.parents):
        if (above / STARTED_FILE).exists() or (above / STAGE_FILE).exists():
            raise StoreError(
                f"{link} would be inside {above}, the folder of another stage. "
                f"Choose {OTHER_FOLDER}."
            )
    if link.is_symlink():
        target = link.resolve()
        if target.parent == store.versions.resolve():
            return store.read(target) if target.is_dir() else None
        if target.exists() or not (store.versions / target.name).is_dir():
            raise StoreError(_elsewhere(link, target, store))
        return store.read(store.versions / target.name)  # the run was moved away from its store
    if not link.exists():
        return None
    if not link.is_dir():
        raise StoreError(f"{link} is a file; a stage's link goes there. Move it away.")
    names = os.listdir(link)
    if STAGE_FILE in names or STARTED_FILE in names:
        raise StoreError(
            f"{link} is the folder of a stage that was made without a store, or a copy of a "
            "version. Nothing was changed in it. To continue with it, run\n"
            f"  python -m t5x_style.runs adopt {link.parent}\n"
            "or move it away, and the stage is made in the store."
        )
    if names:
        raise StoreError(
            f"{link} holds files, but no stage of ours wrote them; none is deleted. Choose "
            f"{OTHER_FOLDER}, or move them away."
        )
    return None


def require_writable(folder: Path) -> None:
    """Raises StoreError unless a folder, or the one in which it would be made, can be written."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise StoreError(
            f"{folder}: no permission to write in {there}, expected a folder that can be written. "
            f"Choose {OTHER_FOLDER}, or change the permissions of {there}."
        )


def all_of(store: Store) -> dict[Path, str]:
    """Links that point to a version of this store -> the version's id.

    Those that were remembered, and those in folders next to the store: a run that was moved or
    copied there counts before it is run again. A remembered link whose run folder is not here, as
    on another machine or moved away, counts as it was, until it is forgotten.
    """
    remembered = {Path(user["link"]): str(user["version"]) for _, user in _users(store)}
    around = store.root.resolve().parent
    places = set(remembered)
    for depth in ("*", "*/*"):
        places |= {path for path in around.glob(depth) if path.is_symlink()}
    versions = store.versions.resolve()
    found = {}
    for place in sorted(places):
        target = place.resolve() if place.is_symlink() else None
        if target is not None and target.parent == versions:
            found[place] = target.name
        elif not place.parent.is_dir():
            found[place] = remembered[place]
    return found


def forget(store: Store, run: Path) -> int:
    """Forgets the links of a run whose folder is gone for good; returns how many there were."""
    where = str(run.absolute())
    paths = [path for path, user in _users(store) if os.path.dirname(user["link"]) == where]
    for path in paths:
        path.unlink()
    return len(paths)


def _users(store: Store) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted((store.root / "users").glob("*.json")):
        record = records.read_json(path)
        if record is not None and {"link", "version", "run"} <= record.keys():
            yield path, record


def _write_once(path: Path, value: dict[str, Any]) -> bool:
    """Writes a record; False if it is there already, with that value."""
    if records.read_json(path) == value:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_json(path, value)
    return True


def store_for(run_dir: Path, default: Path) -> Store:
    """The store of a run's folder: the one that it was run with, wherever the folder is now.

    Args:
      run_dir: holds links to stages.
      default: where the store is if the folder was never run.
    """
    record = records.read_json(run_dir / RUN_FILE) or {}
    if record and places.remote(run_dir):  # whether it is there, no disk knows
        return Store(Path(os.path.normpath(run_dir / record["store"])))
    recorded = [run_dir / record["store"], Path(record["absolute"])] if record else []
    for root in recorded:
        if (root / "versions").is_dir():
            inside = os.path.normpath(root)  # relative where the run's path is
            return Store(Path(inside) if Path(inside).resolve() == root.resolve() else root)
    return Store(default)


def open_store(name: str | None) -> Store:
    """The store of that folder, or that of `runs/`.

    Raises:
      StoreError: there is none.
    """
    store = Store(places.local(name) if name else DEFAULT_STORE)
    remote_store.refresh(store)
    if not store.versions.is_dir():
        raise StoreError(
            f"{store.root}: expected a store, a folder with versions/, found none. Name it with "
            "--store=PATH; a recipe prints where its store is."
        )
    return store


def of_run(run_dir: Path) -> Store:
    """The store that a run's folder was run with, or `.store` next to the folder."""
    return store_for(run_dir, Path(os.path.normpath(run_dir / ".." / DEFAULT_NAME)))


def run_here(run: str) -> Path:
    """The folder of a run on this machine; of one on object storage, with its links and records.

    Raises:
      paths.PathError: it looks remote, and is not gs://BUCKET/NAME.
      errors.StorageError: object storage does not answer, or forbids it.
    """
    folder = places.local(run)
    remote_store.has_run_file(folder)
    remote_store.refresh(of_run(folder), folder)
    return folder


@functools.cache
def follow(path: str) -> None:
    """Copies the link of a run that a path on object storage leads through, and its records.

    Looked up once in each process: what a process reads does not change under it.

    Raises:
      errors.StorageError: object storage does not answer, or forbids it.
    """
    where = places.local(path)
    for place in (where, *where.parents):
        url = places.remote(place)
        if not places.remote(place.parent):
            return
        if objects.default().find(url + remote_store.LINK):
            run_here(places.remote(place.parent))
            return


def of_stage(link: Path) -> Store:
    """The store of a stage that is run by hand, with no store named.

    That of the folder that the link is in, if that is a run's; else `.store` in it or in the one
    above, where there is one (a recipe puts it there); else a new one next to the link.
    """
    remote_store.has_run_file(link.parent)
    above = Path(os.path.normpath(link.parent / ".." / DEFAULT_NAME))
    here = link.parent / DEFAULT_NAME
    is_above = (above / "versions").is_dir() and not (here / "versions").is_dir()
    return store_for(link.parent, above if is_above else here)


def _target(link: Path, folder: Path) -> str:
    """Target of the link: relative where run and store are moved together, else absolute."""
    store = folder.resolve().parent.parent
    base = link.parent.resolve()
    if store.parent == base.parent or store.parent == base:
        return os.path.relpath(folder.resolve(), base)
    return str(folder.resolve())


def _elsewhere(link: Path, target: Path, store: Store) -> str:
    other = store_of(target)
    found = f"{link} points to {target}, outside of the store {store.root}"
    if not target.exists():
        return (
            f"{found}, and there is nothing: the run folder was moved away from its store, or the "
            "store was. Name the store where it is now (--gin.STORE=PATH for a recipe, "
            "--gin.stage.run.store=PATH for a stage), or remove the link to start without it."
        )
    advice = "remove the link"
    if other:
        advice = f"name that store (recipe: --gin.STORE={other.root}; stage: --gin.stage.run.store)"
    return f"{found}. Nothing was written there. Either {advice}, or choose {OTHER_FOLDER}."
