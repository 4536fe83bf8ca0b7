"""Indexes in folders: built, measured and published by any `IndexType`, and opened again.

The manifest of a version names the type that made it, as the dotted path of its class, and holds
its settings: so what opens an index names no implementation, and a new one is a file of its own.
"""

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_style.configuration import renames
from t5x_style.configuration.gin_reader import ALLOWED
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces import representation
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import DENSE
from t5x_style.retrieval import exact_index, versioned_folder
from t5x_style.retrieval.encoding import Embeddings, load_embeddings

# Folders of ScaNN's type hold a short name, from before there were others.
_SHORT_NAMES = {"t5x_style.retrieval.scann_index.Scann": "scann"}
_IDS = "ids.json"
_SAMPLE = 256  # passages whose neighbours measure the recall of a new index
_RECALL_AT = 10
_ROUNDING = 1e-5  # of a product in float32, relative to the vectors' lengths, with room
_BLOCK = 65_536  # vectors that are read at a time

WriteMore = Callable[[Path], Mapping[str, Any]]


class RecallError(ValueError):
    """An index finds too little of what exact search finds."""


class IndexTypeError(ValueError):
    """A folder was written by a type of index, or with settings, not known here."""


def publish(
    folder: str | Path,
    embeddings: Embeddings,
    index: index_lib.IndexType,
    keep: int,
    minimum_recall: float = 0.0,
    more: WriteMore | None = None,
) -> index_lib.Index:
    """Builds an index, measures its recall on a sample of its own passages, and publishes it.

    Args:
      folder: where versions are published.
      embeddings: vectors [N, D] float32, ids and contract of all passages.
      index: the type that is built.
      keep: how many versions stay on disk.
      minimum_recall: an index that finds less of the exact top 10 is not published.
      more: writes further files into the version's folder; what it returns joins the manifest.

    Raises:
      RecallError: recall is below `minimum_recall`; what was published before stays.
      PublishError: no room, or no permission to write; what was published before stays, too.
      RepresentationError: the index holds another kind of representation than vectors.
      ValueError: vectors, ids and contract do not belong together.
    """
    built = _built(embeddings, index)
    if built.recall < minimum_recall:
        raise RecallError(
            f"expected recall@{_RECALL_AT} of at least {minimum_recall} against exact search, "
            f"measured {built.recall:.4f} with {index}. Change these settings to look at more "
            "(ScaNN: raise searched_share or reorder)."
        )
    count, dimension = embeddings.vectors.shape
    manifest = {
        "kind": _name_of(index),
        "checkpoint": embeddings.checkpoint,
        "count": count,
        "dimension": dimension,
        "settings": dataclasses.asdict(index),
        "recall": {"at": _RECALL_AT, "sample": min(_SAMPLE, count), "value": built.recall},
    }
    with versioned_folder.new_version(folder, manifest, keep) as version:
        built.save(version)
        (version / _IDS).write_text(json.dumps(list(embeddings.ids)), encoding="utf-8")
        embeddings.contract.save(version)
        manifest |= {} if more is None else more(version)
    return built


def from_embeddings(embeddings: str, index: index_lib.IndexType) -> index_lib.Index:
    """An index that is built now, and is not written.

    Args:
      embeddings: folder that `encode_corpus` wrote.
      index: the type that is built.
    """
    return _built(load_embeddings(embeddings), index)


def load(folder: str | Path, fall_back_to_exact: bool = False) -> index_lib.Index:
    """The current version of a published index.

    Args:
      folder: that `publish` published to.
      fall_back_to_exact: on a machine that does not run the index, such as a CPU that ScaNN does
        not support, search the stored vectors exactly.

    Raises:
      IndexDamaged: a file is missing, cut short or changed, or the folder carries a pickle.
      IndexTypeError: its type of index, or one of its settings, is not known here.
      UnsupportedMachine: and no fall-back was asked for, or the folder holds no vectors.
    """
    return load_version(versioned_folder.current(folder), fall_back_to_exact)


def load_version(version: Path, fall_back_to_exact: bool = False) -> index_lib.Index:
    """One version of a published index; arguments and errors as for `load`."""
    manifest = versioned_folder.read_manifest(version)
    type_of_index = _type_in(manifest, version)
    record = index_lib.IndexRecord(
        json.loads((version / _IDS).read_text(encoding="utf-8")),
        Contract.load(version),
        manifest.get("checkpoint", ""),
        manifest["recall"]["value"],
    )
    try:
        return type_of_index.load(version, record)
    except index_lib.UnsupportedMachine:
        vectors = type_of_index.stored_vectors(version) if fall_back_to_exact else None
        if vectors is None:
            raise
        return exact_index.Exact().build(vectors, record)


def measure_recall(index: index_lib.Index, vectors: index_lib.Vectors) -> float:
    """Share of the exact top 10 that the index finds, for evenly spaced passages as queries.

    A passage that scores as high as the last of the exact top 10, to rounding, counts as one of
    them: which of equals is listed says nothing about an index.

    Args:
      index: of `vectors`.
      vectors: [N, D] float32.
    """
    count = len(vectors)
    sample = np.unique(np.linspace(0, count - 1, min(_SAMPLE, count)).astype(np.int64))
    queries, k = vectors[sample], min(_RECALL_AT, count)
    exact_scores, _ = exact_index.top_k(queries, vectors, k)
    _, rows = index.search(queries, k)
    found_vectors = vectors[np.maximum(rows, 0).reshape(-1)].reshape(*rows.shape, -1)
    scores = np.einsum("qd,qkd->qk", queries, found_vectors)
    lengths = [
        np.linalg.norm(vectors[start : start + _BLOCK], axis=1).max()
        for start in range(0, count, _BLOCK)
    ]  # REALM's vectors are no unit vectors
    slack = _ROUNDING * np.max(lengths) * np.linalg.norm(queries, axis=1, keepdims=True)
    found = (scores >= exact_scores[:, -1:] - slack) & (rows != index_lib.NO_ROW)
    return float(found.mean())


def _built(embeddings: Embeddings, index: index_lib.IndexType) -> index_lib.SavableIndex:
    """An index in memory that knows its recall."""
    if index.kind != DENSE:
        raise representation.RepresentationError(
            f"{index} holds representations of kind {index.kind!r}, but an index is built from "
            f"vectors, of kind {DENSE!r}: no other kind can be built yet."
        )
    vectors = embeddings.vectors
    index_lib.check_embeddings(vectors, embeddings.ids)
    index_lib.check_inner_product(embeddings.contract, vectors.shape[1])
    record = index_lib.IndexRecord(embeddings.ids, embeddings.contract, embeddings.checkpoint)
    built = index.build(vectors, record)
    built.recall = measure_recall(built, vectors)
    return built


def _name_of(index: index_lib.IndexType) -> str:
    """What a manifest calls a type."""
    path = f"{type(index).__module__}.{type(index).__qualname__}"
    return _SHORT_NAMES.get(path, path)


def _type_in(manifest: Mapping[str, Any], where: Path) -> index_lib.IndexType:
    """The type that a manifest names, with the settings that it records.

    Raises:
      IndexTypeError: no such type, or it does not take these settings.
    """
    found, settings = _type_named(manifest["kind"], where), manifest["settings"]
    try:
        return found(**settings)
    except (TypeError, ValueError) as error:
        raise IndexTypeError(
            f"{where}: an index of type {manifest['kind']!r} with the settings {settings}, which "
            f"this checkout's {found.__name__} does not take ({error}). Check out the code that "
            "made it, or build it again."
        ) from error


def _type_named(name: str, where: Path) -> type[index_lib.IndexType]:
    """The type that a manifest names.

    A folder may come from anywhere, so its name alone imports nothing but Kennel's own modules:
    any other one has to be imported already, by a gin file that names it.

    Raises:
      IndexTypeError: no such type, or its module was not imported.
      ModuleNotFoundError: its module needs one that is not installed.
    """
    long_names = {short: path for path, short in _SHORT_NAMES.items()}
    path = renames.present(long_names.get(name, name))
    module, _, class_name = path.rpartition(".")
    package = module.partition(".")[0]
    if package not in (*ALLOWED, "") and module not in sys.modules:
        raise IndexTypeError(
            f"{where}: an index of type {name!r}, but {module} is not imported. If you trust that "
            f"code, import it in the gin file and pass --gin_allow={package}."
        )
    try:
        found = getattr(importlib.import_module(module), class_name, None) if package else None
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # one that the index's module imports
            raise
        found = None
    if not (isinstance(found, type) and issubclass(found, index_lib.IndexType)):
        raise IndexTypeError(
            f"{where}: an index of type {name!r}, expected the path of a subclass of "
            "interfaces.index.IndexType. Check out the code that made it, or build it again."
        )
    return found
