"""Find the files of a path that hold rows, and the split of each."""

import json
import os
import re
from collections.abc import Mapping

from input_pipelines.labelled import table_files
from input_pipelines.labelled.examples import NAMES, UNDIVIDED, LayoutError
from input_pipelines.sources import text_sources

CORPUS = re.compile(r"corpus\..+")
# train.csv; train-00000-of-00002.parquet, validation.part1.jsonl.gz
_SPLIT = re.compile(rf"({'|'.join(NAMES)})([-_.].*)?", re.IGNORECASE)

_OF_MODEL = ("config.json", "modules.json", "tokenizer.json", "tokenizer_config.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")

Files = Mapping[str, list[str]]  # split -> files, in the order of their names


def find(path: str) -> Files:
    """The files of each split below a path: a file, a folder of files or a `datasets` folder.

    Raises:
      LayoutError: nothing that is known is there; lists what is.
    """
    if os.path.isfile(path):
        if not table_files.ending(path):
            raise LayoutError(
                f"{path}: expected a file that ends in one of {list(table_files.ENDINGS)}, text "
                "may be gzipped (.gz)"
            )
        return {UNDIVIDED: [path]}
    if not os.path.isdir(path):
        raise LayoutError(f"{path} does not exist; expected a file or a folder of labelled data")
    if os.path.isfile(os.path.join(path, "dataset_dict.json")):
        return _dataset_dict(path)
    if os.path.isfile(os.path.join(path, "state.json")):
        return {UNDIVIDED: _dataset(path)}
    return _folder(path)


def require_no_model(path: str) -> None:
    """Refuses what is a model by the names of its files.

    Raises:
      LayoutError: it is one.
    """
    names = sorted(os.listdir(path)) if os.path.isdir(path) else [os.path.basename(path)]
    known = [name for name in names if name in _OF_MODEL or name.endswith(_WEIGHTS)]
    if any(name.endswith(_WEIGHTS) for name in known) or "modules.json" in known:
        raise LayoutError(
            f"{path}: expected labelled data, found a model: {', '.join(known)}. Are the data and "
            "the model swapped?"
        )


def _folder(path: str) -> Files:
    inner = os.path.join(path, "data")
    names = [name for name in sorted(os.listdir(path)) if table_files.ending(name)]
    rows = [name for name in names if not CORPUS.fullmatch(name)]
    if not rows and os.path.isdir(inner):  # as data sets are published on the Hub
        return _folder(inner)
    if len(rows) == 1 and not _SPLIT.fullmatch(rows[0]):
        return {UNDIVIDED: [os.path.join(path, rows[0])]}
    found: dict[str, list[str]] = {}
    unknown = []
    for name in rows:
        if match := _SPLIT.fullmatch(name):
            found.setdefault(NAMES[match[1].lower()], []).append(os.path.join(path, name))
        else:
            unknown.append(name)
    if unknown or not found:
        raise LayoutError(
            f"{path}: expected one file of rows, or files named after their split (train.jsonl, "
            "dev.jsonl, test.jsonl), a folder that `datasets` saved, or a folder in BEIR's layout; "
            + (f"cannot place {unknown[:5]}; " if unknown else "")
            + text_sources.found_in(path)
        )
    return found


def _dataset_dict(path: str) -> Files:
    """Folders of a `DatasetDict.save_to_disk`."""
    names = list(map(str, _json(os.path.join(path, "dataset_dict.json")).get("splits", [])))
    found: dict[str, list[str]] = {}
    for name in names:
        if name.lower() not in NAMES:
            raise LayoutError(
                f"{path}: expected splits named {sorted(set(NAMES))}, found {names}. "
                f"Rename {name!r}"
            )
        found[NAMES[name.lower()]] = _dataset(os.path.join(path, name))
    if not found:
        raise LayoutError(f"{path}/dataset_dict.json: expected names of splits, found none")
    return found


def _dataset(path: str) -> list[str]:
    """Files of a `Dataset.save_to_disk`."""
    named = _json(os.path.join(path, "state.json")).get("_data_files", [])
    files = [os.path.join(path, one["filename"]) for one in named]
    missing = [file for file in files if not os.path.isfile(file)]
    if missing or not files:
        raise LayoutError(
            f"{path}: state.json names the data files {[one['filename'] for one in named]}, of "
            f"which {len(missing)} are missing; {text_sources.found_in(path)}. Save the dataset "
            "again"
        )
    return files


def _json(path: str) -> dict[str, list[dict[str, str]]]:
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, list[dict[str, str]]] = json.load(file)
            return found
    except (OSError, ValueError) as error:
        raise LayoutError(
            f"{path}: expected JSON as `datasets` saves it ({error}). Save the dataset again"
        ) from error
