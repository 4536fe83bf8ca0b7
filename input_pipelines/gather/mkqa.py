"""MKQA: questions in 26 languages, to be answered from passages in English.

Reads `mkqa.jsonl.gz` as published (apple/ml-mkqa; Longpre et al. 2021, arXiv:2007.15207): a
line has `example_id`, `queries` {language: text} and `answers` {language: [{"type", "text",
"aliases"}]}. As in Contriever's and M3's evaluation of cross-lingual retrieval (arXiv:2112.09118,
arXiv:2402.03216), the answers are the English ones, with their aliases, whatever language asks.
Answers of the types 'unanswerable', 'binary' and 'long_answer' are left out, and so is a question
whose last English answer is of such a type: 6,619 of 10,000 are left, according to the papers.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from input_pipelines.sources import answer_tokens, text_sources
from input_pipelines.sources.answers import Answers
from input_pipelines.sources.text_sources import BadRecords, FieldError, SourceError

LEFT_OUT = ("unanswerable", "binary", "long_answer")
QUESTIONS, REPORT = "questions.jsonl", "report.json"
_LINE_BYTES = 1 << 24

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "gather": {
        "name": "mkqa",
        "version": 1,
        "outputs": ["questions", "report"],
        "check": "check",
    }
}


def gather(
    model_dir: str, path: str, languages: Sequence[str], max_bad_records: int
) -> dict[str, str]:
    """The job of a stage: the questions of several languages in one file.

    Args:
      model_dir: stage folder.
      path: mkqa.jsonl, or that gzipped.
      languages: as MKQA writes them, 'zh_cn' among them.
      max_bad_records: malformed lines that are skipped before the run stops.

    Returns:
      "questions", a jsonl file with `_id` (LANGUAGE/EXAMPLE), `text`, `set` (the language) and
      `answers` of each question, and "report": paths in the folder.

    Raises:
      SourceError: no question is left, or too many malformed lines.
      ValueError: no language, or one twice.
    """
    check(languages, max_bad_records)
    bad = BadRecords(max_bad_records, "mkqa.gather")
    counts: Counter[str] = Counter()
    os.makedirs(model_dir, exist_ok=True)
    with open(os.path.join(model_dir, QUESTIONS), "w", encoding="utf-8") as file:
        for row in _questions(path, languages, bad, counts):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    if not counts["kept"]:
        raise SourceError(
            f"{path}: no question is left: {counts['left_out']} have no answer of a type besides "
            f"{LEFT_OUT}, {bad.counts.total()} are malformed"
        )
    report = {**counts, "malformed": dict(bad.counts), "examples": bad.examples}
    with open(os.path.join(model_dir, REPORT), "w", encoding="utf-8") as file:
        json.dump(report, file, ensure_ascii=False, indent=1)
    return {"questions": QUESTIONS, "report": REPORT}


def check(languages: Sequence[str], max_bad_records: int) -> None:
    """Check arguments before `gather` runs; ValueError, see there."""
    BadRecords(max_bad_records)
    if not languages or len(set(languages)) < len(languages):
        raise ValueError(f"mkqa.gather.languages: expected some, each once, found {languages}")


def _questions(
    path: str, languages: Sequence[str], bad: BadRecords, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    unique = text_sources.UniqueIds()
    for number, line, row in text_sources.json_lines(path, _LINE_BYTES, bad):
        where = f"{path}:{number}"
        try:
            name = text_sources.text_field(row, "example_id", is_id=True)
            answers = _answers(row)
            asked = row.get("queries")
            if not isinstance(asked, dict):
                raise FieldError("no_queries", "field 'queries': expected texts by language")
            texts = {language: text_sources.text_field(asked, language) for language in languages}
        except FieldError as error:
            bad.add(where, error.reason, str(error), line)
            continue
        if before := unique.first(name, path, number):
            bad.add(where, "duplicate_id", f"id {name!r} was already given in {before}", line)
        elif not answers:
            counts["left_out"] += 1
        else:
            counts["kept"] += 1
            for language, text in texts.items():
                yield {
                    "_id": f"{language}/{name}", "text": text, "set": language, "answers": answers,
                }  # fmt: skip


def _answers(row: Mapping[str, object]) -> list[str]:
    """The English answers that count; none where the last is of a type that does not."""
    by_language = row.get("answers")
    given = by_language.get("en") if isinstance(by_language, dict) else None
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise FieldError("no_answers", "field 'answers': expected a list of answers for 'en'")
    if not given or given[-1].get("type") in LEFT_OUT:
        return []
    found: list[str] = []
    for one in given:
        if one.get("type") not in LEFT_OUT:
            texts = [*(one.get("aliases") or ()), one.get("text")]
            if not all(isinstance(text, str) and answer_tokens.tokens_of(text) for text in texts):
                raise FieldError("bad_answer", f"answers: expected texts with a word in {one}")
            found += texts
    return list(dict.fromkeys(found))


class PassageAnswers:
    """The questions that `gather` wrote, as an answer key of passages (`answer_tokens`)."""

    def __init__(self, path: str):
        """
        Args:
          path: questions.jsonl of `gather`.

        Raises:
          SourceError: a line is malformed, or there is none.
        """
        self._questions: dict[str, str] = {}
        self._sets: dict[str, str] = {}
        self._answers: dict[str, tuple[str, ...]] = {}
        bad = BadRecords(0)
        for number, line, row in text_sources.json_lines(path, _LINE_BYTES, bad):
            try:
                name = text_sources.text_field(row, "_id", is_id=True)
                self._questions[name] = text_sources.text_field(row, "text")
                self._sets[name] = text_sources.text_field(row, "set")
                self._answers[name] = _texts(row)
            except FieldError as error:
                bad.add(f"{path}:{number}", error.reason, str(error), line)
        if not self._questions:
            raise SourceError(f"{path}: expected questions, as mkqa.gather writes them, found none")
        self._tokens = {
            name: tuple(map(answer_tokens.tokens_of, texts))
            for name, texts in self._answers.items()
        }

    def questions(self) -> Mapping[str, str]:
        """Id -> text, in the order of the file."""
        return self._questions

    def sets(self) -> Mapping[str, str]:
        """Id -> language."""
        return self._sets

    def exact(self, question: str, prediction: str) -> bool:
        """See `answers.Answers.exact`; `question` is an id, as below."""
        return Answers(self._answers[question]).exact(prediction)

    def f1(self, question: str, prediction: str) -> float:
        """See `answers.Answers.f1`."""
        return Answers(self._answers[question]).f1(prediction)

    def stands_in(self, question: str, text: str) -> bool:
        """Whether a text holds an answer, see `answer_tokens`."""
        return answer_tokens.holds(text, self._tokens[question])


def _texts(row: Mapping[str, object]) -> tuple[str, ...]:
    given = row.get("answers")
    if not isinstance(given, list) or not given:
        raise FieldError("no_answers", "field 'answers': expected a list of texts")
    if not all(isinstance(text, str) and answer_tokens.tokens_of(text) for text in given):
        raise FieldError("bad_answer", "field 'answers': expected texts with a word in each")
    return tuple(given)
