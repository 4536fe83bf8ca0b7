"""Whether a version will fit on the disk and below the store's limit, asked before it is made."""

import re
import shutil
from pathlib import Path
from typing import Any

from t5x_style.workflow import collection, records, store
from t5x_style.workflow.plans import Plan
from t5x_style.workflow.store import STARTED_FILE, Store, Version

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class NoRoom(ValueError):
    """A version that would not fit; the message says what could be deleted to make room."""


def limit_of(value: Any) -> int | None:
    """Reads a STORE_LIMIT.

    >>> limit_of("1.5 GB"), limit_of(2000), limit_of(None)
    (1500000000, 2000, None)

    Raises:
      NoRoom: it is no size.
    """
    if value is None:
        return None
    found = re.fullmatch(r"\s*([0-9_.]+)\s*([A-Za-z]*)\s*", str(value))
    if isinstance(value, bool) or found is None or found[2].upper() not in UNITS:
        raise NoRoom(f"STORE_LIMIT: expected a size such as '200GB' or '1.5TiB', found {value!r}")
    return int(float(found[1]) * UNITS[found[2].upper()])


def in_words(size: float) -> str:
    """Bytes for people.

    >>> in_words(1234567)
    '1.2 MB'
    """
    units = ("B", "KB", "MB", "GB", "TB")
    power = min(len(units) - 1, max(0, len(str(int(size))) - 1) // 3)
    return f"{size / 1000**power:.{min(power, 1)}f} {units[power]}"


def require(planned: Plan) -> None:
    """Before a version is begun: refuses one that is known not to fit.

    The estimate is the size of the most similar finished version of the same job that reads the
    same inputs. Where there is none the size is not known here. A job that can compute its size
    declares so (`"knows_size": True`), and asks `require_room` before its first step.

    Raises:
      NoRoom: it does not fit, with the command that makes room.
    """
    similar = None if planned.job.knows_size else most_similar(planned)
    needed, why = 0, "is not known"
    if similar is not None and similar.manifest is not None:
        needed = int(similar.manifest["bytes"])
        why = f"is estimated from {similar.id}"
    _check(planned.store, planned.link.name, needed, why, planned.limit)


def most_similar(planned: Plan) -> Version | None:
    """The finished version of the job with the same inputs whose parameters differ least."""
    found: list[tuple[int, float, Version]] = []
    new = planned.values.semantic
    for version in planned.store.all():
        if version.manifest is None or version.manifest["job"]["name"] != planned.job.name:
            continue
        if version.manifest["inputs"] != planned.inputs.flat():
            continue
        old = version.manifest["parameters"]
        differing = sum(old.get(name) != new.get(name) for name in {*old, *new})
        found.append((-differing, version.last_used(), version))
    return max(found, key=lambda one: one[:2])[2] if found else None


def require_room(model_dir: str, needed: int) -> None:
    """For a job that knows how many bytes it will write; nothing is checked outside of a store.

    Raises:
      NoRoom: it does not fit, with the command that makes room.
    """
    folder = Path(model_dir)
    found = store.store_of(folder)
    started = records.read_json(folder / STARTED_FILE)
    if found is not None and started is not None:
        there = store.bytes_of(folder)
        why = "is computed from its configuration"
        _check(found, started["name"], max(0, needed - there), why, started.get("limit"))


def _check(found: Store, name: str, needed: int, why: str, limit: Any) -> None:
    existing = next(p for p in (found.root, *found.root.resolve().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    problem = ""
    if needed > free:
        problem = f"{in_words(free)} are free on its disk"
    allowed = limit_of(limit)
    if not problem and allowed is not None and (used := found.size()) + needed > allowed:
        problem = f"it holds {in_words(used)}, and STORE_LIMIT is {in_words(allowed)}"
    if not problem:
        return
    unused = sum(one.bytes for one in collection.plan(found).removable)
    advice = f"  python -m t5x_style.gc --store={found.root} --delete\n"
    freed = (
        f"These versions are in no run and were not used for {collection.DAYS} days; deleting "
        f"them frees {in_words(unused)}:\n{advice}"
        if unused
        else "No version of it is without use. Unlink or move runs that you do not need "
        f"(python -m t5x_style.runs --store={found.root}), then\n{advice}"
    )
    raise NoRoom(
        f"{name} does not fit into the store {found.root}: its size, {in_words(needed)}, {why}; "
        f"{problem}. Nothing of it was written.\n{freed}Then run the same command again."
    )
