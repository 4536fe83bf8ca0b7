"""Garbage collection of a store: shows which versions may go, and deletes them on request.

    python -m t5x_style.gc                      # what may go, and how much that frees
    python -m t5x_style.gc --delete             # asks, then deletes it
    python -m t5x_style.gc --slim --delete      # drops optimizer states instead

A version stays if a run links to it, if it is pinned (`python -m t5x_style.runs pin`), if it was
used in the last `--days`, if it is being made, or if one that stays was made from it.
"""

import argparse
import sys
from collections.abc import Sequence

from t5x_style.configuration import command_flags
from t5x_style.workflow import collection, links, stage_runner
from t5x_style.workflow.collection import Entry
from t5x_style.workflow.space import in_words
from t5x_style.workflow.store import Store, StoreError

OPTIMIZER = "/optimizer/"  # in the paths of what continues a training


def collect(store: Store, days: float, delete: bool, slim: bool, sure: bool) -> int:
    """Shows what may go, and with `delete` deletes it; returns the exit code."""
    if store.url:
        raise StoreError(
            f"{store.url}: versions on object storage are not deleted by this command. "
            f"kennel runs --store={store.url} lists them; delete one with: gcloud storage rm "
            f"--recursive {store.url}/versions/ID"
        )
    if not days >= 0:
        raise StoreError(f"--days: expected a number >= 0, found {days}")
    planned = collection.plan(store, days)
    sizes = {
        one.version.id: _optimizer_bytes(one) if slim else one.bytes for one in planned.entries
    }
    entries = [one for one in planned.removable if not slim or sizes[one.version.id]]
    for entry in entries:
        state = "finished" if entry.version.manifest else entry.version.damage or "unfinished"
        print(f"{entry.version.id}  {state}  {in_words(sizes[entry.version.id])} to free")
    leftovers = collection.leftovers(store)
    for path in leftovers:
        print(f"{path.name}  left over from a deletion that was stopped")
    total = sum(sizes[entry.version.id] for entry in entries)
    kept = len(planned.entries) - len(entries)
    print(f"{store.root}: {len(entries)} versions, {in_words(total)} to free; {kept} stay")
    if not entries and not leftovers:
        return 0
    if not delete:
        print("This was a dry run, nothing was deleted. --delete deletes, after asking.")
        return 0
    if not sure and not _confirmed(len(entries), total, slim):
        print("Nothing was deleted.")
        return 1
    freed = 0
    for entry in entries:
        if slim:
            freed += _slim(store, entry, days)
        elif collection.delete(store, entry, days):
            freed += entry.bytes
        else:
            print(f"{entry.version.id} stays: it is used now")
    for path in leftovers:
        collection.remove(path)
    print(f"freed {in_words(freed)}")
    return 0


def _confirmed(count: int, total: int, slim: bool) -> bool:
    if not sys.stdin.isatty():
        print("Cannot ask: stdin is not a terminal. --yes deletes without asking.", file=sys.stderr)
        return False
    what = "Drop the optimizer states of" if slim else "Delete"
    return input(f"{what} {count} versions, {in_words(total)}? [y/N] ").strip().lower() == "y"


def _optimizer_bytes(entry: Entry) -> int:
    files = (entry.version.manifest or {}).get("files", {})
    return sum(size for name, (size, *_) in files.items() if OPTIMIZER in name)


def _slim(store: Store, entry: Entry, days: float) -> int:
    from t5x_style.checkpoints import checkpoint_directory, checksums  # import JAX

    names = (entry.version.manifest or {})["files"]
    touched = tuple(n for n in names if OPTIMIZER in n or n.endswith(f"/{checksums.FILE_NAME}"))
    freed = collection.slim(store, entry, touched, checkpoint_directory.drop_optimizers, days)
    if not freed:
        print(f"{entry.version.id} is kept: it is used now, or its files have changed")
    return freed


def main(argv: Sequence[str]) -> int:
    """Returns the exit code; 1 with a message where something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command_flags.add_gc(parser)
    parser.set_defaults(days=collection.DAYS)
    options = parser.parse_args(argv)
    settings = (options.days, options.delete, options.slim, options.yes)
    return stage_runner.guarded(
        lambda _: collect(links.open_store(options.store), *settings),
        ["--traceback"] * options.traceback,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
