"""Origin of a file of negatives: a file next to it that training compares with its stores.

    negatives.jsonl
    negatives.origin.json   {"made_by": 'bm25' or a checkpoint's fingerprint,
                             "settings": {...},
                             "passages": {id: digest}, of up to 64 spread over the corpus,
                             "queries":  {id: digest}, of up to 64 spread over those mined for}

A digest is the first 16 hexadecimal characters of the sha256 of json.dumps([title, text],
ensure_ascii=False) in UTF-8; a query's title is "".
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_style.retrieval import versioned_folder
from t5x_style.retrieval.beir_collection import Passages

SAMPLE = 64


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Content of the origin file, see the module's docstring."""

    made_by: str
    settings: dict[str, Any]
    passages: dict[str, str]
    queries: dict[str, str]


def path_beside(negatives: str | Path) -> Path:
    """Of the origin of a file of negatives."""
    return Path(negatives).with_suffix(".origin.json")


def digest(title: str, text: str) -> str:
    """Of a passage or a query, see the module."""
    content = json.dumps([title, text], ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def write(
    negatives: str | Path,
    made_by: str,
    settings: Mapping[str, Any],
    passages: Passages,
    queries: Mapping[str, str],
) -> None:
    """Writes the origin of a file of negatives, which need not be there yet.

    Args:
      negatives: path of that file.
      made_by: 'bm25', or the fingerprint of the checkpoint that mined.
      settings: with which.
      passages: the corpus that was searched.
      queries: id -> text of those that were mined for.
    """
    chosen = (passages.passage(row) for row in _spread(len(passages)))
    names = list(queries)
    origin = Provenance(
        made_by,
        dict(settings),
        {passage.id: digest(passage.title, passage.text) for passage in chosen},
        {names[place]: digest("", queries[names[place]]) for place in _spread(len(names))},
    )
    save(negatives, origin)


def save(negatives: str | Path, origin: Provenance) -> None:
    """Write an origin next to a file of negatives, which need not exist yet."""
    text = json.dumps(dataclasses.asdict(origin), indent=1, ensure_ascii=False)
    versioned_folder.write_atomically(path_beside(negatives), text + "\n")


def _spread(count: int) -> Iterable[int]:
    """Up to `SAMPLE` of the numbers below `count`, the first and the last among them."""
    sample: list[int] = np.linspace(0, count - 1, min(SAMPLE, count)).astype(np.int64).tolist()
    return sample


def read(negatives: str | Path) -> Provenance:
    """The origin of a file of negatives.

    Raises:
      FileNotFoundError: there is none next to it.
      ValueError: it is not as `write` leaves it.
    """
    path = path_beside(negatives)
    try:
        return Provenance(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path}: expected made_by, settings, passages and queries of mined negatives, found "
            f"something else ({error}). Mine again, or remove it to do without its check."
        ) from error
