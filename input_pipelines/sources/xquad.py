"""Questions and paragraphs that say the same in many languages, in SQuAD's form: XQuAD.

Ids show what belongs together: 'de/Berlin/3/0', the first sentence of a paragraph, and
'el/Berlin/3/56be4db0', a question in another language that the paragraph answers.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence

import sentencex

from input_pipelines.sources import languages, question_sets, squad, text_sources
from input_pipelines.sources.question_sets import Paragraph
from input_pipelines.sources.text_sources import BadRecords, Record, SourceError

WHAT = ("sentences", "questions")


@dataclasses.dataclass(frozen=True)
class ParallelQuestions:
    """The sentences of paragraphs in several languages, or their questions, as a source.

    Titles are left out: they are the same in all languages.

    Attributes:
      folder: of files as `squad.paragraphs` reads them, a language each.
      name: of a file, with {language} in it: 'xquad.{language}.json'.
      languages: their codes, as files are named.
      what: 'sentences' of the paragraphs, or 'questions'.
    """

    folder: str
    name: str
    languages: Sequence[str]
    what: str

    def __post_init__(self) -> None:
        if self.what not in WHAT:
            raise ValueError(f"ParallelQuestions.what: expected one of {WHAT}, found {self.what!r}")
        if "{language}" not in self.name:
            raise ValueError(
                f"ParallelQuestions.name: expected '{{language}}' in it, found {self.name!r}"
            )

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """See `text_sources.TextSource`.

        Raises:
          SourceError: a file cannot be read or has nothing, or two codes are one language.
        """
        for language, path in self._by_language().items():
            seen = question_sets.Seen(text_sources.UniqueIds(), text_sources.UniqueIds())
            found = list(squad.paragraphs([path], seen, bad))
            if not found:
                raise SourceError(f"{path}: expected paragraphs, found none")
            for one in found:
                yield from self._of(language, one)

    def _by_language(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for code in self.languages:
            path = os.path.join(self.folder, self.name.format(language=code))
            language = languages.canonical(code)
            if language in found:
                raise SourceError(f"both {found[language]} and {path} are {language!r}")
            found[language] = path
        return found

    def _of(self, language: str, one: Paragraph) -> Iterator[Record]:
        name, where = f"{language}/{one.passage.id}", one.passage.source
        if self.what == "questions":
            for question in one.questions:
                yield Record(f"{name}/{question.id}", "", question.text, where)
            return
        parts = map(str.strip, sentencex.segment(language, one.passage.text))
        for number, sentence in enumerate(filter(None, parts)):
            yield Record(f"{name}/{number}", "", sentence, where)
