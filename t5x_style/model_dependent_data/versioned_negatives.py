"""Versions of the negatives that are mined with the checkpoints of a training, for that training.

folder/versions/7/negatives.jsonl          as docs/mining.md describes it
folder/versions/7/negatives.origin.json
folder/versions/7/manifest.json            with the run, the step and the settings
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from t5x_style.mining import hard_negatives, provenance
from t5x_style.mining.hard_negatives import MiningSettings
from t5x_style.model_dependent_data import versioned_index
from t5x_style.model_dependent_data.versioned_index import VersionError
from t5x_style.retrieval import versioned_folder
from t5x_style.retrieval.beir_collection import Passages

NEGATIVES = "negatives.jsonl"
_MINED = "mined"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Version(Generic[T]):
    """Attributes:
    number: of the version.
    step: of the training, whose parameters mined it.
    negatives: what the reader made of the file.
    """

    number: int
    step: int
    negatives: T


def settings_of(split: str, settings: MiningSettings) -> dict[str, Any]:
    """Settings of mining, as JSON: the same for a training and the builder of its versions."""
    return {"split": split, **dataclasses.asdict(settings)}


def write(
    folder: str | Path,
    mined: Iterable[hard_negatives.Mined],
    run: str,
    step: int,
    made_by: str,
    settings: Mapping[str, Any],
    passages: Passages,
    queries: Mapping[str, str],
    keep: int,
) -> tuple[int, str]:
    """Publishes negatives; returns the version's number, and what `hard_negatives.report` says.

    Args:
      folder: of all versions.
      mined: one for each query; where it raises, nothing is published.
      run: which training, see `version_log.run_of`.
      step: of the training.
      made_by: fingerprint of the checkpoint.
      settings: of `settings_of`.
      passages: the corpus.
      queries: id -> text of those that were mined for.
      keep: versions that stay.

    Raises:
      MiningError: not one query has a negative.
      PublishError: it cannot be written.
    """
    manifest = {"run": run, "step": step, "checkpoint": made_by, _MINED: dict(settings)}
    with versioned_folder.new_version(folder, manifest, keep) as version:
        path = version / NEGATIVES
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for one in mined:
                file.write(one.line())
        with path.open(encoding="utf-8") as file:
            said = hard_negatives.report(file, int(settings["negatives"]))
        provenance.write(path, made_by, settings, passages, queries)
    return versioned_folder.current_number(folder), said


def read(
    folder: str | Path, number: int, settings: Mapping[str, Any], parse: Callable[[str], T]
) -> Version[T]:
    """A version, every file of it checked.

    Args:
      folder: of all versions.
      number: which.
      settings: of `settings_of`, with which it has to be mined.
      parse: reads its negatives.jsonl.

    Raises:
      VersionError: it is not there (any more), or was mined with other settings.
      IndexDamaged: a file is missing, cut short or changed.
    """

    def opened(where: Path) -> Version[T]:
        manifest = versioned_folder.read_manifest(where)
        found = manifest.get(_MINED, {})
        names = sorted(
            name for name in {*settings, *found} if settings.get(name) != found.get(name)
        )
        if names:
            expected = {name: settings.get(name) for name in names}
            raise VersionError(
                f"{where}: expected negatives mined with {expected}, as this training records, "
                f"found { ({name: found.get(name) for name in names}) }. Give the training and the "
                "companion that mines for it the same settings (set them without a stage's name)."
            )
        return Version(number, int(manifest["step"]), parse(str(where / NEGATIVES)))

    return versioned_index.open_version(folder, number, opened)
