"""Files and folders on object storage that no stage wrote, such as a corpus: copied to be read.

Generations say whether a copy is still what is there; only what changed is downloaded again.
"""

import fcntl
import functools
import json
from pathlib import Path

from t5x_style.storage import mirror, objects, paths, places
from t5x_style.storage.objects import Stat

_STATES = "inputs"  # below the cache: what each copy is of


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
    state = places.cache() / _STATES / f"{url.removeprefix(paths.SCHEME).replace('/', '%')}.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    with open(state, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = json.loads(file.read() or "{}")
        changed = [one for one in files if known.get(one.path) != _seen(one)]
        mirror.in_parallel(lambda one: mirror.download(one, places.local(one.path)), changed)
        for gone in known.keys() - {one.path for one in files}:
            places.local(gone).unlink(missing_ok=True)
        file.truncate(0)
        file.write(json.dumps({one.path: _seen(one) for one in files}))
    return copy


def _seen(there: Stat) -> list[int]:
    """The object's generation, and the stamp of its copy; no stamp where there is none."""
    path = places.local(there.path)
    return [there.generation, *(mirror.stamp(path) if path.is_file() else ())]
