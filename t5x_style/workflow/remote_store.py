"""A store on object storage: what is copied here, and when a local version counts there.

The local copy of a store (`storage.places`) is a store like any other, in which some versions are
known by their records alone: their files come when a stage reads them. What a stage makes is
pushed while it runs, and its manifest last; it is the manifest there that counts. A run's link to a
version is an object there, `RUN_DIR/<stage>.link`.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t5x_style.configuration.gin_checks import Flags
from t5x_style.configuration.gin_reader import transform
from t5x_style.leases.lease import Lease
from t5x_style.leases.object_leases import FENCED
from t5x_style.storage import errors, mirror, objects, places, records, remote_inputs
from t5x_style.storage import fetched as folders
from t5x_style.storage.fetched import File
from t5x_style.storage.mirror import Mirror, Pusher
from t5x_style.workflow import files
from t5x_style.workflow.store import (
    HERE_FILE,
    OWN_FILES,
    RUN_FILE,
    STAGE_FILE,
    STARTED_FILE,
    Store,
    StoreError,
    Version,
    version_at,
)

LINK = ".link"
PUSH_SECONDS = 10.0  # what a preemption costs at most, besides the steps since the last checkpoint


def refresh(store: Store, run_dir: Path | None = None) -> None:
    """Copies the records that others have written there: of versions, and a run's links.

    Args:
      store: nothing happens for one that is not on object storage.
      run_dir: a run whose links are wanted.

    Raises:
      errors.StorageError: object storage does not answer, or forbids it.
    """
    if not store.url:
        return
    before = store.all()  # the listing need not have what is finished meanwhile
    _, found = objects.default().children(f"{store.url}/versions/")
    there = {path.rpartition("/")[2] for path in found}
    mirror.in_parallel(lambda name: _refresh(store.versions / name), there)
    for version in before:
        if version.manifest is not None and version.id not in there:  # deleted there
            shutil.rmtree(version.folder)
    if run_dir is not None:
        _refresh_run(store, run_dir)


def _refresh(folder: Path) -> None:
    """A version's records; the manifest never changes."""
    if (folder / STAGE_FILE).is_file():
        return
    content = _content(folder / STARTED_FILE)
    here = records.read_json(folder / STARTED_FILE) or {}
    # the process that makes it here may have written a newer one since
    if content and json.loads(content).get("token", 0) > here.get("token", 0):
        _write(folder / STARTED_FILE, content)
    content = _content(folder / STAGE_FILE)
    if content and FENCED not in (manifest := json.loads(content)):
        _drop_stale(Version(folder, {"files": {}} | manifest))
        _write(folder / STAGE_FILE, content)


def _drop_stale(finished: Version) -> None:
    """Deletes what this machine has of a version from before another one finished it.

    It would pass for files that somebody edited. Whoever reads the version fetches it.
    """
    for name in files.changed_files(finished):
        (finished.folder / name).unlink(missing_ok=True)


def _refresh_run(store: Store, run_dir: Path) -> None:
    if not places.remote(run_dir):
        return
    copy_record(run_dir / RUN_FILE)
    links, _ = objects.default().children(places.remote(run_dir))
    for there in links:
        if there.path.endswith(LINK):
            copy_link(store, there.path, known=True)


def copy_link(store: Store, there: str, known: bool = False) -> None:
    """Makes a run's link here what it is there.

    Args:
      store: of the version.
      there: the link's object.
      known: only if the version's records are here.
    """
    with contextlib.suppress(errors.Missing):  # removed meanwhile
        content, _ = objects.default().read(there)
        target = store.versions / content.decode()
        link = places.local(there.removesuffix(LINK))
        if target.is_dir() or not known:
            records.point(link, os.path.relpath(target, link.parent))


def has_run_file(run_dir: Path) -> bool:
    """Copies the record of a run on object storage that was run before; whether there is one."""
    if not places.remote(run_dir):
        return False
    copy_record(run_dir / RUN_FILE)
    return (run_dir / RUN_FILE).is_file()


def copy_record(path: Path) -> None:
    """Copies a record, if it is there, and on object storage; an equal one keeps its time."""
    content = _content(path)
    if content is not None and not (path.is_file() and path.read_text("utf-8") == content):
        _write(path, content)


def _content(path: Path) -> str | None:
    """Of a record there; None where there is none, or the path is on no object storage."""
    url = places.remote(path)
    try:
        return objects.default().read(url)[0].decode() if url else None
    except errors.Missing:
        return None


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_here(path, content)


def publish_link(link: Path, version: str) -> None:
    """Writes there which version a run's link leads to, where the run is on object storage."""
    if url := places.remote(link):
        objects.default().write(url + LINK, version.encode())


def remove_link(link: Path) -> None:
    """Removes a run's link to a version, here and where the run is on object storage."""
    link.unlink(missing_ok=True)
    if url := places.remote(link):
        with contextlib.suppress(errors.Missing):
            objects.default().delete(url + LINK)


def link_target(link: Path) -> str:
    """The id of the version that a run's link there leads to; "" where there is none."""
    try:
        return objects.default().read(places.remote(link) + LINK)[0].decode()
    except errors.Missing:
        return ""


def is_finished(store: Store, version: str) -> bool:
    """Whether the manifest of a version is there."""
    content = _content(store.versions / version / STAGE_FILE)
    return content is not None and FENCED not in json.loads(content)


def publish_file(path: Path) -> None:
    """Uploads a file of a run, such as its page, where the run is on object storage."""
    if url := places.remote(path):
        mirror.upload(path, url)


def publish(path: Path, manifest: Mapping[str, object], lease: Lease) -> None:
    """Writes a version's manifest: there first, since that one counts.

    Raises:
      leases.LeaseLost: another process has acquired the lease.
    """
    url = places.remote(path)
    lease.publish(url or path, manifest)
    if url:
        records.write_here(path, json.dumps(manifest, indent=1))


def fence(path: Path, lease: Lease) -> bool:
    """After this, who held the lease before cannot publish the manifest at this path.

    Returns:
      whether it had published it already; then it is here.
    """
    lease.fence(places.remote(path) or path)
    content = _content(path)
    if content is None or FENCED in json.loads(content):
        return False
    _write(path, content)
    return True


@contextlib.contextmanager
def joined(store: Store, folder: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Inside, a version's folder is here, and what this process writes to it is pushed.

    On a process that shares the disk of process 0, it is here already, and process 0 pushes.

    Args:
      store: nothing happens for one that is not on object storage.
      folder: of a version that process 0 has begun.
      say: prints a line.

    Yields:
      the folder.
    """
    if not store.url or _was_written_here(folder):
        yield folder
        return
    pull(store, folder)
    copy_record(folder / STARTED_FILE)
    with pushed(store, folder, say):
        yield folder


def complete(store: Store, folder: Path) -> None:
    """Copies what other processes have pushed to a version's folder, on the disk of process 0."""
    if store.url:
        _mirror(folder).complete()


def pull(store: Store, folder: Path) -> None:
    """Makes the folder of an unfinished version what object storage has of it.

    Where its last writer was a process of this machine, files that were not pushed stay.
    """
    if store.url:
        ours = _was_written_here(folder)
        (folder / folders.LIST).unlink(missing_ok=True)  # it is no copy any more
        for path in [path for path in folder.rglob(".*.tmp") if path.is_file()]:
            path.unlink()  # of a process that was killed
        _mirror(folder).pull(ours)


def mark(store: Store, folder: Path, token: int) -> None:
    """Notes, on this machine alone, which attempt writes a version's files here."""
    if store.url:
        records.write_here(folder / HERE_FILE, json.dumps({"token": token}))


def _was_written_here(folder: Path) -> bool:
    """Whether the last attempt to make a version was that of a process with this disk."""
    there = json.loads(_content(folder / STARTED_FILE) or "{}")
    here = records.read_json(folder / HERE_FILE)
    return here is not None and here["token"] == there.get("token")


def push(store: Store, folder: Path) -> None:
    """Pushes what is in a version's folder."""
    if store.url:
        _mirror(folder).push()


def require_pushed(store: Store, folder: Path, written: Iterable[str]) -> None:
    """Before the manifest: all files that it will name are there.

    Raises:
      StoreError: some are not.
    """
    lacking = _mirror(folder).lacks(written) if store.url else []
    if lacking:
        raise StoreError(
            f"{places.shown(folder)}: expected all files of the version there, found none or "
            f"others for {', '.join(lacking[:3])} ({len(lacking)} files). Run the same command "
            "again: it continues."
        )


@contextlib.contextmanager
def pushed(store: Store, folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Pushes what is written to a version's folder meanwhile, and on leaving all that is left.

    Args:
      store: nothing happens for one that is not on object storage.
      folder: as `pull` has left it, or a new one.
      say: prints a line.
    """
    if not store.url:
        yield
        return
    pusher = Pusher(_mirror(folder), PUSH_SECONDS, say)
    try:
        yield
    finally:
        pusher.end()


def _mirror(folder: Path) -> Mirror:
    url = places.remote(folder)
    return Mirror(folder, url, lambda name: name not in OWN_FILES, guard=STARTED_FILE)


def keep(store: Store, folder: Path, written: Mapping[str, object]) -> None:
    """Marks the files of a version made here as deletable: they are in the remote store, too.

    Args:
      store: nothing happens for one that is not on object storage.
      folder: of the version, all of whose files were pushed.
      written: their names.
    """
    if store.url:
        folders.add(folder, written)


@contextlib.contextmanager
def fetched(versions: Iterable[Version]) -> Iterator[None]:
    """Inside, the files of finished versions are here.

    Args:
      versions: of any store; nothing happens for those that are not on object storage.

    Raises:
      fetched.FetchError: a file is not there, is not what the manifest says, or the disk is full.
    """
    with contextlib.ExitStack() as kept:
        for version in {one.folder: one for one in versions if one.url}.values():
            assert version.manifest is not None
            wanted = {name: File(*entry) for name, entry in version.manifest["files"].items()}
            kept.enter_context(folders.kept(version.folder, wanted))
        yield


def with_files(path: Path) -> Path:
    """A path in a finished version, all of whose files are here now."""
    version = version_at(path)
    assert version is not None
    with fetched([version]):
        return path


@contextlib.contextmanager
def named_here(flags: Flags, names: Collection[str] | None = None) -> Iterator[Flags]:
    """Inside, what macros name on object storage is here, and in these flags they name it here.

    Args:
      flags: such as those of a configuration that a stage has saved, `config.gin`.
      names: of the macros; None: all of them.

    Raises:
      fetched.FetchError: see `fetched`.
    """
    with contextlib.ExitStack() as kept:
        seen: set[Path] = set()

        def here(leaf: Any) -> Any:
            if not isinstance(leaf, str) or not places.is_remote(leaf):
                return leaf
            version = version_at(places.local(leaf))
            if version is None:
                remote_inputs.fetch(leaf)
            elif version.folder not in seen:
                seen.add(version.folder)
                kept.enter_context(fetched([version]))
            return str(places.local(leaf))

        macros = flags.read().macros.items()
        named = {name: one.value for name, one in macros if names is None or name in names}
        changed = {name: transform(value, here) for name, value in named.items()}
        yield flags.with_macros({n: v for n, v in changed.items() if v != named[n]})
