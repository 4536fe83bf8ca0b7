"""Questions with windows of the passage that answers them, as rows of a store and in batches.

    [CLS] question [SEP] window of the passage [SEP]

A passage that is too long is read in windows, each of which begins `stride` tokens after the one
before it and holds as many as the question leaves. A worked case, a question of 2 tokens, a passage
of 6 whose answer is tokens 3 and 4, windows of 8 tokens in all, stride 2:

    window 0    CLS q q SEP a b c SEP      start, end   0 0    (it is not wholly there: [CLS])
    window 1    CLS q q SEP c d e SEP                   5 6
    window 2    CLS q q SEP e f SEP                     0 0
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from input_pipelines.batches import prefetch, token_groups
from input_pipelines.batches.packed_text import Pipeline, open_stores
from input_pipelines.sources.text_sources import Record
from input_pipelines.store import layouts
from input_pipelines.store.layouts import Rows
from input_pipelines.store.store_writer import StoreRecord
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers.tokenization import Pieces, Tokenizer

NAME = "question_windows"
SPAN = "span"  # table [rows, 2] int32: the answer's first and last token in the row, or 0 and 0
GROUP = "text"


class Window(NamedTuple):
    """Attributes:
    tokens: int32 [n], specials included.
    word_starts: bool [n].
    body_at: place of the passage's first token that is there.
    first: which one of the passage's tokens that is.
    """

    tokens: np.ndarray
    word_starts: np.ndarray
    body_at: int
    first: int

    @property
    def last(self) -> int:
        """Number of the passage's last token that is there."""
        return self.first + len(self.tokens) - self.body_at - 2


@dataclasses.dataclass(frozen=True)
class QuestionWindows(layouts.Plain):
    """A layout (`layouts.Layout`): windows of a record, its title asked and its text the passage.

    The record's source, "start:end", gives the characters of the passage that are the answer; one
    without a token has no rows, and is counted as truncated, and so is one whose question
    is cut.

    Attributes:
      question_length: tokens of a question at most, its [CLS] and [SEP] included.
      stride: passage tokens between the beginnings of two windows.
    """

    question_length: int
    stride: int

    @property
    def name(self) -> str:
        """See `Layout`; says where questions are cut, too."""
        return f"{NAME}:{self.question_length}:{self.stride}"

    def windows(
        self, question: Pieces, passage: Pieces, tokenizer: Tokenizer, length: int
    ) -> list[Window]:
        """All windows of at most `length` tokens, in order; of a passage without tokens, one.

        Raises:
          ValueError: a window would not hold `stride` tokens of a passage: some would be in none.
        """
        if not 3 <= self.question_length <= length - 1 - self.stride or self.stride < 1:
            raise ValueError(
                "QuestionWindows: expected question_length of 3 or more and stride of 1 or more, "
                f"together at most {length - 1}, tokens of a window less [SEP]; found "
                f"{self.question_length} and {self.stride}"
            )
        cls, sep = (int(tokenizer.vocabulary[role]) for role in ("cls", "sep"))
        asked = slice(0, self.question_length - 2)
        before = np.concatenate([[cls], question.tokens[asked], [sep]])
        starts = np.concatenate([[True], question.word_starts[asked], [True]])
        room, count = length - len(before) - 1, len(passage.tokens)
        found = []
        for first in range(0, max(count, 1), self.stride):
            part = slice(first, first + room)
            tokens = np.concatenate([before, passage.tokens[part], [sep]]).astype(np.int32)
            words = np.concatenate([starts, passage.word_starts[part], [True]])
            found.append(Window(tokens, words, len(before), first))
            if first + room >= count:
                break
        return found

    def rows(
        self, records: Sequence[Record], tokenizer: Tokenizer, length: int, prefix: str
    ) -> Rows:
        """See `Layout`.

        Raises:
          ValueError: a prefix, sizes that do not fit, or a record whose source is no span.
        """
        layouts.require_no_prefix(self, prefix)
        asked = tokenizer.pieces([record.title for record in records])
        read = tokenizer.pieces([record.text for record in records])
        rows: list[StoreRecord] = []
        spans: list[tuple[int, int]] = []
        truncated = 0
        for record, question, passage in zip(records, asked, read, strict=True):
            span = _tokens_of(passage, *_characters_of(record))
            truncated += span is None or len(question.tokens) > self.question_length - 2
            windows = self.windows(question, passage, tokenizer, length)
            for number, window in enumerate(windows if span is not None else ()):
                name = f"{record.id}#{number}"
                rows.append(
                    StoreRecord(
                        *(name, record.title, record.text, record.source),
                        *(window.tokens, window.word_starts),
                    )
                )
                spans.append(_in_window(window, span) if span else (0, 0))
        return Rows(rows, truncated, {SPAN: np.array(spans, np.int32).reshape(-1, 2)})


def _characters_of(record: Record) -> tuple[int, int]:
    start, _, end = record.source.partition(":")
    if not (start.isdecimal() and end.isdecimal() and int(start) < int(end) <= len(record.text)):
        raise ValueError(
            f"record {record.id!r}: expected its source to say the characters of its answer, as "
            f"'12:17', among {len(record.text)}; found {record.source!r}. "
            "squad_questions.AskedPassages gives such records."
        )
    return int(start), int(end)


def _tokens_of(passage: Pieces, start: int, end: int) -> tuple[int, int] | None:
    """First and last token that overlap these characters; None if none do."""
    begins, ends = passage.offsets[:, 0], passage.offsets[:, 1]
    inside = np.flatnonzero((begins < end) & (ends > start) & (ends > begins))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def _in_window(window: Window, span: tuple[int, int]) -> tuple[int, int]:
    """Places in the row; those of [CLS] where the answer is not wholly there."""
    if span[0] < window.first or span[1] > window.last:
        return 0, 0
    shift = window.body_at - window.first
    return span[0] + shift, span[1] + shift


class QuestionWindowsPipeline(Pipeline):
    """Windows of one or more stores with their answers, packed into rows or one a row, endless.

    Plan, order and resuming are `Pipeline`'s: the batch of a step is a function of it alone.
    """

    def __init__(
        self,
        stores: Sequence[str | TokenStore],
        *,
        question_length: int,
        window: int,
        seed: int,
        rows: int,
        length: int,
        segments: int,
        block: int = 4096,
        tokenizer: str | None = None,
    ):
        """
        Args:
          stores: token store folders, prepared with `QuestionWindows`.
          question_length: tokens at which questions were cut.
          window: tokens of a row of the stores at most.
          seed, rows, length, segments, block, tokenizer: see `Pipeline`; 1 segment gives each
            window a separate row.

        Raises:
          ValueError, StoreError: as `Pipeline`; stores of other rows; not one window with an
            answer.
        """
        opened = open_stores(stores, tokenizer)
        for store in opened:
            _require(store, question_length, window)
        self._spans = np.concatenate([np.asarray(one.table(SPAN)) for one in opened])
        if not self._spans.any():
            raise StoreError(
                f"token stores {[store.folder for store in opened]}: expected windows that hold an "
                "answer, found none: prepare them with a larger LENGTH"
            )
        super().__init__(
            opened, weights=None, temperature=1.0, seed=seed, rows=rows, length=length,
            segments=segments, block=block, group=GROUP, tokenizer=tokenizer,
        )  # fmt: skip

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        place = ((self.plan.rows, self.plan.segments), np.dtype(np.int32))
        return {GROUP: super().specs()[GROUP] | {"start": place, "end": place}}

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """See `Pipeline.batch`; `text` has `start` and `end` [B, S] int32, too, -1 where free."""
        group = super().batch(step, rows)[GROUP]
        spans = token_groups.at(self._spans, group["example_id"])  # [B, S, 2]
        return {GROUP: group | {"start": spans[..., 0], "end": spans[..., 1]}}


def _require(store: TokenStore, question_length: int, window: int) -> None:
    name, _, rest = str(store.manifest["layout"]).partition(":")
    if name != NAME:
        raise StoreError(
            f"token store {store.folder}: expected questions with passages, prepared with "
            f"runs/stores/question_windows.gin, found rows of layout {store.manifest['layout']!r}"
        )
    if int(rest.partition(":")[0]) != question_length:
        raise StoreError(
            f"token store {store.folder}: expected questions cut at {question_length} tokens, "
            f"found {rest.partition(':')[0]}: bind QUERY_LENGTH to what it was prepared with"
        )
    if store.max_length > window:
        raise StoreError(
            f"token store {store.folder}: expected windows of at most {window} tokens, found "
            f"{store.max_length}: bind WINDOW to the LENGTH that it was prepared with"
        )
