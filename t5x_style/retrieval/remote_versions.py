"""Versions of a published folder on object storage: one machine publishes them, others copy them.

    gs://BUCKET/FOLDER/versions/7/...   as in `versioned_folder`; manifest.json is uploaded last

A version is there when its manifest is. The machine that publishes works in a folder of its disk,
which holds the manifests of all versions there, so that numbers increase and are never reused.
Copies elsewhere have all files, compared with the hashes of the manifest.
"""

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from t5x_style.interfaces.index import IndexDamaged
from t5x_style.retrieval import versioned_folder
from t5x_style.retrieval.versioned_folder import MANIFEST
from t5x_style.storage import errors, mirror, objects, places
from t5x_style.storage.errors import StorageError

POLL_SECONDS = 5.0
Manifest = dict[str, Any]


def published(url: str) -> dict[int, int]:
    """Number of each version that is there -> the generation of its manifest, oldest first.

    Raises:
      errors.StorageError: object storage does not answer, or forbids it.
    """
    inside = f"{url}/versions/"
    found = {}
    for one in objects.default().below(inside):
        number, _, name = one.path.removeprefix(inside).partition("/")
        if number.isdigit() and name == MANIFEST:
            found[int(number)] = one.generation
    return dict(sorted(found.items()))


def read_manifest(url: str, number: int) -> Manifest:
    """The manifest of a version there.

    Raises:
      errors.Missing: it is not there (any more).
    """
    content, _ = objects.default().read(f"{url}/versions/{number}/{MANIFEST}")
    found: Manifest = json.loads(content)
    return found


def begin(folder: Path, url: str) -> None:
    """Makes a folder of the disk ready to publish in: it has the manifests of what is there.

    Args:
      folder: nobody else's; what is in it is deleted.
      url: where versions are published.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for number in published(url):
        place = versioned_folder.version_folder(folder, number)
        place.mkdir(parents=True)
        text = json.dumps(read_manifest(url, number))
        versioned_folder.write_atomically(place / MANIFEST, text)


def push(folder: Path, url: str) -> None:
    """Publishes what is new in a folder, and deletes there the versions that it has no more.

    Called again after an error, it continues. What was uploaded leaves the disk but for its
    manifest.

    Raises:
      StorageError: another process publishes to the same place; object storage does not answer.
    """
    there, here = published(url), versioned_folder.published(folder)
    for number in here:
        if number not in there:
            _upload(versioned_folder.version_folder(folder, number), f"{url}/versions/{number}")
    for number in there:
        if number not in here:
            _delete(f"{url}/versions/{number}")


def _upload(place: Path, url: str) -> None:
    mirror.clear(url)  # what a process that was killed has left
    names = list(versioned_folder.read_manifest_alone(place)["files"])
    mirror.in_parallel(lambda name: mirror.upload(place / name, f"{url}/{name}"), names)
    try:
        objects.default().write_if(f"{url}/{MANIFEST}", (place / MANIFEST).read_bytes(), 0)
    except errors.Conflict as error:
        raise StorageError(
            f"{url}: another process has published this version; expected one that builds. End "
            "one of them."
        ) from error
    for name in names:
        (place / name).unlink()


def _delete(url: str) -> None:
    """The manifest first: what is half deleted does not count."""
    with contextlib.suppress(errors.Missing):  # a call before this one may have come so far
        objects.default().delete(f"{url}/{MANIFEST}")
    mirror.clear(url)


def fetch(folder: Path, url: str, number: int) -> None:
    """Copies a version, unless the same one is here; it appears whole or not at all.

    While object storage does not answer, a copy that is here counts as the same one.

    Args:
      folder: of copies; several processes may share it.
      url: where versions are published.
      number: of the version.

    Raises:
      errors.Missing: it is not there (any more).
      IndexDamaged: a file there is not what the manifest says.
      errors.StorageError: object storage forbids it, or does not answer and there is no copy.
    """
    place = versioned_folder.version_folder(folder, number)
    here = _manifest_of(place)
    try:
        manifest = read_manifest(url, number)
    except errors.Unreachable:
        if here is None:
            raise
        return
    if here == manifest:
        return
    copy = place.with_name(f"{number}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        mirror.in_parallel(
            lambda name: mirror.download(
                objects.default().stat(f"{url}/versions/{number}/{name}"), copy / name
            ),
            manifest["files"],
        )
        versioned_folder.write_atomically(copy / MANIFEST, json.dumps(manifest))
        versioned_folder.read_manifest(copy)  # compares hashes
        if place.exists():
            _drop(place)  # another version had this number, in a folder that was deleted since
        copy.rename(place)
    except OSError:
        if _manifest_of(place) != manifest:  # else another process has copied it meanwhile
            raise
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _manifest_of(place: Path) -> Manifest | None:
    try:
        return versioned_folder.read_manifest_alone(place)
    except IndexDamaged:
        return None


def _drop(place: Path) -> None:
    """By another name first: nobody reads half of it."""
    going = place.with_name(f"{place.name}.{os.getpid()}.{threading.get_ident()}.gone.tmp")
    place.rename(going)
    shutil.rmtree(going)


def drop_gone(folder: Path, there: Collection[int]) -> None:
    """Deletes the copies of versions that are gone.

    Args:
      folder: of copies; several processes may share it.
      there: the numbers that are left, see `published`.
    """
    for number in versioned_folder.published(folder):
        if number not in there:
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                _drop(versioned_folder.version_folder(folder, number))


class Copies:
    """Keeps a folder's newest version on this disk, in a thread, and none that is gone there."""

    def __init__(
        self, folder: Path, wanted: Callable[[Manifest], bool], say: Callable[[str], None]
    ):
        """Args:
        folder: the local copy of a folder on object storage; `places` knows which.
        wanted: whether a version is one that this process reads.
        say: prints a line.
        """
        self._folder, self._url = folder, places.remote(folder)
        self._wanted, self._say = wanted, say
        self._known: dict[tuple[int, int], bool] = {}  # (number, generation) -> wanted
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """From now on new versions are copied, unless that was so before."""
        if self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._work, name="copies", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread, after what it copies now."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def _work(self) -> None:
        failed = False
        while True:
            try:
                self.look()
                failed = False
            except (StorageError, IndexDamaged, OSError) as error:
                if not failed:
                    self._say(f"{self._url}: {error}; this is tried again")
                failed = True
            if self._ended.wait(POLL_SECONDS):
                return

    def look(self) -> None:
        """Copies the newest version that is wanted, and drops what is gone there."""
        there = published(self._url)
        drop_gone(self._folder, there)
        for number, generation in reversed(there.items()):
            key = (number, generation)
            if key not in self._known:
                self._known[key] = self._wanted(read_manifest(self._url, number))
            if self._known[key]:
                fetch(self._folder, self._url, number)
                return
