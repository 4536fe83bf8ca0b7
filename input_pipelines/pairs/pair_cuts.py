"""Cuts texts out of passages at word boundaries. NumPy only, all passages of a batch at once.

Positions count through the tokens of all passages of a batch, laid end to end.
"""

import numpy as np

from input_pipelines.batches import token_groups
from input_pipelines.store.token_store import Passages


class Words:
    """Word starts of passages.

    Attributes:
      first, last: int64 [N], positions of each passage's [CLS] and of its last token, the [SEP].
    """

    def __init__(self, passages: Passages):
        """`passages`: those that are cut; each special token counts as a word."""
        ends = np.cumsum(passages.lengths)
        self.first, self.last = ends - passages.lengths, ends - 1
        self._places = np.flatnonzero(passages.word_starts)
        self._before = np.concatenate([[0], np.cumsum(passages.word_starts)])

    def count(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Number of words that start at start .. end - 1: int64 [n]."""
        counts: np.ndarray = self._before[end] - self._before[start]
        return counts

    def at_or_before(self, position: np.ndarray) -> np.ndarray:
        """The last word start that is not after each position: int64 [n]."""
        return self._places[self._before[position + 1] - 1]

    def after(self, position: np.ndarray) -> np.ndarray:
        """The first word start after each position, of which none may be the last: int64 [n]."""
        return self._places[self._before[position + 1]]

    def pick(self, start: np.ndarray, end: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """One of the word starts at start .. end - 1, `start` where there is none: int64 [n].

        Args:
          start, end: int64 [n].
          uniform: float64 [n] in [0, 1): which.
        """
        count = self.count(start, end)
        place = self._before[start] + np.floor(uniform * count).astype(np.int64)
        found = self._places[np.minimum(place, len(self._places) - 1)]
        return np.where(count > 0, found, start)

    def ending(self, start: np.ndarray, size: np.ndarray, limit: int) -> np.ndarray:
        """End of a text of at most `size` tokens that starts at `start`: int64 [n].

        That is before a word start. A first word that is longer than `size` is taken whole; one
        that is longer than `limit` is the only word that is ever cut.
        """
        end = self.at_or_before(start + size)
        return np.where(end > start, end, np.minimum(self.after(start), start + limit))

    def at_most(self, start: np.ndarray, end: np.ndarray, max_tokens: int) -> np.ndarray:
        """`end`, moved back to where at most `max_tokens` tokens of whole words end: int64 [n]."""
        size = np.minimum(end - start, max_tokens)
        return np.where(end - start > max_tokens, self.ending(start, size, max_tokens), end)

    def crop(
        self,
        start: np.ndarray,
        end: np.ndarray,
        min_tokens: int,
        max_tokens: int,
        limit: int,
        uniforms: tuple[np.ndarray, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """A random run of whole words of each text, shorter than the text.

        Args:
          start, end: int64 [n], of the texts; each has two words or more.
          min_tokens, max_tokens: tokens of a crop, before its end moves back to a word start.
          limit: tokens that fit, see `ending`.
          uniforms: two of float64 [n] in [0, 1), for length and start.

        Returns:
          (start, end) of the crops, int64 [n] each.
        """
        size = min_tokens + np.floor(uniforms[0] * (max_tokens - min_tokens + 1)).astype(np.int64)
        size = np.maximum(np.minimum(size, end - start - 1), 1)
        begin = self.pick(start, end - size + 1, uniforms[1])
        return begin, self.ending(begin, size, limit)


def assemble(passages: Passages, spans: np.ndarray) -> Passages:
    """Texts made of spans of tokens.

    With passages [CLS] a b c [SEP], the spans (0, 1), (2, 3), (4, 5) give [CLS] b [SEP].

    Args:
      passages: that spans are of.
      spans: int64 [n, s, 2], start and end of the s spans of each text; some may be empty.

    Returns:
      n texts.
    """
    starts, sizes = spans[..., 0], spans[..., 1] - spans[..., 0]  # [n, s]
    flat = sizes.reshape(-1)
    source = token_groups.within(flat) + np.repeat(starts.reshape(-1), flat)
    return Passages(passages.tokens[source], passages.word_starts[source], sizes.sum(axis=1))


def framed(words: Words, start: np.ndarray, end: np.ndarray, head: int = 1) -> np.ndarray:
    """Spans of "[CLS] start .. end - 1 [SEP]": int64 [n, 3, 2]; `head` tokens in place of [CLS]."""
    return _spans((words.first, words.first + head), (start, end), (words.last, words.last + 1))


def without(words: Words, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Spans of each passage without its tokens start .. end - 1: int64 [n, 2, 2]."""
    return _spans((words.first, start), (end, words.last + 1))


def _spans(*spans: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return np.stack([np.stack(span, axis=1) for span in spans], axis=1).astype(np.int64)


def joined(parts: list[Passages]) -> Passages:
    """Passages of several parts, one part after another."""
    return Passages(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
