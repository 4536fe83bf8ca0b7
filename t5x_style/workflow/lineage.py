"""Lineage: the versions that led to some files, found through the manifests' `made_from`."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from t5x_style.workflow.store import Store, Version, version_at


def lineage(paths: Iterable[str | Path]) -> list[Version]:
    """Finished versions that hold the paths, and all versions that those were made from.

    Ancestors are looked up by id in the store of the version that names them. One that was deleted
    since, or is in another store, is left out with its own ancestors.

    Args:
      paths: files or folders; links are followed. One outside of every store adds nothing.

    Returns:
      Each version once, in the order in which they finished; of those that finished in the same
      second an ancestor comes first.
    """
    found: list[Version] = []
    seen: set[Path] = set()
    for path in paths:
        version = version_at(Path(path))
        if version is not None:
            found.extend(_with_ancestors(version, seen))
    return sorted(found, key=lambda one: str(one.record["finished"]))  # stable


def _with_ancestors(version: Version, seen: set[Path]) -> Iterator[Version]:
    """The version after all that it was made from, without those that were seen before."""
    folder = version.folder.resolve()
    if version.manifest is None or folder in seen:
        return
    seen.add(folder)
    store = Store(folder.parent.parent)
    for name in version.manifest["made_from"]:
        yield from _with_ancestors(store.read(store.versions / name), seen)
    yield version
