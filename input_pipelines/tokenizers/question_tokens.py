"""Tokenize texts that are not in a store, such as new questions, into token groups."""

from collections.abc import Sequence

import numpy as np

from input_pipelines.tokenizers.tokenization import Tokenized, Tokenizer


def token_group(
    encoded: Sequence[Tokenized], length: int, pad: int, example_ids: Sequence[int]
) -> dict[str, np.ndarray]:
    """One text a row, one segment a row.

    Returns:
      tokens, positions, segment_ids int32 [B, length]; word_starts bool [B, length];
      cls_at, example_id int32 [B, 1]; segment_valid bool [B, 1].
    """
    rows = len(encoded)
    group = {
        "tokens": np.full((rows, length), pad, np.int32),
        "positions": np.zeros((rows, length), np.int32),
        "segment_ids": np.zeros((rows, length), np.int32),
        "word_starts": np.zeros((rows, length), np.bool_),
        "cls_at": np.zeros((rows, 1), np.int32),
        "segment_valid": np.ones((rows, 1), np.bool_),
        "example_id": np.asarray(example_ids, np.int32).reshape(rows, 1),
    }
    for row, one in enumerate(encoded):
        n = len(one.tokens)
        group["tokens"][row, :n] = one.tokens
        group["positions"][row, :n] = np.arange(n)
        group["segment_ids"][row, :n] = 1
        group["word_starts"][row, :n] = one.word_starts
    return group


class QuestionEncoder:
    """Turns questions into the token group that a query encoder takes."""

    def __init__(self, tokenizer: str, length: int, prefix: str):
        """tokenizer: folder. length: tokens a question. prefix: put before each question."""
        self._tokenizer = Tokenizer(tokenizer)
        self.folder = tokenizer
        self.length = length
        self.prefix = prefix

    @property
    def fingerprint(self) -> str:
        """That of the tokenizer."""
        return self._tokenizer.fingerprint

    def tokens(self, question: str) -> int:
        """Number of tokens of a question, specials included, before it is cut."""
        return len(self._tokenizer.pieces([self.prefix + question])[0].tokens) + 2

    def __call__(self, questions: Sequence[str]) -> dict[str, np.ndarray]:
        """A token group of len(questions) rows; see token_group."""
        encoded = self._tokenizer.encode_batch([self.prefix + q for q in questions], self.length)
        pad = self._tokenizer.vocabulary["pad"]
        return token_group(encoded, self.length, pad, range(len(questions)))
