"""Texts in memory as batches of token groups, for texts that are in no token store."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from input_pipelines.store import layouts
from input_pipelines.tokenizers.question_tokens import token_group
from input_pipelines.tokenizers.tokenization import Tokenizer


class TextBatches:
    """Texts that are tokenized batch by batch; one a row.

    Attributes:
      ids: one for each text.
      segment_length: tokens at which texts are cut.
      prefix: text that is put before each.
      layout: TEXT; the texts of passages hold their titles.
      tokenizer_fingerprint: of the tokenizer.
    """

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
        """Token groups of one shape, see `question_tokens.token_group`; free rows are padding."""
        pad = self._tokenizer.vocabulary["pad"]
        for start in range(0, len(self._texts), self._rows):
            texts = [self.prefix + text for text in self._texts[start : start + self._rows]]
            count = len(texts)
            encoded = self._tokenizer.encode_batch(
                texts + [""] * (self._rows - count), self.segment_length
            )
            places = np.arange(start, start + self._rows)
            group = token_group(encoded, self.segment_length, pad, places.tolist())
            group["segment_ids"][count:] = 0
            group["tokens"][count:] = pad
            group["word_starts"][count:] = False
            group["segment_valid"][count:] = False
            group["example_id"][count:] = -1
            yield group


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
