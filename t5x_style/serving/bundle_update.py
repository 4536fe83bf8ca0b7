"""A next version of a bundle with other passages, of which only those that changed are encoded.

    {"_id": "7", "title": "...", "text": "...", "source": "..."}    added, or in the place of 7
    {"_id": "8", "delete": true}

Passages keep their order; added ones come last. What all passages became is the same as if each had
been encoded again.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import (
    DENSE,
    MULTI_VECTOR,
    Entries,
    Representation,
)
from t5x_style.retrieval import representation_files, versioned_folder
from t5x_style.retrieval.beir_collection import Passage, Passages
from t5x_style.retrieval.lexical.bm25_fusion import Fusion
from t5x_style.retrieval.token_vectors import int8
from t5x_style.serving import bundle, bundling, programs, text_tokens, training_curves
from t5x_style.serving.bundle import BundleError, Content

_FIELDS = {"_id", "title", "text", "source", "delete"}
_SLACK = 1e-2  # of a stored number, which may be kept in half precision or as int8


@dataclasses.dataclass(frozen=True)
class Changes:
    """What an update does.

    Attributes:
      given: passages to add, or to put in the place of those with their ids.
      deleted: ids.
    """

    given: Mapping[str, Passage]
    deleted: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> "Changes":
        """Of a file of the module's lines.

        Raises:
          BundleError: a line that is none of these, or an id in two lines.
          FileNotFoundError: there is no such file.
        """
        given: dict[str, Passage] = {}
        deleted: set[str] = set()
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                record = _record(line, f"{path}:{number}")
                name = record["_id"]
                if name in given or name in deleted:
                    raise BundleError(f"{path}:{number}: the id {name!r} is in a line before")
                if record.get("delete"):
                    deleted.add(name)
                else:
                    title, source = record.get("title") or "", record.get("source") or ""
                    given[name] = Passage(name, title, record["text"], source)
        if not given and not deleted:
            raise BundleError(f"{path}: expected at least one change, found none")
        return cls(given, frozenset(deleted))


@dataclasses.dataclass(frozen=True)
class Updated:
    """What an update did.

    Attributes:
      version: its folder.
      encoded, deleted, unchanged: how many passages; a re-ranker's bundle encodes none.
    """

    version: Path
    encoded: int
    deleted: int
    unchanged: int


def update(folder: Path, changes: Changes, keep: int = 2) -> Updated:
    """Publishes the next version of a bundle, after other updates of it that began before.

    Args:
      folder: of the bundle.
      changes: to its current version.
      keep: versions that stay on disk.

    Raises:
      BundleError: an id to delete that the bundle does not have, no passage is left, or what is
        stored is not what its programs make of the passages.
      IndexDamaged: the current version is damaged.
      PublishError: see `bundle.publish`.
    """
    versioned_folder.current(folder)  # says what a folder without a version should be
    with bundle.changing(folder):
        return _updated(folder, changes, keep)


def _updated(folder: Path, changes: Changes, keep: int) -> Updated:
    """`update`, while nobody else makes a version."""
    version = versioned_folder.current(folder)
    manifest = bundle.read_manifest(version)
    passages, contract = Passages(version), Contract.load(version)
    unknown = sorted(changes.deleted - set(passages.ids))
    if unknown:
        raise BundleError(
            f"{folder}: expected ids of its {len(passages)} passages to delete, found "
            f"{len(unknown)} others, the first is {unknown[0]!r}"
        )
    # A passage of the new version is a row of the old one, or one of those that are encoded.
    new: list[Passage] = []
    order: list[int] = []
    kept: list[Passage] = []
    for row, one in enumerate(passages):
        given = changes.given.get(one.id, one)
        if one.id in changes.deleted:
            continue
        same = given.content == one.content
        order.append(row if same else len(passages) + len(new))
        kept.append(given)
        new += [] if same else [given]
    added = [one for name, one in changes.given.items() if name not in passages]
    order += range(len(passages) + len(new), len(passages) + len(new) + len(added))
    new, kept = new + added, kept + added
    if not kept:
        raise BundleError(f"{folder}: no passage would be left; a bundle has at least one")
    held = {
        kind: representation_files.read(version / bundle.REPRESENTATIONS, kind)
        for kind in manifest["kinds"]
    }
    merged = _merged(held, _encoded(version, contract, passages, held, new), order)
    parts = version / programs.FOLDER, version / text_tokens.FOLDER
    facts = manifest["checkpoint"], manifest.get("origin", "")
    curves = training_curves.read(version)
    content = Content(
        *(manifest["name"], contract, *parts, kept, merged, *facts, curves),
        changes=bundle.changes(folder) + 1,
        fusion=Fusion.load(version),
    )
    # The lock keeps others away, but for disks without locks, and copies by hand.
    made = bundle.publish(folder, content, keep, after=int(version.name))
    return Updated(made, len(new) if held else 0, len(changes.deleted), len(kept) - len(new))


def _encoded(
    version: Path,
    contract: Contract,
    passages: Passages,
    held: Mapping[str, Representation],
    new: Sequence[Passage],
) -> Mapping[str, Representation]:
    """By kind what new passages become; the first stored one is encoded, too, to be compared."""
    if not new or not held:
        return {kind: one[:0] for kind, one in held.items()}
    found = bundling.encode(
        *(version / programs.FOLDER, version / text_tokens.FOLDER, contract),
        [passages.passage(0), *new],
        list(held),
    )
    for kind, one in found.items():
        before, after = (_numbers(kind, part[:1]) for part in (held[kind], one))
        if before.shape != after.shape or not np.allclose(before, after, atol=_SLACK):
            raise BundleError(
                f"{version}: what is stored of kind {kind!r} is not what its programs make of the "
                "passages: vectors of tokens are pooled, for instance. Make the bundle again of "
                "the run with the new passages."
            )
    return {kind: one[1:] for kind, one in found.items()}


def _numbers(kind: str, one: Representation) -> np.ndarray:
    if kind == DENSE:
        return np.asarray(one, np.float32)
    name = "vectors" if kind == MULTI_VECTOR else "weights"
    return np.asarray(one.arrays[name], np.float32)


def _merged(
    held: Mapping[str, Representation], new: Mapping[str, Representation], order: Sequence[int]
) -> dict[str, Representation]:
    """Rows of the old and then of the new, in an order; int8 stays int8."""
    rows = np.asarray(order, np.int64)
    found: dict[str, Representation] = {}
    for kind, old in held.items():
        if kind == DENSE:
            found[kind] = np.concatenate([np.asarray(old, np.float32), new[kind]])[rows]
            continue
        offsets = np.concatenate([old.offsets, old.offsets[-1] + new[kind].offsets[1:]])
        arrays = {
            name: np.concatenate([array[: len(array)], new[kind].arrays[name]])
            for name, array in old.arrays.items()
        }
        merged = Entries(offsets, arrays)[rows]
        if isinstance(old.arrays.get("vectors"), int8.Int8Vectors):
            vectors = int8.quantised(merged.arrays["vectors"])
            merged = Entries(merged.offsets, {"vectors": vectors})
        found[kind] = merged
    return found


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise BundleError(f"{where}: not JSON in UTF-8 ({error})") from error
    if not isinstance(record, dict) or not isinstance(record.get("_id"), str):
        raise BundleError(f"{where}: expected an object with a string in '_id'")
    unknown = sorted(record.keys() - _FIELDS)
    wanted = [] if record.get("delete") else ["text"]
    texts = {name: record.get(name) for name in ("title", "source", *wanted)}
    wrong = [
        name
        for name, value in texts.items()
        if not isinstance(value, str) and (name in wanted or value is not None)
    ]
    if unknown or wrong or record.get("delete", False) not in (True, False):
        raise BundleError(
            f"{where}: expected _id and text, and perhaps title and source, as strings; or _id and "
            f'"delete": true; found {sorted(record)}'
        )
    return record
