"""NarrativeQA as a collection: stories are passages, and a question asks for its story.

As its repository has it (google-deepmind/narrativeqa; Kočiský et al. 2018, arXiv:1712.07040):

    documents.csv   document_id, set, kind, ..., wiki_title, ..., story_start, story_end
    qaps.csv        document_id, set, question, ...
    tmp/<document_id>.content   a download: a text of Project Gutenberg between notices, or a web
                                page with a film's script

`kind` is 'gutenberg' or 'movie'. `story_start` and `story_end` are the first and the last words of
a story, as tokens with spaces between them ('Produced by Nick', 'new eBooks .').
"""

import csv
import dataclasses
import html
import logging
import os
import re
from collections.abc import Iterator, Mapping

from input_pipelines.sources import places
from input_pipelines.sources.text_sources import BadRecords, Record, SourceError

_log = logging.getLogger(__name__)

SETS = ("train", "valid", "test")
MARKS = ("story_start", "story_end")
_BREAK = re.compile(r"</?(?:br|p|div|h[1-6]|li|tr|td|hr)\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"<!--|-->|<[a-zA-Z/!][^<>]*>")


@dataclasses.dataclass(frozen=True)
class Stories:
    """The stories of a set, whole; of one whose file is missing or empty a malformed record is
    reported.

    Attributes:
      folder: of the repository.
      part: 'train', 'valid' or 'test'.
      between_marks: whether a story is what is between `story_start` and `story_end`, without the
        tags of a web page; otherwise it is the file as it was downloaded. A story whose marks are
        not found, since its page has changed, is whole, and a line is logged.
    """

    folder: str
    part: str
    between_marks: bool = False

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the stories in the order of documents.csv, reporting those not there to `bad`."""
        columns = ("wiki_title", "kind", *MARKS) if self.between_marks else ("wiki_title",)
        unmarked = []
        for where, row in _rows(self.folder, "documents.csv", self.part, columns):
            story = os.path.join(self.folder, "tmp", f"{row['document_id']}.content")
            try:
                text = _read(story)
            except OSError as error:
                bad.add(where, "no_story", f"{story}: {error}", row["document_id"])
                continue
            if self.between_marks:
                if row["kind"] == "movie":
                    text = html.unescape(_TAG.sub("", _BREAK.sub("\n", text)))
                found = story_of(text, row["story_start"], row["story_end"])
                if found is None:
                    unmarked.append(row["document_id"])
                text = text if found is None else found
            if not (text := text.strip()):
                bad.add(where, "no_story", f"{story} is empty", row["document_id"])
                continue
            yield Record(row["document_id"], row["wiki_title"], text, places.place(story, story))
        if unmarked:
            _log.warning(
                "narrative_qa: %d stories of %r have no story_start or story_end of documents.csv "
                "in their files, and are kept whole: %s",
                *(len(unmarked), self.part, ", ".join(unmarked[:5])),
            )


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


def story_of(text: str, start: str, end: str) -> str | None:
    """From the first place of the first words to the last place of the last words.

    Args:
      text: a file.
      start, end: tokens with spaces between them; white space does not count.

    Returns:
      The story; None: it has not both, in this order.
    """
    first = _mark(start).search(text)
    if first is None:
        return None
    ends = [found.end() for found in _mark(end).finditer(text, first.end())]
    return text[first.start() : ends[-1]] if ends else None


def _mark(tokens: str) -> re.Pattern[str]:
    return re.compile(r"\s*".join(map(re.escape, tokens.split())))


def _read(path: str) -> str:
    """A file in UTF-8 or, as older pages are, in Windows' Latin-1.

    Raises:
      OSError: it is not there, or it is no text, such as a compressed file.
    """
    with open(path, "rb") as file:
        content = file.read()
    if b"\0" in content:
        raise OSError("expected text in UTF-8 or Windows-1252, found bytes of value 0")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


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
