"""Garbage collection of a store: shows what may go, and deletes it when told to.

    python -m t5x_style.gc                      # what may go, and how much that frees
    python -m t5x_style.gc --delete             # asks, then deletes it
    python -m t5x_style.gc --slim --delete      # drops optimizer states instead

A version stays if a run links to it, if it is pinned (`python -m t5x_style.runs pin`), if it was
used in the last `--days`, if it is being made, or if one that stays was made from it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from t5x_style import stage_main
from t5x_style.workflow import collection
from t5x_style.workflow.collection import Entry
from t5x_style.workflow.space import in_words
from t5x_style.workflow.store import Store, StoreError

DEFAULT_STORE = Path("runs/.store")


def open_store(name: str | None) -> Store:
    """The store that `--store` names, else that of `runs/`.

    Raises:
      StoreError: there is none.
    """
    store = Store(Path(name) if name else DEFAULT_STORE)
    if not store.versions.is_dir():
        raise StoreError(
            f"{store.root}: expected a store, a folder with versions/, found none. Name it with "
            "--store=PATH; a recipe prints where its store is."
        )
    return store


def collect(store: Store, days: float, delete: bool, slim: bool, sure: bool) -> int:
    """Shows what may go, and with `delete` deletes it; returns the exit code."""
    planned = collection.plan(store, days)
    entries = planned.removable
    if slim:
        entries = [one for one in entries if _slims(one)]
    kept = len(planned.entries) - len(entries)
    verb = "may lose its optimizer state" if slim else "may go"
    for entry in entries:
        state = "finished" if entry.version.manifest else entry.version.damage or "unfinished"
        print(f"{entry.version.id}  {state}  {in_words(entry.bytes)}  {verb}")
    leftovers = collection.leftovers(store)
    for path in leftovers:
        print(f"{path.name}  left over from a deletion that was stopped")
    total = sum(entry.bytes for entry in entries)
    what = "of them optimizer states" if slim else "to free"
    print(f"{store.root}: {len(entries)} versions, {in_words(total)} {what}; {kept} stay")
    if not entries and not leftovers:
        return 0
    if not delete:
        print("Nothing was deleted: this was a dry run; --delete deletes them.")
        return 0
    if not sure and not _confirmed(len(entries), total, slim):
        print("Nothing was deleted.")
        return 1
    freed = _slim(store, entries) if slim else _delete(store, entries, leftovers)
    print(f"freed {in_words(freed)}")
    return 0


def _confirmed(count: int, total: int, slim: bool) -> bool:
    if not sys.stdin.isatty():
        print("Nobody is there to be asked; --yes deletes without asking.", file=sys.stderr)
        return False
    what = "Drop the optimizer states of" if slim else "Delete"
    return input(f"{what} {count} versions, {in_words(total)}? [y/N] ").strip().lower() == "y"


def _delete(store: Store, entries: Sequence[Entry], leftovers: Sequence[Path]) -> int:
    freed = 0
    for path in leftovers:
        collection.remove(path)
    for entry in entries:
        if collection.delete(store, entry):
            freed += entry.bytes
        else:
            print(f"{entry.version.id} stays: it is in use now")
    return freed


def _slims(entry: Entry) -> bool:
    manifest = entry.version.manifest or {}
    return any("/optimizer/" in name for name in manifest.get("files", ()))


def _slim(store: Store, entries: Sequence[Entry]) -> int:
    from t5x_style import checkpoint_folder  # imports JAX

    return sum(collection.slim(store, one, checkpoint_folder.drop_optimizers) for one in entries)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code; 1 with a message where something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", help=f"folder of the store; default: {DEFAULT_STORE}")
    parser.add_argument(
        "--days", type=float, default=collection.DAYS, help="used more recently: stays; default 7"
    )
    parser.add_argument("--delete", action="store_true", help="delete, after asking")
    parser.add_argument("--slim", action="store_true", help="drop optimizer states only")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--traceback", action="store_true", help="show where an error arose")
    options = parser.parse_args(argv)
    settings = (options.days, options.delete, options.slim, options.yes)
    return stage_main.guarded(
        lambda _: collect(open_store(options.store), *settings),
        ["--traceback"] * options.traceback,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
