"""Questions with windows of their passages, to be answered, and their right answers."""

from collections.abc import Iterator

import numpy as np

from input_pipelines.batches import packing_plan, prefetch, token_groups
from input_pipelines.batches.packed_text import PREFETCH
from input_pipelines.batches.question_windows import GROUP, QuestionWindows, Window
from input_pipelines.sources import answers, squad_questions
from input_pipelines.sources.text_sources import BadRecords
from input_pipelines.store.token_store import Passages
from input_pipelines.tokenizers.tokenization import Tokenizer

_AT_ONCE = 1024  # questions that are tokenized together


class WindowsToAnswer:
    """Questions with their passages in windows, and an answer key.

    Texts are tokenized here, so that a span of tokens can be shown as characters of the passage.

    Attributes:
      ids: "QUESTION#NUMBER" of each window.
      question_of: int64 [windows], the place of each window's question among `questions()`.
    """

    def __init__(
        self,
        questions: squad_questions.AskedPassages,
        tokenizer: str,
        layout: QuestionWindows,
        window: int,
        rows: int,
        length: int,
        segments: int,
        each: int | None = None,
        max_bad_records: int = 0,
    ):
        """
        Args:
          questions: that windows are made of.
          tokenizer: a tokenizer's folder.
          layout: how windows are cut.
          window: tokens of one at most.
          rows, length, segments: of a batch.
          each: of each language at most this many, from all over; None: all.
          max_bad_records: malformed questions that are left out before this is refused.

        Raises:
          ValueError: a size out of range.
          SourceError: as `AskedPassages.asked`, or more malformed questions than allowed.
        """
        packing_plan.check_sizes("WindowsToAnswer", window=window, rows=rows, segments=segments)
        if window > length:
            raise ValueError(
                f"WindowsToAnswer.length: expected rows of at least {window}, found {length}"
            )
        self._asked = _some(list(questions.asked(BadRecords(max_bad_records))), each)
        self._answers: dict[str, answers.Answers] = {one.id: one.answers for one in self._asked}
        self._shape = (rows, length, segments)
        loaded = Tokenizer(tokenizer)
        self.tokenizer_fingerprint = loaded.fingerprint
        self._windows: list[Window] = []
        self._offsets: list[np.ndarray] = []  # of each question's passage, int64 [m, 2]
        owners: list[int] = []
        for start in range(0, len(self._asked), _AT_ONCE):
            part = self._asked[start : start + _AT_ONCE]
            read = loaded.pieces([one.passage for one in part])
            asked = loaded.pieces([one.question for one in part])
            for place, both in enumerate(zip(asked, read, strict=True), start):
                found = layout.windows(*both, loaded, window)
                self._windows += found
                self._offsets.append(both[1].offsets)
                owners += [place] * len(found)
        self.question_of = np.array(owners, np.int64)
        first = np.searchsorted(self.question_of, self.question_of)
        self.ids = [
            f"{self._asked[owner].id}#{number}"
            for owner, number in zip(owners, (np.arange(len(owners)) - first).tolist(), strict=True)
        ]
        lengths = np.array([len(window.tokens) for window in self._windows])
        slots = packing_plan.pack_rows(lengths, length, segments)
        spare = np.full((-len(slots) % rows, segments), token_groups.NONE)
        self._slots = np.concatenate([slots, spare])

    def batches(self) -> Iterator[token_groups.Group]:
        """Groups of one shape, prefetched; the last one's free rows are padding."""
        rows = self._shape[0]
        groups = prefetch.Prefetched(
            lambda number: {GROUP: self._group(number)},
            {GROUP: token_groups.group_spec(*self._shape)},
            0,
            len(self._slots) // rows,
            PREFETCH,
        )
        return (batch[GROUP] for batch in groups)

    def _group(self, number: int) -> token_groups.Group:
        rows, length, _ = self._shape
        slots = self._slots[number * rows : (number + 1) * rows]
        windows = [self._windows[place] for place in slots[slots != token_groups.NONE].tolist()]
        read = Passages(
            np.concatenate([window.tokens for window in windows]),
            np.concatenate([window.word_starts for window in windows]),
            np.array([len(window.tokens) for window in windows]),
        )
        return token_groups.build_group(read, slots, length)

    def text(self, number: int, start: int, end: int) -> str:
        """The text of the passage at the tokens start to end of window `number`.

        '' where a token is none of the passage.
        """
        window, owner = self._windows[number], int(self.question_of[number])
        first, last = (place - window.body_at + window.first for place in (start, end))
        if not window.first <= first <= last <= window.last:
            return ""
        offsets = self._offsets[owner]
        return self._asked[owner].passage[int(offsets[first, 0]) : int(offsets[last, 1])]

    # --- the answer key ---------------------------------------------------------------------------

    def questions(self) -> dict[str, str]:
        """Id -> text."""
        return {one.id: one.question for one in self._asked}

    def sets(self) -> dict[str, str]:
        """Id -> language, of those whose ids begin with one."""
        parts = ((one.id, one.id.partition("/")) for one in self._asked)
        return {name: language for name, (language, slash, _) in parts if slash}

    def exact(self, question: str, prediction: str) -> bool:
        """See `Answers.exact`; `question` is an id, as below."""
        return self._answers[question].exact(prediction)

    def f1(self, question: str, prediction: str) -> float:
        """See `Answers.f1`."""
        return self._answers[question].f1(prediction)

    def stands_in(self, question: str, text: str) -> bool:
        """Whether a text holds an answer."""
        return bool(answers.Finder([self._answers[question]]).find(text))


def _some(asked: list[squad_questions.Asked], each: int | None) -> list[squad_questions.Asked]:
    """Of each language at most `each`, at even distances."""
    if each is None:
        return asked
    packing_plan.check_sizes("WindowsToAnswer", each=each)
    by_language: dict[str, list[squad_questions.Asked]] = {}
    for one in asked:
        language, slash, _ = one.id.partition("/")
        by_language.setdefault(language if slash else "", []).append(one)
    return [one for asked in by_language.values() for one in asked[:: -(-len(asked) // each)]]
