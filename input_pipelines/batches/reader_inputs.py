"""Questions, each with a passage that may answer it, as a reader reads them; and what it points at.

    [CLS] question [SEP] body [SEP]

A passage's title is left out. Texts are tokenized here, so that a span of tokens can be shown as
the characters of the passage that it covers.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from input_pipelines.batches import packing_plan, prefetch
from input_pipelines.batches.packed_text import PREFETCH
from input_pipelines.batches.token_groups import Group, group_spec
from input_pipelines.tokenizers import question_tokens, tokenization

_AT_ONCE = 1024  # texts that are tokenized together


class Reading:
    """Settings of a reader's input texts.

    Attributes:
      query_length, passage_length: tokens at which question and passage are cut, as in training:
        specials included, and of a passage its title's.
      fingerprint: of the tokenizer.
    """

    def __init__(self, tokenizer: str, query_length: int, passage_length: int, rows: int):
        """
        Args:
          tokenizer: a tokenizer's folder.
          query_length, passage_length: see the class.
          rows: of a batch.
        """
        packing_plan.check_sizes(
            "Reading", query_length=query_length - 2, passage_length=passage_length - 3, rows=rows
        )
        self._tokenizer = tokenization.Tokenizer(tokenizer)
        self.query_length, self.passage_length, self.rows = query_length, passage_length, rows
        self.fingerprint = self._tokenizer.fingerprint

    def pairs(self, questions: Sequence[str], passages: Sequence[str]) -> "Pairs":
        """Texts of questions[n] with the body passages[n], in this order."""
        laid: list[_Text] = []
        for start in range(0, len(questions), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            asked = self._tokenizer.pieces(list(questions[part]))
            bodies = self._tokenizer.pieces(list(passages[part]))
            laid += [self._text(*both) for both in zip(asked, bodies, strict=True)]
        return Pairs(laid, self)

    def _text(self, question: tokenization.Pieces, body: tokenization.Pieces) -> "_Text":
        cls, sep = (self._tokenizer.vocabulary[name] for name in ("cls", "sep"))
        asked = question.tokens[: self.query_length - 2]
        room = self.passage_length - 3  # [CLS], [SEP] and [SEP], whatever the title takes
        read = body.tokens[:room]
        tokens = np.concatenate([[cls], asked, [sep], read, [sep]]).astype(np.int32)
        return _Text(tokens, len(asked) + 2, body.offsets[:room])


@dataclasses.dataclass(frozen=True)
class _Text:
    tokens: np.ndarray  # int32 [n]
    body_at: int
    offsets: np.ndarray  # int64 [m, 2], characters of each token of the body


class Pairs:
    """Texts for a reader, one a row, each once; `example_id` is the place in `ids`.

    Attributes:
      ids: "0", "1", ...
    """

    def __init__(self, texts: Sequence[_Text], reading: Reading):
        self._texts, self._reading = texts, reading
        self.ids = [str(number) for number in range(len(texts))]

    @property
    def fingerprint(self) -> str:
        """Of the texts and the shape of batches, as hexadecimal."""
        digest = hashlib.sha256(str(self._shape).encode())
        for text in self._texts:
            digest.update(text.tokens.tobytes())
        return digest.hexdigest()

    @property
    def _shape(self) -> tuple[int, int, int]:
        reading = self._reading
        return reading.rows, reading.query_length + reading.passage_length, 1

    def batches(self) -> Iterator[Group]:
        """Groups of one shape, prefetched; the last one's free rows are padding."""
        rows = self._reading.rows
        groups = prefetch.Prefetched(
            lambda number: {"joint": self._group(number * rows)},
            {"joint": group_spec(*self._shape)},
            0,
            -(-len(self._texts) // rows),
            PREFETCH,
        )
        return (batch["joint"] for batch in groups)

    def _group(self, start: int) -> Group:
        rows, length, _ = self._shape
        texts = self._texts[start : start + rows]
        encoded = [
            tokenization.Tokenized(text.tokens, np.ones(len(text.tokens), np.bool_), 0)
            for text in texts
        ]
        ids = np.arange(start, start + len(texts))
        group = question_tokens.token_group(encoded, length, 0, ids.tolist())
        free = rows - len(texts)
        return {
            name: np.pad(array, ((0, free), (0, 0)), constant_values=-1 * (name == "example_id"))
            for name, array in group.items()
        }

    def characters(self, number: int, start: int, end: int) -> tuple[int, int] | None:
        """The range of characters of passage `number` that tokens start to end of its text cover.

        Args:
          number: of the pair.
          start, end: first and last token, in its row.

        Returns:
          start and end; None where a token is none of the passage.
        """
        text = self._texts[number]
        first, last = start - text.body_at, end - text.body_at
        if not 0 <= first <= last < len(text.offsets):
            return None
        return int(text.offsets[first, 0]), int(text.offsets[last, 1])
