"""SQuAD's files: articles, their paragraphs, and questions that each ask for one.

Two forms of file are read (each may be gzipped): the official one in a `.json`, that is
`{"data": [{"title", "paragraphs": [{"context", "qas"}]}]}`; and one paragraph a line in a `.jsonl`,
`{"title", "para", "context", "qas"}`. Questions that SQuAD 2 marks `is_impossible` are left out: no
paragraph answers them.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from input_pipelines.sources import places, question_sets, text_sources
from input_pipelines.sources.question_sets import Paragraph, Question
from input_pipelines.sources.text_sources import (
    BadRecords,
    FieldError,
    Record,
    SourceError,
    text_field,
)


def paragraphs(
    paths: Sequence[str], seen: question_sets.Seen, bad: BadRecords
) -> Iterator[Paragraph]:
    """The paragraphs of files, in order, reporting malformed ones to `bad` and of questions.

    The id of a passage is `title/number of the paragraph in its article`.
    """
    for path in paths:
        for number, (where, row) in enumerate(rows_of(path, bad)):
            try:
                title = text_field(row, "title")
                name = f"{text_field(row, 'title', True)}/{text_field(row, 'para', True)}"
                if before := seen.paragraphs.first(name, path, number):
                    raise FieldError("duplicate_id", f"paragraph {name!r} was given in {before}")
                text, asked = text_field(row, "context"), list_field(row, "qas")
            except FieldError as error:
                bad.add(where, error.reason, str(error), json.dumps(row))
                continue
            passage = Record(name, title.replace("_", " "), text, places.place(path, where))
            yield Paragraph(passage, title, list(_questions(asked, where, seen.questions, bad)))


def rows_of(path: str, bad: BadRecords) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place and the row of each paragraph, in the form of one paragraph a line; lines that
    are none are reported to `bad`.

    Raises:
      SourceError: there is no such file, or it is of neither form.
    """
    official = path.removesuffix(".gz").endswith(".json")
    return _official(path) if official else _by_line(path, bad)


def _by_line(path: str, bad: BadRecords) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, _, row in text_sources.json_lines(path, question_sets.MAX_LINE_BYTES, bad):
        yield f"{path}:{number}", row


def _official(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The nested form, which is one JSON value of some 30 MB."""
    with text_sources.open_binary(path) as file:
        try:
            articles = json.load(file)["data"]
            for article in articles:
                for number, paragraph in enumerate(article["paragraphs"]):
                    title = "_".join(article["title"].split())
                    yield f"{path}: {title}/{number}", {**paragraph, "title": title, "para": number}
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f'{path}: expected {{"data": [{{"title", "paragraphs"}}]}}, SQuAD\'s own form, '
                f"found otherwise ({error!r}); a file with a paragraph a line is called .jsonl"
            ) from error


def list_field(row: dict[str, Any], name: str) -> list[Any]:
    """A field that has to be a list; raises FieldError where it is none."""
    if not isinstance(row.get(name), list):
        raise FieldError("missing_field", f"field {name!r}: expected a list")
    return list(row[name])


def _questions(
    rows: Sequence[Any], where: str, unique: text_sources.UniqueIds, bad: BadRecords
) -> Iterator[Question]:
    for number, row in enumerate(rows):
        try:
            if not isinstance(row, dict):
                raise FieldError("not_an_object", f"expected an object, found {row!r}")
            if row.get("is_impossible"):
                continue
            text = question_sets.question_text(row, "question")
            answer = _answers(row)
            yield Question(question_sets.new_id(row, "id", unique, where, number), text, answer)
        except FieldError as error:
            bad.add(where, error.reason, str(error), json.dumps(row))


def _answers(row: dict[str, Any]) -> dict[str, list[str]]:
    """The texts of its answers, for those who read the passages that are found."""
    given = row.get("answers") or []
    if not isinstance(given, list) or not all(isinstance(answer, dict) for answer in given):
        raise FieldError("bad_answer", "field 'answers': expected a list of objects")
    texts = [text_field(answer, "text") for answer in given]
    return {"answers": list(dict.fromkeys(texts))} if texts else {}
