"""QED's files (Lamm et al. 2021): Natural Questions, each with the paragraph that answers it.

Rows of the jsonl files have `id`, `title`, `question`, `paragraph`, and `answers`, a list of lists:
the parts of an answer of several parts. Each part counts as an answer, as in ORQA's preparation of
Natural Questions. Some rows have nothing but an empty text: the paragraph answers the question, and
no part of it does. Such a question is for retrieval only.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from input_pipelines.sources import answers, places, question_sets, text_sources
from input_pipelines.sources.question_sets import Paragraph, Question
from input_pipelines.sources.text_sources import BadRecords, FieldError, Record, text_field


def paragraphs(
    paths: Sequence[str], seen: question_sets.Seen, bad: BadRecords
) -> Iterator[Paragraph]:
    """The paragraph of each row, in order, reporting malformed ones to `bad`.

    The id of a passage is a hash of title and text: rows with the same one share it.
    """
    for path in paths:
        for number, line, row in text_sources.json_lines(path, question_sets.MAX_LINE_BYTES, bad):
            where = f"{path}:{number}"
            try:
                title, text = text_field(row, "title"), text_field(row, "paragraph")
                asked, answer = question_sets.question_text(row, "question"), _answers(row)
                name = question_sets.new_id(row, "id", seen.questions, path, number)
            except FieldError as error:
                bad.add(where, error.reason, str(error), line)
                continue
            digest = hashlib.blake2b(f"{title}\n{text}".encode(), digest_size=8).hexdigest()
            passage = Record(digest, title, text, places.place(path, where))
            yield Paragraph(passage, title, [Question(name, asked, answer)])


def _answers(row: Mapping[str, object]) -> dict[str, Any]:
    given = row.get("answers")
    if not isinstance(given, list) or not all(isinstance(one, list) for one in given):
        raise FieldError("bad_answer", "field 'answers': expected a list of lists of texts")
    parts = [part for one in given for part in one if part != ""]
    return question_sets.answer_fields(answers.answers_of({"answers": parts})) if parts else {}
