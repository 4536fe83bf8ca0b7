"""Lists the versions of a store, pins and verifies them, and adopts run folders made without one.

    python -m t5x_style.runs                          # all versions of runs/.store
    python -m t5x_style.runs list runs/quickstart     # of the stages of one run
    python -m t5x_style.runs pin train-3f2a9c0d1e2b4a5c
    python -m t5x_style.runs unpin train-3f2a9c0d1e2b4a5c
    python -m t5x_style.runs verify [ID ...]          # hashes every file again
    python -m t5x_style.runs adopt runs/quickstart    # moves old folders into the store
    python -m t5x_style.runs forget runs/quickstart   # a run folder that is gone for good

`*` marks a version that a run links to; under a version, what differs from the one that is current
for the same stage.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from t5x_style.configuration import command_flags
from t5x_style.configuration.gin_reader import closest
from t5x_style.workflow import adoption, collection, files, fingerprints, links, plans, stage_runner
from t5x_style.workflow.collection import Entry
from t5x_style.workflow.space import in_words
from t5x_style.workflow.store import Store, StoreError, Version, store_of

SHOWN = 4  # differences


def show(store: Store, run: Path | None) -> None:
    """Prints the versions of a store, or of the stages of one run."""
    entries = collection.plan(store).entries
    shown = None if run is None else _stages(store, run)
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        record = entry.version.record
        key = (record.get("name", "?"), record.get("job", {}).get("name", "?"))
        if shown is None or key in shown:
            groups.setdefault(key, []).append(entry)
    total = sum(entry.bytes for group in groups.values() for entry in group)
    count = sum(map(len, groups.values()))
    print(f"{store.root}: {count} versions, {in_words(total)}")
    for (name, job), group in sorted(groups.items()):
        print(f"\n{name} (job {job})")
        group.sort(key=lambda entry: (not entry.links, -entry.used))
        current = group[0]
        for entry in group:
            _print(entry, current)


def _stages(store: Store, run: Path) -> set[tuple[str, str]]:
    """(name, job) of the versions that a run links to, as they were called when they were made."""
    where = run.resolve()
    ids = [name for link, name in links.all_of(store).items() if link.parent.resolve() == where]
    if not ids:
        raise StoreError(f"{run}: no link in it points to the store {store.root}.")
    found = [store.read(store.versions / name).record for name in ids]
    return {(one.get("name", "?"), one.get("job", {}).get("name", "?")) for one in found}


def _print(entry: Entry, current: Entry) -> None:
    version, manifest = entry.version, entry.version.manifest
    state = f"finished {manifest['finished']}" if manifest else version.damage or "unfinished"
    mark = "*" if entry.links else " "
    runs = ", ".join(sorted({str(_shown(link)) for link in entry.links}))
    keeps = "pinned" if (version.folder / collection.PINNED).exists() else ""
    if entry.making:
        state = f"being made by {entry.making}"
    took = f"took {manifest['seconds']:,.0f} s" if manifest else ""
    used = f"used {_ago(entry.used)}"
    parts = [version.id, state, took, in_words(entry.bytes), used, runs, keeps]
    print(f"{mark} " + "  ".join(part for part in parts if part))
    if entry is not current:
        old, new = current.version.record, version.record
        if differing := _differences(old, new):
            print(f"    {plans.some(differing, SHOWN)}")


def _differences(old: dict, new: dict) -> list[str]:
    found = plans.differing(old.get("parameters", {}), new.get("parameters", {}))
    code = fingerprints.differences(old.get("code", {}), new.get("code", {}))
    return found + ([f"code: {plans.some(code, 2)}"] if code else [])


def _shown(link: Path) -> Path:
    """A link as one would type it here."""
    here = Path.cwd()
    return link.relative_to(here) if link.is_relative_to(here) else link


def _ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"


def versions_named(store: Store, names: Sequence[str]) -> list[Version]:
    """Versions by id, by the start of one, or by a link.

    Raises:
      StoreError: there is none, or several begin alike.
    """
    known = {version.id: version for version in store.all()}
    found = []
    for name in names:
        link = Path(name)
        target = link.resolve().name if link.is_symlink() else name
        other = store_of(link) if link.is_symlink() else None
        if other is not None and other.root.resolve() != store.root.resolve():
            raise StoreError(f"{name} points into the store {other.root}: add --store={other.root}")
        matches = [one for one in known if one == target] or [
            one for one in known if one.startswith(target)
        ]
        if len(matches) != 1:
            what = f"{len(matches)} versions start with this" if matches else "no such version"
            raise StoreError(f"{name}: {what} in {store.root}{closest(target, known)}")
        found.append(known[matches[0]])
    return found


def verify(versions: Sequence[Version]) -> int:
    """Hashes the files of finished versions again; returns the number of those that changed."""
    damaged = 0
    for version in versions:
        if version.manifest is None:
            print(f"{version.id}: {version.damage or 'unfinished'}")
            continue
        changed = files.changed_files(version, thorough=True)
        damaged += bool(changed)
        print(f"{version.id}: {'changed: ' + plans.some(changed) if changed else 'intact'}")
    return damaged


def act(options: argparse.Namespace) -> int:
    """Does what the command line says; returns the exit code."""
    if options.action == "adopt":
        if len(options.names) != 1:
            raise StoreError("adopt: name one run folder, such as runs/quickstart")
        left = adoption.adopt(Path(options.names[0]), options.store, options.gin_allow)
        return 1 if left else 0
    run = links.run_here(options.names[0]) if options.action == "list" and options.names else None
    if run is not None and options.store is None:
        store = links.of_run(run)
    else:
        store = links.open_store(options.store)
    if options.action == "list":
        show(store, run)
        return 0
    if store.url and options.action != "forget":
        raise StoreError(f"{options.action}: expected a store of this machine, found {store.url}")
    if options.action == "verify":
        chosen = versions_named(store, options.names) if options.names else store.all()
        return 1 if verify(chosen) else 0
    if options.action == "forget":
        count = sum(links.forget(store, Path(name)) for name in options.names)
        print(f"forgot {count} links; what nothing else uses may go now (python -m t5x_style.gc)")
        return 0
    if not options.names:
        raise StoreError(f"{options.action}: name the versions, by id or by link")
    for version in versions_named(store, options.names):
        collection.pin(version, options.action == "pin")
        print(f"{version.id}: {'pinned' if options.action == 'pin' else 'no longer pinned'}")
    return 0


def main(argv: Sequence[str]) -> int:
    """Returns the exit code; 1 with a message where something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command_flags.add_runs(parser)
    options = parser.parse_args(argv)
    return stage_runner.guarded(lambda _: act(options), ["--traceback"] * options.traceback)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
