"""Answers of questions, and their places in text.

Two texts are the same answer if they are equal once normalised as SQuAD's evaluation does it
(Rajpurkar et al. 2016): lower case, without punctuation, without the articles a, an, the, white
space as one space; accents are compared after Unicode's NFD, as in ORQA's code. CuratedTREC's
answers are regular expressions, which match without regard to case.
"""

import collections
import dataclasses
import functools
import json
import re
import string
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from input_pipelines.sources import text_sources
from input_pipelines.sources.text_sources import BadRecords, FieldError

Span = tuple[int, int]  # characters start to end - 1

REGEX_FLAGS = re.IGNORECASE | re.UNICODE | re.MULTILINE  # as in DrQA's and ORQA's evaluation
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)


class Word(NamedTuple):
    """A normalised word and the characters of the text that it is made of."""

    text: str
    start: int
    end: int


def words(text: str) -> list[Word]:
    """The words of a text, normalised for comparison; joined by spaces: `normalised`."""
    found = []
    for token in re.finditer(r"\S+", text):
        begin = token.start()
        found += [Word(w.text, w.start + begin, w.end + begin) for w in _words_of(token[0])]
    return found


def normalised(text: str) -> str:
    """The form in which two answers are compared."""
    return " ".join(word.text for word in words(text))


@functools.lru_cache(maxsize=1 << 16)
def _words_of(token: str) -> tuple[Word, ...]:
    """Words of a text without white space: one, except where an article is between dashes."""
    decomposed = [
        (part, place)
        for place, character in enumerate(token)
        for part in unicodedata.normalize("NFD", character)
    ]
    lower = "".join(part for part, _ in decomposed).lower()  # whole: a last sigma is another one
    places = (place for _, place in decomposed)
    kept = [
        (part, place) for part, place in zip(lower, places, strict=True) if part not in _PUNCTUATION
    ]
    plain = "".join(part for part, _ in kept)
    spaced = _ARTICLE.sub(lambda article: " " * len(article[0]), plain)
    return tuple(
        Word(word[0], kept[word.start()][1], kept[word.end() - 1][1] + 1)
        for word in re.finditer(r"\S+", spaced)
    )


@dataclasses.dataclass(frozen=True)
class Answers:
    """Accepted answers of a question.

    Attributes:
      texts: answers, any of which will do.
      is_regex: whether they are regular expressions.
    """

    texts: tuple[str, ...]
    is_regex: bool = False

    def exact(self, prediction: str) -> bool:
        """Whether a prediction is an answer: equal once normalised; of expressions, one matches
        from the prediction's beginning on, as in DrQA's and ORQA's evaluation.
        """
        if self.is_regex:
            found = (_compiled(text).match(prediction) for text in self.texts)
            return any(one is not None and one.end() > 0 for one in found)
        return normalised(prediction) in {normalised(text) for text in self.texts}

    def f1(self, prediction: str) -> float:
        """SQuAD's F1 of words with the answer that is most alike; of expressions, `exact`."""
        if self.is_regex:
            return float(self.exact(prediction))
        return max(_f1(normalised(prediction), normalised(text)) for text in self.texts)


def _f1(prediction: str, answer: str) -> float:
    """Harmonic mean of precision and recall over words; no words match no words alone."""
    ours, theirs = prediction.split(), answer.split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


@functools.lru_cache(maxsize=1 << 14)
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression, REGEX_FLAGS)


class Finder:
    """Finds the answers of many questions in a text, in one pass over its words.

    Regular expressions are tried one after another: they cost a search of the text each.
    """

    def __init__(self, answers: Sequence[Answers]):
        """
        Args:
          answers: by question; `find` gives their places in this list.
        """
        self._by_first: dict[str, dict[tuple[str, ...], list[int]]] = {}
        self._expressions: dict[str, list[int]] = {}
        for question, one in enumerate(answers):
            for text in set(one.texts):
                if one.is_regex:
                    self._expressions.setdefault(text, []).append(question)
                    continue
                parts = tuple(word.text for word in words(text))
                if parts:
                    alike = self._by_first.setdefault(parts[0], {})
                    alike.setdefault(parts, []).append(question)
        self._lengths = {
            first: sorted({len(parts) for parts in alike})
            for first, alike in self._by_first.items()
        }

    def find(self, text: str) -> list[tuple[int, Span]]:
        """Each question with each place where an answer of it is; unsorted."""
        found: set[tuple[int, Span]] = set()
        there = words(text)
        for place, word in enumerate(there):
            for length in self._lengths.get(word.text, ()):
                run = there[place : place + length]
                questions = self._by_first[word.text].get(tuple(w.text for w in run), ())
                found |= {(question, (word.start, run[-1].end)) for question in questions}
        for expression, questions in self._expressions.items():
            for match in _compiled(expression).finditer(text):
                if match.end() > match.start():
                    found |= {(question, match.span()) for question in questions}
        return list(found)


def answers_of(row: Mapping[str, Any]) -> Answers:
    """The answers of a question's row: a list `answers`, and `answer_type`, 'regex' if they are.

    Raises:
      FieldError: there are none, one is no text, says nothing once normalised, or is a malformed
        expression.
    """
    given = row.get("answers")
    if not isinstance(given, list) or not given:
        raise FieldError("no_answers", "field 'answers': expected a list of texts")
    kind = row.get("answer_type", "text")
    if kind not in ("text", "regex"):
        raise FieldError("bad_answer_type", "field 'answer_type': expected 'text' or 'regex'")
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < len(given):
        raise FieldError("bad_answer", "field 'answers': expected texts")
    if kind == "text":
        texts = [text for text in texts if normalised(text)]
        if not texts:
            raise FieldError("empty_answer", "field 'answers': nothing but articles or punctuation")
    for text in texts if kind == "regex" else ():
        try:
            _compiled(text)
        except re.error as error:
            detail = f"answer {text!r} is no regular expression ({error})"
            raise FieldError("bad_regex", detail) from error
    return Answers(tuple(dict.fromkeys(texts)), kind == "regex")


def read(
    path: str, bad: BadRecords, only: Collection[str] | None = None, max_line_bytes: int = 1 << 24
) -> dict[str, Answers | None]:
    """Question id -> answers, of a jsonl file of questions; `_id` or `id` names a question.

    Malformed ones are reported to `bad`; if the id could be read, it has None. With `only`, other
    questions are passed over.
    """
    found: dict[str, Answers | None] = {}
    for where, line, name, row in _rows(path, bad, max_line_bytes):
        if only is not None and name not in only:
            continue
        try:
            found[name] = answers_of(row)
        except FieldError as error:
            bad.add(where, error.reason, str(error), line)
            found[name] = None
    return found


def _rows(
    path: str, bad: BadRecords, max_line_bytes: int
) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(file:line, the line, id, row) of each question."""
    for number, line, row in text_sources.json_lines(path, max_line_bytes, bad):
        where = f"{path}:{number}"
        try:
            key = "_id" if "_id" in row else "id"
            yield where, line, text_sources.text_field(row, key, is_id=True), row
        except FieldError as error:
            bad.add(where, error.reason, str(error), json.dumps(row))
