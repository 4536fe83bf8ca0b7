"""List the data files of a training, for its model card: a folder in BEIR's layout."""

import dataclasses
import gzip
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
        folder: with corpus.jsonl and, unless it is text alone, queries.jsonl and
            `qrels/<split>.tsv`; the first two may be gzipped (.gz).

    Raises:
        FileNotFoundError: there is no corpus.jsonl, or judgements without queries.jsonl.
    """
    root = Path(folder)
    found = [_lines(root, "corpus.jsonl", "passages")]
    if (root / "qrels").is_dir() or _stored(root / "queries.jsonl").is_file():
        found.append(_lines(root, "queries.jsonl", "queries"))
    found += [_judged(root, split) for split in _SPLITS if _qrels(root, split).is_file()]
    return found


def _lines(root: Path, name: str, what: str) -> File:
    path = _stored(root / name)
    count = sum(bool(line.strip()) for line in _read(path))
    return File(path.name, f"{count:,} {what}", _sha256(path))


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


def _stored(path: Path) -> Path:
    """A file, or its gzipped form where that is what is there."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if not path.is_file() and packed.is_file() else path


def _read(path: Path) -> Iterator[bytes]:
    if path.suffix == ".gz":
        with gzip.open(path) as packed:
            yield from packed
    else:
        with path.open("rb") as file:
            yield from file


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
