"""List the data files of a training, for its model card: a folder in BEIR's layout."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

_SPLITS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the folder.

    Attributes:
        name: below the folder.
        holds: what it holds, in words, with its number.
        sha256: hex, of its bytes.
    """

    name: str
    holds: str
    sha256: str


def files(folder: str) -> list[File]:
    """The files of a collection that are there: passages, queries, and who answers which query.

    Args:
        folder: with corpus.jsonl, queries.jsonl and `qrels/<split>.tsv`.

    Raises:
        FileNotFoundError: there is no corpus.jsonl or no queries.jsonl.
    """
    root = Path(folder)
    found = [_lines(root, "corpus.jsonl", "passages"), _lines(root, "queries.jsonl", "queries")]
    found += [_judged(root, split) for split in _SPLITS if _qrels(root, split).is_file()]
    return found


def _lines(root: Path, name: str, what: str) -> File:
    digest, count = hashlib.sha256(), 0
    for line in _read(root / name):
        digest.update(line)
        count += bool(line.strip())
    return File(name, f"{count:,} {what}", digest.hexdigest())


def _judged(root: Path, split: str) -> File:
    """One with its queries, and the pairs of a query and a relevant passage."""
    digest, queries, pairs = hashlib.sha256(), set(), 0
    for number, line in enumerate(_read(_qrels(root, split))):
        digest.update(line)
        cells = line.decode().split("\t")
        if number and len(cells) == 3 and float(cells[2]) > 0:  # the first line names the columns
            queries.add(cells[0])
            pairs += 1
    holds = f"{len(queries):,} {split} queries, {pairs:,} pairs"
    return File(f"qrels/{split}.tsv", holds, digest.hexdigest())


def _qrels(root: Path, split: str) -> Path:
    return root / f"qrels/{split}.tsv"


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def division(report: str | None) -> list[str]:
    """Sentences on how labelled data was read and divided.

    Args:
        report: report.json of the stage that read it; None for a folder that came divided.
    """
    if report is None:
        return []
    fields = json.loads(Path(report).read_text(encoding="utf-8"))
    overlap, divided = fields["overlap"]["test"], fields["divided"]
    how = "its splits were kept" if divided == "given" else f"its queries were divided {divided}"
    return [
        f"The data was read in the layout {fields['layout']}; {how}.",
        f"{len(overlap['shared']):,} of {overlap['queries']:,} test queries have a relevant "
        "passage that answers a training query, too.",
    ]
