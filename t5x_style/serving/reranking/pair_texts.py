"""Questions with passages as a re-ranker reads them, from texts, outside of a token store."""

from collections.abc import Iterator, Sequence

import numpy as np

from t5x_style.interfaces.objective import Group
from t5x_style.interfaces.representation import QUERY
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.serving.service import Tokens
from t5x_style.serving.text_tokens import TextTokenizer

ROWS = 16  # pairs of a batch
_WIDTH = 32  # lengths of batches are multiples of it, so that few programs are compiled


def pairs(
    tokenizer: TextTokenizer, passages: Passages, question: str, rows: np.ndarray
) -> list[Tokens]:
    """A question with each of some passages.

    Args:
      tokenizer: of the re-ranker.
      passages: all of them.
      question: in words.
      rows: [n] of the passages.
    """
    (asked,) = tokenizer(QUERY, [question])
    found = [passages.passage(int(row)) for row in rows]
    texts = tokenizer.passages([(one.title, one.text) for one in found])
    return [tokenizer.pairs.scored(asked, one) for one in texts]


class PairTexts:
    """Implements `texts.Batched`, a pair a row; the last batch's free rows are padding.

    Attributes:
      ids: the places of the pairs, as text.
    """

    def __init__(self, pairs: Sequence[Tokens], pad: int) -> None:
        """Args:
        pairs: at least one.
        pad: id of [PAD].
        """
        self._pairs, self._pad = pairs, pad
        self.ids = [str(number) for number in range(len(pairs))]

    def batches(self) -> Iterator[Group]:
        """See the class."""
        longest = max(len(one.ids) for one in self._pairs)
        shape = (ROWS, -(-longest // _WIDTH) * _WIDTH)
        for start in range(0, len(self._pairs), ROWS):
            part = self._pairs[start : start + ROWS]
            tokens, mask = np.full(shape, self._pad, np.int32), np.zeros(shape, np.int32)
            for row, one in enumerate(part):
                tokens[row, : len(one.ids)] = one.ids
                mask[row, : len(one.ids)] = 1
            numbers = np.arange(ROWS, dtype=np.int32)[:, None]
            yield {
                "tokens": tokens,
                "positions": np.arange(shape[1], dtype=np.int32) * mask,
                "segment_ids": mask,
                "cls_at": np.zeros((ROWS, 1), np.int32),
                "segment_valid": numbers < len(part),
                "example_id": start + numbers,
            }
