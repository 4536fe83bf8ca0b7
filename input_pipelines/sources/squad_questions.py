"""Questions that come with the passage that answers them: SQuAD's files, and XQuAD's."""

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from input_pipelines.sources import languages, question_sets, squad, text_sources
from input_pipelines.sources.answers import Answers, answers_of
from input_pipelines.sources.text_sources import (
    BadRecords,
    FieldError,
    Record,
    SourceError,
    text_field,
)


class Asked(NamedTuple):
    """A question.

    Attributes:
      id: 'de/56be4db0', its language before it where files are by language.
      question, passage: as in the file.
      answers: what counts as right.
      span: characters of the passage, start to end - 1, that are the first answer.
      where: file and line.
    """

    id: str
    question: str
    passage: str
    answers: Answers
    span: tuple[int, int]
    where: str


@dataclasses.dataclass(frozen=True)
class AskedPassages:
    """Files as `squad.rows_of` reads them, as a source of records and of `Asked`.

    Attributes:
      folder: of the files.
      name: of the file; with {language} in it where there is one for each language.
      languages: their codes, as files are named; none for one file.
    """

    folder: str
    name: str
    languages: Sequence[str] = ()

    def __post_init__(self) -> None:
        if ("{language}" in self.name) != bool(self.languages):
            raise ValueError(
                "AskedPassages: expected '{language}' in name where languages are given, and only "
                f"there; found {self.name!r} and {list(self.languages)}"
            )
        languages.require_once(self.languages, "AskedPassages.languages")

    def asked(self, bad: BadRecords) -> Iterator[Asked]:
        """All questions in order, reporting malformed ones to `bad`.

        Malformed is a question without a text or an answer, one whose first answer is not
        where it says, and one with an id that was there before. Questions that SQuAD 2 marks
        `is_impossible` are left out.

        Raises:
          SourceError: a file cannot be read, or has not one question.
          languages.LanguageError: a code that no language has.
        """
        for code in self.languages or ("",):
            path = os.path.join(self.folder, self.name.format(language=code))
            before = f"{languages.canonical(code)}/" if code else ""
            unique, none = text_sources.UniqueIds(), True
            for where, row in squad.rows_of(path, bad):
                for one in _of_paragraph(row, where, unique, bad):
                    none = False
                    yield one._replace(id=before + one.id)
            if none:
                raise SourceError(f"{path}: expected questions with answers, found none")

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """See `text_sources.TextSource`: title and text are question and passage, the source is
        "start:end", the span, as `question_windows.QuestionWindows` wants it; errors as `asked`.
        """
        for one in self.asked(bad):
            yield Record(one.id, one.question, one.passage, f"{one.span[0]}:{one.span[1]}")


def _of_paragraph(
    row: dict[str, Any], where: str, unique: text_sources.UniqueIds, bad: BadRecords
) -> Iterator[Asked]:
    try:
        passage, rows = text_field(row, "context"), squad.list_field(row, "qas")
    except FieldError as error:
        bad.add(where, error.reason, str(error), json.dumps(row))
        return
    for number, question in enumerate(rows):
        place = f"{where}, question {number}"
        try:
            if not isinstance(question, dict):
                raise FieldError("not_an_object", f"expected an object, found {question!r}")
            if not question.get("is_impossible"):
                yield _asked(question, passage, (where, number), unique)
        except FieldError as error:
            bad.add(place, error.reason, str(error), json.dumps(question))


def _asked(
    row: dict[str, Any], passage: str, at: tuple[str, int], unique: text_sources.UniqueIds
) -> Asked:
    """Raises FieldError for what `AskedPassages.asked` calls malformed; `at`: file and number."""
    given = row.get("answers")
    if not isinstance(given, list) or not given or not all(isinstance(a, dict) for a in given):
        raise FieldError("no_answers", "field 'answers': expected a list of objects, one or more")
    texts = [text_field(answer, "text") for answer in given]
    start = given[0].get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool) or not texts[0]:
        raise FieldError("bad_answer", "expected a text and its 'answer_start', a whole number")
    span = (start, start + len(texts[0]))
    if start < 0 or passage[slice(*span)] != texts[0]:
        found = passage[slice(*span)]
        detail = f"the first answer is {texts[0]!r}, but at {start} is {found!r}"
        raise FieldError("answer_not_there", detail)
    question = question_sets.question_text(row, "question")
    name = question_sets.new_id(row, "id", unique, *at)  # last: what is malformed takes no id
    return Asked(name, question, passage, answers_of({"answers": texts}), span, at[0])
