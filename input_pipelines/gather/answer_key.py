"""Questions and their right answers, for an evaluation that compares answers as text."""

import os
from collections.abc import Mapping, Sequence

from input_pipelines.sources import answers, beir, text_sources
from input_pipelines.sources.answers import Answers, Finder
from input_pipelines.sources.text_sources import BadRecords, SourceError
from input_pipelines.store.answer_token_forms import Forms
from input_pipelines.store.token_store import TokenStore


class AnswerKey:
    """The questions of a jsonl file, or of a BEIR folder, that have answers."""

    def __init__(
        self,
        path: str,
        split: str | None = None,
        only: Sequence[str] | None = None,
        max_bad_records: int = 0,
    ):
        """
        Args:
          path: jsonl with `_id` or `id`, `text` or `question`, answers (see `answers.read`), and
            perhaps `set`; or a BEIR folder with such queries.
          split: of the folder: only the questions that it judges.
          only: ids; only these.
          max_bad_records: malformed questions that are left out before this is refused.

        Raises:
          SourceError: more malformed questions than allowed, or none left.
        """
        if split is not None and not os.path.isdir(path):
            raise ValueError(f"split: expected a BEIR folder, which has splits, found {path}")
        wanted = None if only is None else set(only)
        if split is not None:
            judged = set(beir.query_ids(path, split))
            wanted = judged if wanted is None else wanted & judged
        file = beir.find(path, "queries.jsonl") if os.path.isdir(path) else path
        bad = BadRecords(max_bad_records)
        read = answers.read(file, bad, wanted)
        texts, sets = _texts(file)
        self._answers: dict[str, Answers] = {
            name: one for name, one in read.items() if one is not None
        }
        if not self._answers:
            raise SourceError(f"{path}: no question with answers is left (split {split!r})")
        untold = [name for name in self._answers if name not in texts]
        if untold:
            raise SourceError(
                f"{path}: {len(untold)} questions have no 'text' (or 'question'), the first is "
                f"{untold[0]!r}"
            )
        self._questions = {name: texts[name] for name in self._answers}
        self._sets = {name: sets[name] for name in self._answers if name in sets}
        self._finders: dict[str, Finder] = {}

    def questions(self) -> Mapping[str, str]:
        """Id -> text, in the order of the file."""
        return self._questions

    def sets(self) -> Mapping[str, str]:
        """Id -> the set that a question is of, of those that say so."""
        return self._sets

    def exact(self, question: str, prediction: str) -> bool:
        """See `Answers.exact`; `question` is an id, as below."""
        return self._answers[question].exact(prediction)

    def f1(self, question: str, prediction: str) -> float:
        """See `Answers.f1`."""
        return self._answers[question].f1(prediction)

    def stands_in(self, question: str, text: str) -> bool:
        """Whether a text holds an answer."""
        finder = self._finders.setdefault(question, Finder([self._answers[question]]))
        return bool(finder.find(text))


def _texts(file: str) -> tuple[dict[str, str], dict[str, str]]:
    """Id -> text, and id -> set."""
    texts, sets = {}, {}
    for _, _, row in text_sources.json_lines(file, 1 << 24, BadRecords.counted_before()):
        name, text = str(row.get("_id", row.get("id"))), row.get("text", row.get("question"))
        if isinstance(text, str):
            texts[name] = text
        if isinstance(row.get("set"), str):
            sets[name] = str(row["set"])
    return texts, sets


def answered_ids(answers: str, store: str) -> list[str]:
    """The questions of a store that have an answer in the corpus that was searched for them.

    Args:
      answers: the folder of `answer_token_forms.find_forms`.
      store: a token store of questions.
    """
    asked = TokenStore.open(store)
    counts = Forms(answers, asked).counts
    return [name for name, count in zip(asked.ids, counts, strict=True) if count]
