"""Files and folders on object storage that no stage wrote, such as a corpus: copied to be read.

Generations say whether a copy is still what is there; only what changed is downloaded again.
"""

import fcntl
import functools
import json
import os
from pathlib import Path

from t5x_style.storage import mirror, objects, places
from t5x_style.storage.objects import Stat

_STATE = "inputs.json"  # below the cache: URL -> generation, and stamp of the copy


@functools.cache
def fetch(url: str) -> Path | None:
    """The copy of a file, or of a folder with all that is in it; None where there is neither.

    Looked up once in each process: what a process reads does not change under it.

    Args:
      url: gs://BUCKET/PATH.

    Raises:
      paths.PathError: it is no such path.
      errors.StorageError: object storage does not answer, or forbids it.
    """
    copy = places.local(url)
    url = places.remote(copy)
    file_there = objects.default().find(url)
    files = [file_there] if file_there else objects.default().below(url)
    if not files:
        return None
    places.cache().mkdir(parents=True, exist_ok=True)
    with open(places.cache() / f".{_STATE}.lock", "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _known()
        changed = [one for one in files if known.get(one.path) != _seen(one)]
        mirror.in_parallel(_download, changed)
        named = {one.path for one in files}
        gone = {one for one in known if one.startswith(f"{url}/")} - named
        for path in [*map(places.local, gone), *_temporary(copy)]:
            path.unlink(missing_ok=True)
        known = {one: seen for one, seen in known.items() if one not in gone}
        known |= {one.path: _seen(one) for one in files}
        (places.cache() / _STATE).write_text(json.dumps(known), encoding="utf-8")
    return copy


def _known() -> dict[str, list[int]]:
    """Sources of copies; {} where the record was cut short: they are downloaded again."""
    try:
        return dict(json.loads((places.cache() / _STATE).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}


def _download(there: Stat) -> None:
    """Downloads a file, which gets the object's time: large files are identified by it."""
    path = places.local(there.path)
    mirror.download(there, path)
    written = int(there.updated.timestamp() * 1000) * 10**6
    os.utime(path, ns=(written, written))


def _temporary(copy: Path) -> list[Path]:
    """Remains of killed downloads."""
    found = copy.rglob(".*.tmp") if copy.is_dir() else copy.parent.glob(f".{copy.name}.*.tmp")
    return list(found)


def _seen(there: Stat) -> list[int]:
    """The object's generation, and the stamp of its copy; no stamp where there is none."""
    path = places.local(there.path)
    return [there.generation, *(mirror.stamp(path) if path.is_file() else ())]
