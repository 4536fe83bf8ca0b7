"""Versions of an index with the parameters that made them, for trainings that retrieve on the host.

A query and the vectors it is compared with come from the same parameters: so what a version finds
for a batch is a function of the version and the batch, whoever asks and when.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.index import IndexDamaged
from t5x_style.retrieval import published_index, remote_versions, versioned_folder
from t5x_style.retrieval.encoding import Embeddings
from t5x_style.storage import places

_PARAMETERS = "parameters.safetensors"

T = TypeVar("T")
Parameters = Mapping[str, np.ndarray]  # path -> array


@dataclasses.dataclass(frozen=True)
class Version:
    """Attributes:
    number: of the version.
    step: of the training, whose parameters made it.
    index: of the corpus.
    parameters: what embeds queries for it.
    """

    number: int
    step: int
    index: index_lib.Index
    parameters: Parameters


class VersionError(ValueError):
    """A version that is not there any more, or that belongs to another training."""


def write(
    folder: str | Path,
    embeddings: Embeddings,
    run: str,
    step: int,
    parameters: Parameters,
    index: index_lib.IndexType,
    keep: int,
    minimum_recall: float,
) -> int:
    """Builds an index and publishes it with its parameters; returns the version's number.

    Args:
      folder: of all versions, see `publish`.
      embeddings: of the whole corpus, in its order.
      run: which training, see `version_log.run_of`.
      step: of the training.
      parameters: what embeds queries.
      index, keep, minimum_recall: see `published_index.publish`.
    """

    def more(version: Path) -> dict[str, Any]:
        whole = {path: np.ascontiguousarray(array) for path, array in parameters.items()}
        with versioned_folder.writing(version, SafetensorError):
            safetensors.save_file(whole, version / _PARAMETERS)
        return {"run": run, "step": step}

    published_index.publish(folder, embeddings, index, keep, minimum_recall, more)
    return versioned_folder.current_number(folder)


def newest(folder: str | Path, run: str) -> tuple[int, int] | None:
    """Number and step of the newest complete version of a run on this disk; others' do not count.

    Args:
      folder: of all versions, a local one.
      run: which training.
    """
    for number in reversed(versioned_folder.published(folder)):
        try:
            manifest = versioned_folder.read_manifest_alone(
                versioned_folder.version_folder(folder, number)
            )
        except IndexDamaged:  # it goes while it is read
            continue
        if manifest.get("run") == run:
            return number, int(manifest["step"])
    return None


def published(folder: str | Path) -> list[int]:
    """The numbers of all complete versions, where they are published."""
    url = places.remote(places.local(folder))
    return list(remote_versions.published(url)) if url else versioned_folder.published(folder)


def read(
    folder: str | Path,
    number: int,
    contract: Contract,
    load: Callable[[Path], index_lib.Index] = published_index.load_version,
) -> Version:
    """A version, every file of it checked.

    Args:
      folder: of all versions.
      number: which.
      contract: of the model that asks.
      load: reads the index of a version's folder.

    Raises:
      VersionError: it is not there (any more): too few are kept.
      IndexDamaged: a file is missing, cut short or changed, or the folder carries a pickle.
      ContractError: another model or tokenizer made it.
    """

    def opened(where: Path) -> Version:
        index = load(where)
        manifest = versioned_folder.read_manifest_alone(where)
        parameters = safetensors.load_file(where / _PARAMETERS)
        return Version(number, int(manifest["step"]), index, parameters)

    found = open_version(folder, number, opened)
    where = versioned_folder.version_folder(places.local(folder), number)
    index_lib.check_contract(found.index, contract, str(where))
    return found


def open_version(folder: str | Path, number: int, opened: Callable[[Path], T]) -> T:
    """Apply `opened` to a version's folder, which is copied first from object storage.

    Args:
      folder: of all versions.
      number: which.
      opened: reads a version's folder on this disk.

    Raises:
      VersionError: it is not there (any more): too few are kept.
      IndexDamaged, OSError: as `opened` raises them.
    """
    where = versioned_folder.version_folder(places.local(folder), number)
    try:
        if url := places.remote(places.local(folder)):
            remote_versions.fetch(places.local(folder), url, number)
        return opened(where)
    except (IndexDamaged, OSError) as error:
        there = published(folder)
        if number in there:
            raise
        raise VersionError(
            f"{where}: version {number} is not there any more; there are {there}. Let whoever "
            "builds keep more of them."
        ) from error
