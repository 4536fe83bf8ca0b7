"""Indexes in folders: built, measured and published by any `IndexType`, and opened again.

The manifest of a version names the type that made it, as the dotted path of its class, and holds
its settings: so what opens an index names no implementation, and a new one needs one new file.
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
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import (
    DENSE,
    MULTI_VECTOR,
    PASSAGE,
    QUERY,
    SPARSE,
    Representation,
    RepresentationError,
    blocks,
)
from t5x_style.retrieval import exact_index, similarity, versioned_folder
from t5x_style.retrieval.encoding import Embeddings, load_embeddings

# Folders of ScaNN's type hold a short name, from before there were others.
_SHORT_NAMES = {"t5x_style.retrieval.scann_index.Scann": "scann"}
_IDS = "ids.json"
# Passages whose neighbours measure the recall of a new index; MaxSim is slow
_SAMPLE = {DENSE: 256, SPARSE: 256, MULTI_VECTOR: 32}
_RECALL_AT = 10
_ROUNDING = 1e-5  # of a product in float32, relative to the vectors' lengths, with a margin

WriteMore = Callable[[Path], Mapping[str, Any]]


class RecallError(ValueError):
    """An index finds too little of what exact search finds.

    Attributes:
      recall: share of it that was found.
    """

    def __init__(self, message: str, recall: float) -> None:
        super().__init__(message)
        self.recall = recall


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
      embeddings: of all passages, of the kind that the index holds.
      index: the type that is built.
      keep: how many versions stay on disk.
      minimum_recall: an index that finds less of the exact top 10 is not published.
      more: writes further files into the version's folder; what it returns joins the manifest.

    Raises:
      RecallError: recall is below `minimum_recall`; what was published before stays.
      PublishError: the disk is full or not writable; what was published before stays, too.
      RepresentationError: the index holds another kind of representation.
      ValueError: passages, ids and contract do not belong together.
    """
    built, sample = measured(embeddings, index, minimum_recall)
    passages, kind = embeddings.passages, embeddings.kind
    described = _described(index)
    manifest = {
        "kind": described["kind"],
        "checkpoint": embeddings.checkpoint,
        "count": len(passages),
        **({"dimension": passages.shape[1]} if kind == DENSE else {}),
        "settings": described["settings"],
        "recall": {"at": _RECALL_AT, "sample": sample, "value": built.recall},
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
    return measured(load_embeddings(embeddings, index.kind), index)[0]


def measured(
    embeddings: Embeddings, index: index_lib.IndexType, minimum_recall: float = 0.0
) -> tuple[index_lib.SavableIndex, int]:
    """An index in memory that knows its recall, and how many queries measured it.

    Arguments and errors as for `publish`.
    """
    if index.kind != embeddings.kind:
        raise RepresentationError(
            f"{index} holds representations of kind {index.kind!r}, but the embeddings are of kind "
            f"{embeddings.kind!r}. Choose another type of index, or load embeddings of its kind."
        )
    passages = embeddings.passages
    index_lib.check_passages(index.kind, passages, embeddings.ids)
    if index.kind == DENSE:
        index_lib.check_inner_product(embeddings.contract, passages.shape[1])
    record = index_lib.IndexRecord(embeddings.ids, embeddings.contract, embeddings.checkpoint)
    built = index.build(passages, record)
    built.recall, sample = measure_recall(built, passages)
    if built.recall < minimum_recall:
        raise RecallError(
            f"expected recall@{_RECALL_AT} of at least {minimum_recall} against exact search, "
            f"measured {built.recall:.4f} with {index}. Change these settings to look at more "
            "(ScaNN: raise searched_share or reorder).",
            built.recall,
        )
    return built, sample


def load(folder: str | Path, fall_back_to_exact: bool = False) -> index_lib.Index:
    """The current version of a published index.

    Args:
      folder: that `publish` published to.
      fall_back_to_exact: on a machine that does not run the index, such as a CPU that ScaNN does
        not support, search the stored passages exactly.

    Raises:
      IndexDamaged: a file is missing, cut short or changed, or the folder carries a pickle.
      IndexTypeError: its type of index, or one of its settings, is not known here.
      UnsupportedMachine: and no fall-back was asked for, or the folder does not hold the passages.
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
        passages = type_of_index.stored_passages(version) if fall_back_to_exact else None
        if passages is None:
            raise
        parts = record.ids, record.contract, record.checkpoint, type_of_index.kind
        return exact_index.ExactIndex(passages, *parts)


def measure_recall(index: index_lib.Index, passages: Representation) -> tuple[float, int]:
    """Share of the exact top 10 that the index finds, for evenly spaced passages as queries.

    A passage that scores as high as the last of the exact top 10, to rounding, counts as one of
    them: which of equals is listed says nothing about an index.

    Args:
      index: of `passages`.
      passages: as the index's kind, [N, D] float32 or `Entries` of N.

    Returns:
      the share, and how many passages were queries; those without any entry are none.
    """
    count, kind = len(passages), index.kind
    sizes = np.concatenate(
        [similarity.bounds(kind, PASSAGE, passages[block]) for block in blocks(passages)]
    )  # REALM's vectors are no unit vectors
    some = np.arange(count) if kind == DENSE else np.flatnonzero(sizes)
    if not len(some):
        raise ValueError(f"expected {kind} representations, found {count} passages that are all 0")
    at = np.linspace(0, len(some) - 1, min(_SAMPLE[kind], len(some))).astype(np.int64)
    queries, k = passages[some[np.unique(at)]], min(_RECALL_AT, count)
    exact_scores, _ = exact_index.top_k(queries, passages, k, kind)
    _, rows = index.search(queries, k)
    different, place = np.unique(np.maximum(rows, 0), return_inverse=True)
    scores = np.take_along_axis(
        similarity.scores(kind, queries, passages[different]), place.reshape(rows.shape), axis=1
    )
    slack = _ROUNDING * sizes.max() * similarity.bounds(kind, QUERY, queries)[:, None]
    wanted = np.isfinite(exact_scores)  # fewer than k have anything in common with some queries
    last = np.min(exact_scores, axis=1, where=wanted, initial=np.inf, keepdims=True)
    found = (scores >= last - slack) & (rows != index_lib.NO_ROW)
    share = np.minimum(found.sum(1), wanted.sum(1)).sum() / wanted.sum()
    return float(share), len(queries)


def _described(index: index_lib.IndexType) -> dict[str, Any]:
    """What a manifest says of a type; of one that it is made of, the same in its place."""
    path = f"{type(index).__module__}.{type(index).__qualname__}"
    given = {field.name: getattr(index, field.name) for field in dataclasses.fields(index)}
    settings = {
        name: _described(value) if isinstance(value, index_lib.IndexType) else value
        for name, value in given.items()
    }
    return {"kind": _SHORT_NAMES.get(path, path), "settings": settings}


def _type_in(described: Mapping[str, Any], where: Path) -> index_lib.IndexType:
    """The type that a manifest names, with the settings that it records.

    Raises:
      IndexTypeError: no such type, or it does not take these settings.
    """
    found = _type_named(described["kind"], where)
    settings = {
        name: _type_in(value, where) if isinstance(value, dict) and "kind" in value else value
        for name, value in described["settings"].items()
    }
    try:
        return found(**settings)
    except (TypeError, ValueError) as error:
        raise IndexTypeError(
            f"{where}: an index of type {described['kind']!r} with the settings {settings}, which "
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
