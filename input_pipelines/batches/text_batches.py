"""Batches of token groups from texts in memory, for texts that are in no token store."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from input_pipelines.store import layouts
from input_pipelines.tokenizers.question_tokens import token_group
from input_pipelines.tokenizers.tokenization import Tokenizer


class TextBatches:
    """Texts, tokenized on demand; one a row, texts of one length together.

    Attributes:
      ids: one for each text.
      segment_length: tokens at which texts are cut.
      prefix: text that is put before each.
      layout: TEXT; the texts of passages hold their titles.
      tokenizer_fingerprint: of the tokenizer.
      cls_every: None: a text has one [CLS].
    """

    cls_every = None

    def __init__(
        self,
        tokenizer: Tokenizer,
        ids: Sequence[str],
        texts: Sequence[str],
        length: int,
        prefix: str,
        rows: int,
    ) -> None:
        """Args:
          tokenizer: makes the tokens.
          ids: one for each text.
          texts: without prefix.
          length: tokens at which texts are cut.
          prefix: text that is put before each.
          rows: of a batch.

        Raises:
          ValueError: no texts, or another number of ids.
        """
        if not texts or len(ids) != len(texts) or rows < 1:
            raise ValueError(
                f"TextBatches: expected at least one text, an id for each and rows of at least 1, "
                f"found {len(texts)} texts, {len(ids)} ids and {rows} rows"
            )
        self.ids, self._texts, self._rows = list(ids), list(texts), rows
        self._tokenizer = tokenizer
        self.segment_length, self.prefix, self.layout = length, prefix, layouts.TEXT
        self.tokenizer_fingerprint = tokenizer.fingerprint

    @property
    def fingerprint(self) -> str:
        """Of the texts and of the shape of their batches, as hexadecimal."""
        parts = (self.ids, self._texts, self.segment_length, self.prefix, self._rows)
        return hashlib.sha256(repr((*parts, self.tokenizer_fingerprint)).encode()).hexdigest()

    def part(self, start: int, end: int) -> "TextBatches":
        """The texts start to end - 1 as a separate source."""
        return TextBatches(
            self._tokenizer, self.ids[start:end], self._texts[start:end], self.segment_length,
            self.prefix, self._rows,
        )  # fmt: skip

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """Token groups, see `question_tokens.token_group`; free rows are padding.

        The longest texts come first. A group is as wide as the first of `widths` that its texts
        fit, so that there are few shapes to compile and little padding.
        """
        encoded = self._tokenizer.encode_batch(
            [self.prefix + text for text in self._texts], self.segment_length
        )
        (empty,) = self._tokenizer.encode_batch([""], self.segment_length)
        lengths = np.array([len(one.tokens) for one in encoded])
        order = np.argsort(-lengths, kind="stable")
        pad = self._tokenizer.vocabulary["pad"]
        for start in range(0, len(order), self._rows):
            chosen = order[start : start + self._rows]
            count, free = len(chosen), self._rows - len(chosen)
            width = next(one for one in self.widths if one >= lengths[chosen[0]])
            texts = [encoded[place] for place in chosen] + [empty] * free
            group = token_group(texts, width, pad, [*chosen, *[-1] * free])
            group["segment_ids"][count:] = 0
            group["tokens"][count:] = pad
            group["word_starts"][count:] = False
            group["segment_valid"][count:] = False
            yield group

    @property
    def widths(self) -> list[int]:
        """Tokens in a row: a quarter of `segment_length`, two, three, all of it."""
        return [-(-self.segment_length * quarter // 4) for quarter in (1, 2, 3, 4)]


class TextBatcher:
    """Makes a `TextBatches` of any texts, with one tokenizer."""

    def __init__(self, tokenizer: str, rows: int = 32) -> None:
        """Args:
        tokenizer: folder.
        rows: of a batch.
        """
        self._tokenizer, self._rows = Tokenizer(tokenizer), rows

    def __call__(
        self, ids: Sequence[str], texts: Sequence[str], length: int, prefix: str
    ) -> TextBatches:
        """The source; arguments as for `TextBatches`."""
        return TextBatches(self._tokenizer, ids, texts, length, prefix, self._rows)
