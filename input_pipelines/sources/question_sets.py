"""Sets of questions with answers: some come with the paragraphs that answer them, others alone."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from input_pipelines.sources import answers, text_sources
from input_pipelines.sources.text_sources import (
    BadRecords,
    FieldError,
    Record,
    SourceError,
    text_field,
)

SPLITS = ("train", "dev", "test")  # the later are the more untouchable
MAX_LINE_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
      id: unique in its set.
      text: what is asked.
      answer: its further fields in queries.jsonl: `answers`, `answer_type`, or nothing.
    """

    id: str
    text: str
    answer: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A paragraph and the questions that it answers.

    Attributes:
      passage: with a separate id; several may share one, and are one passage then.
      article: the name of what it is from.
      questions: that it answers.
    """

    passage: Record
    article: str
    questions: Sequence[Question]


class Seen(NamedTuple):
    """Attributes:
    paragraphs, questions: ids of what was read before, of whichever file.
    """

    paragraphs: text_sources.UniqueIds
    questions: text_sources.UniqueIds


@dataclasses.dataclass(frozen=True)
class GoldSet:
    """Questions with the paragraphs that answer them, which are the passages of a collection.

    Whole articles are held out for development, so that no development question asks for a
    paragraph near one that was trained on.

    Attributes:
      name: one word.
      paragraphs: reads files: `squad.paragraphs`, `qed.paragraphs`. An id that was seen before is
        malformed.
      train: files whose questions train, but for the articles held out.
      test: files whose questions are for the test.
      share: of the articles of either that are read, in (0, 1]. The others are left out whole,
        paragraphs and questions: a smaller collection, and an easier one.
      dev_share: share of the training articles that are held out, in [0, 1).
      seed: chooses both.
      disjoint: whether an article in training and test files is an error.
    """

    name: str
    paragraphs: Callable[[Sequence[str], Seen, BadRecords], Iterator[Paragraph]]
    train: Sequence[str]
    test: Sequence[str]
    share: float
    dev_share: float
    seed: int
    disjoint: bool = True

    def read(self, bad: BadRecords) -> list[tuple[str, Paragraph]]:
        """Each paragraph with its split, in file order, reporting malformed ones to `bad`.

        Raises:
          SourceError: a file cannot be read, an article is in both, or too many malformed records.
          ValueError: a share outside its bounds, or one that holds out everything.
        """
        seen = Seen(text_sources.UniqueIds(), text_sources.UniqueIds())
        trained, tested = (
            sample(list(self.paragraphs(files, seen, bad)), self.share, self.seed)
            for files in (self.train, self.test)
        )
        articles = {paragraph.article for paragraph in trained}
        both = articles & {paragraph.article for paragraph in tested}
        if both and self.disjoint:
            raise SourceError(
                f"{len(both)} articles are in the training and the test files, such as "
                f"{sorted(both)[0]!r}; expected no article in both"
            )
        held_out = hold_out(sorted(articles), self.dev_share, self.seed)
        splits = ["dev" if paragraph.article in held_out else "train" for paragraph in trained]
        return [*zip(splits, trained, strict=True), *(("test", one) for one in tested)]


def sample(found: list[Paragraph], share: float, seed: int) -> list[Paragraph]:
    """The paragraphs of a share of their articles, at least one article, in the order given."""
    if not 0 < share <= 1:
        raise ValueError(f"share: expected above 0 and at most 1, found {share}")
    kept = _choose(sorted({paragraph.article for paragraph in found}), share, seed)
    return [paragraph for paragraph in found if paragraph.article in kept]


def hold_out(articles: Sequence[str], share: float, seed: int) -> set[str]:
    """A share of the articles, at least one unless the share is 0."""
    if not 0 <= share < 1:
        raise ValueError(f"dev_share: expected at least 0 and below 1, found {share}")
    chosen = _choose(articles, share, seed)
    if chosen and len(chosen) == len(articles):
        raise ValueError(
            f"dev_share: {share} of {len(articles)} articles leaves none to train on; lower it"
        )
    return chosen


def _choose(articles: Sequence[str], share: float, seed: int) -> set[str]:
    """Draw a share of the articles, rounded up."""
    order = np.random.default_rng(seed).permutation(len(articles))
    return {articles[i] for i in order[: int(np.ceil(share * len(articles)))]}


@dataclasses.dataclass(frozen=True)
class AskedSet:
    """Questions with answers only; it is unknown whether the corpus answers them.

    Rows of the files have `id` or `_id`, `question` or `text`, `answers`, and 'regex' as
    `answer_type` where these are regular expressions.

    Attributes:
      name: one word.
      train: files whose questions train.
      test: files whose questions are for the test.
      max_questions: questions of either that are read at most, drawn by `seed`; 0 for all.
      seed: draws them.
    """

    name: str
    train: Sequence[str]
    test: Sequence[str]
    max_questions: int = 0
    seed: int = 0

    def read(self, bad: BadRecords) -> list[tuple[str, Question]]:
        """Each question with its split, in file order, reporting malformed ones to `bad`.

        Raises:
          SourceError: a file cannot be read, has no questions, or too many malformed records.
          ValueError: a negative `max_questions`.
        """
        if self.max_questions < 0:
            raise ValueError(
                f"{self.name}: expected max_questions of at least 0, found {self.max_questions}"
            )
        unique = text_sources.UniqueIds()
        found = []
        for split, files in (("train", self.train), ("test", self.test)):
            read = [one for path in files for one in asked(path, unique, bad)]
            if files and not read:
                raise SourceError(f"{', '.join(files)}: expected questions, found none")
            order = np.random.default_rng(self.seed).permutation(len(read))
            kept = sorted(order[: self.max_questions or None])
            found += [(split, read[i]) for i in kept]
        return found


def asked(path: str, unique: text_sources.UniqueIds, bad: BadRecords) -> Iterator[Question]:
    """The questions of a jsonl file, see `AskedSet`; an id that `unique` knows is malformed."""
    for number, line, row in text_sources.json_lines(path, MAX_LINE_BYTES, bad):
        try:
            name = new_id(row, "_id" if "_id" in row else "id", unique, path, number)
            text = question_text(row, "question" if "question" in row else "text")
            yield Question(name, text, answer_fields(answers.answers_of(row)))
        except FieldError as error:
            bad.add(f"{path}:{number}", error.reason, str(error), line)


def require_names(names: Sequence[str]) -> None:
    """Raises ValueError unless these are distinct names of sets, at least one."""
    if not names or len(set(names)) != len(names):
        raise ValueError(f"sets: expected one or more, of distinct names, found {list(names)}")
    for name in names:
        if not re.fullmatch(r"\w+", name):
            raise ValueError(f"sets: expected names of letters, digits and _, found {name!r}")


def new_id(
    row: Mapping[str, object], field: str, unique: text_sources.UniqueIds, file: str, line: int
) -> str:
    """The id of a row; raises FieldError for one that `unique` knows."""
    name = text_field(row, field, is_id=True)
    if before := unique.first(name, file, line):
        raise FieldError("duplicate_id", f"id {name!r} was already given in {before}")
    return name


def question_text(row: Mapping[str, object], field: str) -> str:
    """Question of a row; raises FieldError if it is empty."""
    text = text_field(row, field).strip()
    if not text:
        raise FieldError("empty_question", f"field {field!r}: expected words, found none")
    return text


def answer_fields(given: answers.Answers) -> dict[str, Any]:
    """Answers as a row of queries.jsonl has them."""
    kind = {"answer_type": "regex"} if given.is_regex else {}
    return {"answers": list(given.texts), **kind}
