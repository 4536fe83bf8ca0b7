"""MCLS: insert another [CLS] into a long text after every `every` tokens. NumPy only.

Chen et al. 2024, arXiv:2402.03216, appendix. Everywhere `every` is how many tokens of a text follow
a [CLS]; None means a single [CLS].
"""

import numpy as np

from input_pipelines.batches.token_groups import within
from input_pipelines.store.token_store import Passages


def repeat(passages: Passages, every: int | None) -> Passages:
    """The first token of each passage, [CLS], once more before each further `every` of its text.

    With 2: [CLS] a b c [SEP] -> [CLS] a b [CLS] c [SEP].
    """
    lengths = with_repeated(passages.lengths, every)
    if every is None or np.array_equal(lengths, passages.lengths):
        return passages
    inside = within(lengths)
    starts = np.repeat(np.cumsum(passages.lengths) - passages.lengths, lengths)
    block, place = np.divmod(inside, every + 1)
    source = starts + np.where(place == 0, 0, inside - block)
    source[np.cumsum(lengths) - 1] = np.cumsum(passages.lengths) - 1  # [SEP] is no token of a text
    return Passages(passages.tokens[source], passages.word_starts[source], lengths)


def with_repeated(lengths: np.ndarray, every: int | None) -> np.ndarray:
    """Tokens of passages of `lengths` tokens, [CLS] and [SEP] included, after `repeat`."""
    if every is None:
        return lengths
    return lengths + np.maximum(-(-(lengths - 2) // every) - 1, 0)


def longest(length: int, every: int | None) -> int:
    """Tokens of the longest passage that has at most `length` of them after `repeat`."""
    lengths = np.arange(2, length + 1)
    return int(lengths[with_repeated(lengths, every) <= length].max())
