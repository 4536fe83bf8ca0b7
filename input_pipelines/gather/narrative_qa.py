"""NarrativeQA as a collection: stories are passages, and a question asks for its story.

As its repository has it (Kočiský et al. 2018, arXiv:1712.07040): `documents.csv` with
`document_id`, `set` and `wiki_title`, `qaps.csv` with `document_id`, `set` and `question`, and the
stories that its script downloads, `tmp/<document_id>.content`.
"""

import csv
import dataclasses
import os
from collections.abc import Iterator, Mapping

from input_pipelines.sources import places
from input_pipelines.sources.text_sources import BadRecords, Record, SourceError

SETS = ("train", "valid", "test")


@dataclasses.dataclass(frozen=True)
class Stories:
    """The stories of a set, whole; of one whose file is missing or empty a malformed record is
    reported.

    folder: of the repository. part: 'train', 'valid' or 'test'.
    """

    folder: str
    part: str

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the stories in the order of documents.csv, telling `bad` of those not there."""
        for where, row in _rows(self.folder, "documents.csv", self.part, ("wiki_title",)):
            story = os.path.join(self.folder, "tmp", f"{row['document_id']}.content")
            try:
                with open(story, encoding="utf-8") as file:
                    text = file.read().strip()
            except (OSError, UnicodeDecodeError) as error:
                bad.add(where, "no_story", f"{story}: {error}", row["document_id"])
                continue
            if not text:
                bad.add(where, "no_story", f"{story} is empty", row["document_id"])
                continue
            yield Record(row["document_id"], row["wiki_title"], text, places.place(story, story))


@dataclasses.dataclass(frozen=True)
class Questions:
    """The questions of a set; ids count those of a story.

    folder, part: as of `Stories`.
    """

    folder: str
    part: str

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the questions in the order of qaps.csv."""
        for name, where, row in _asked(self.folder, self.part):
            if row["question"].strip():
                path = os.path.join(self.folder, "qaps.csv")
                yield Record(name, "", row["question"].strip(), places.place(path, where))
            else:
                bad.add(where, "empty_text", "the question is empty", row["document_id"])


@dataclasses.dataclass(frozen=True)
class Asked:
    """Each question's story; the judgements of a set.

    folder, part: as of `Stories`.
    """

    folder: str
    part: str

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields (question, story, 1, "file:line")."""
        for name, where, row in _asked(self.folder, self.part):
            if row["question"].strip():  # `Questions` reports the others
                yield name, row["document_id"], 1, where


def _asked(folder: str, part: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """(id, file:line, row) of each question of a set."""
    counts: dict[str, int] = {}
    for where, row in _rows(folder, "qaps.csv", part, ("question",)):
        story = row["document_id"]
        number = counts[story] = counts.get(story, 0) + 1
        yield f"{story}-{number}", where, row


def _rows(
    folder: str, name: str, part: str, columns: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(file:line, row) of a set in one of the tables.

    Raises:
      SourceError: no such table, set or column.
    """
    if part not in SETS:
        raise SourceError(f"part: expected one of {SETS}, found {part!r}")
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        raise SourceError(f"{path}: not found. Expected the folder of NarrativeQA's repository")
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = {"document_id", "set", *columns} - set(reader.fieldnames or ())
        if missing:
            raise SourceError(f"{path}: no columns {sorted(missing)}, found {reader.fieldnames}")
        for row in reader:
            if row["set"] == part:
                yield f"{path}:{reader.line_num}", row
