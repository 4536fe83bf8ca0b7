"""Check that a version will fit on the disk and below the store's limit, before it is made."""

import shutil
from pathlib import Path
from typing import Any

from t5x_style.storage import records, sizes
from t5x_style.workflow import collection, store
from t5x_style.workflow.plans import Plan
from t5x_style.workflow.store import STARTED_FILE, Store, Version


class NoRoom(ValueError):
    """A version that would not fit; the message says what could be deleted to free space."""


def limit_of(value: Any) -> int | None:
    """Reads a STORE_LIMIT.

    >>> limit_of("1.5 GB"), limit_of(2000), limit_of(None)
    (1500000000, 2000, None)

    Raises:
      NoRoom: it is no size.
    """
    if value is None:
        return None
    found = None if isinstance(value, bool) else sizes.parse(str(value))
    if found is None:
        raise NoRoom(f"STORE_LIMIT: expected a size such as '200GB' or '1.5TiB', found {value!r}")
    return found


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
      NoRoom: it does not fit, with the command that frees space.
    """
    similar = None if planned.job.knows_size else most_similar(planned)
    needed, how = 0, ""
    if similar is not None and similar.manifest is not None:
        needed, how = int(similar.manifest["bytes"]), f"as {similar.id}"
    check(planned.store, planned.link.name, needed, planned.limit, how)


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
      NoRoom: it does not fit, with the command that frees space.
    """
    folder = Path(model_dir)
    found = store.store_of(folder)
    started = records.read_json(folder / STARTED_FILE)
    if found is not None and started is not None:
        more = max(0, needed - store.bytes_of(folder))
        check(found, started["name"], more, started.get("limit"), "by its configuration")


def check(found: Store, name: str, needed: int, limit: Any, how: str = "") -> None:
    """Refuses a stage that needs more bytes than are free, or than `limit` leaves.

    Args:
      found: the store.
      name: of the stage.
      needed: bytes; 0 where nothing is known.
      limit: STORE_LIMIT, as the user wrote it.
      how: how the size is known, in words.

    Raises:
      NoRoom: with the command that frees space.
    """
    existing = next(p for p in (found.root, *found.root.resolve().parents) if p.exists())
    free, allowed = shutil.disk_usage(existing).free, limit_of(limit)
    if needed > free:
        problem = f"{in_words(free)} are free on its disk"
    elif allowed is not None and (used := found.size()) + needed > allowed:
        problem = f"it holds {in_words(used)}, and STORE_LIMIT is {in_words(allowed)}"
    else:
        return
    size = f"its size is {in_words(needed)} ({how})" if needed else "its size is not known"
    raise NoRoom(
        f"{name} does not fit into the store {found.root}: {size}; {problem}. Nothing of it was "
        f"written.\n{_advice(found)}\nThen run the same command again."
    )


def _advice(found: Store) -> str:
    """The command that frees space, and how much it frees."""
    command = f"  python -m t5x_style.gc --store={found.root} --delete"
    unused = sum(one.bytes for one in collection.plan(found).removable)
    if unused:
        return (
            f"Versions in no run, not used for {collection.DAYS:.0f} days, take "
            f"{in_words(unused)}. This deletes them, after asking:\n{command}"
        )
    recent = sum(one.bytes for one in collection.plan(found, days=0).removable)
    if recent:
        return (
            f"Versions in no run, all used in the last {collection.DAYS:.0f} days, take "
            f"{in_words(recent)}. This deletes them, after asking:\n{command} --days=0"
        )
    return (
        "Every version is in use. Remove the links of runs that you do not need (python -m "
        f"t5x_style.runs --store={found.root} lists them), and run\n{command} --days=0"
    )
