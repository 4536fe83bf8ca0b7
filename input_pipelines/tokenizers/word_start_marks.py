"""Mark word starts among the pieces of any tokenizer, for whole-word masking.

A word is what BERT's own tokenizer calls one: a run of characters between white space, punctuation
and Chinese characters, and each punctuation mark and Chinese character by itself. Tokenizers that
only cut at spaces (SentencePiece) would make one word of "world," and of a whole Chinese sentence,
which no mask budget holds. A piece that spans such a boundary, like "▁world,", stays whole.

Other scripts that are written without spaces (kana, Thai) have no such boundaries. There each piece
is a word: SentencePiece's pieces are word-like, and a whole sentence would never be masked. Only
WordPiece keeps one word up to the next space or mark: "##" says so, and the official routine obeys.
"""

import functools
import unicodedata
from collections.abc import Sequence

import numpy as np

# The ranges that BERT's normalizer puts spaces around: CJK ideographs, not kana or hangul.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_ASCII_MARKS = ((33, 47), (58, 64), (91, 96), (123, 126))  # "$" and "^" are marks too, for BERT
_UNSPACED = (  # scripts written without spaces between words
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x0FFF),  # Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # kana
    (0x31F0, 0x31FF),
    (0xFF66, 0xFF9D),
)
_CODE_POINTS = 0x110000


@functools.cache
def _alone() -> np.ndarray:
    """bool [code points]: characters that are words by themselves."""
    categories = (unicodedata.category(chr(i)) for i in range(_CODE_POINTS))
    alone = np.fromiter((c[0] == "P" for c in categories), np.bool_, _CODE_POINTS)
    for first, last in (*_IDEOGRAPHS, *_ASCII_MARKS):
        alone[first : last + 1] = True
    return alone


@functools.cache
def _spaces() -> np.ndarray:
    """bool [code points]: white space."""
    return np.fromiter((chr(i).isspace() for i in range(_CODE_POINTS)), np.bool_, _CODE_POINTS)


@functools.cache
def _unspaced() -> np.ndarray:
    """bool [code points]: characters of scripts without spaces; not signs that join the last."""
    unspaced = np.zeros(_CODE_POINTS, np.bool_)
    for first, last in _UNSPACED:
        for i in range(first, last + 1):
            unspaced[i] = unicodedata.category(chr(i))[0] != "M"
    return unspaced


def word_starts(
    text: str,
    words: Sequence[int | None],
    offsets: Sequence[tuple[int, int]],
    wordpiece: bool = False,
) -> np.ndarray:
    """Mark the pieces that start a word: bool [n].

    Args:
      text: what was tokenized.
      words: for each piece, the number of the stretch of text that the tokenizer cut first; None
        for a special token, which is a word by itself.
      offsets: for each piece, the characters of `text` that it covers.
      wordpiece: whether pieces inside a stretch are marked as such ("##").

    Example, pieces of XLM-R: "Oh, 東京 it"  ->  ▁O h , ▁ 東京 ▁it
                                                 1  0 1 1  0    1
    """
    number = np.array([-1 if w is None else w for w in words], np.int64)
    starts = np.ones(len(number), np.bool_)
    starts[1:] = (number[1:] != number[:-1]) | (number[1:] < 0)
    inside = ~starts
    if not inside.any():
        return starts
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    alone, space = _alone()[characters], _spaces()[characters]
    begin, end = np.array(offsets, np.int64).reshape(-1, 2).T
    # Byte-level pieces may share a character: only one that begins a new one can start a word.
    fresh = np.flatnonzero(inside & (begin > 0) & (begin < len(characters)))
    fresh = fresh[begin[fresh] >= end[fresh - 1]]
    at = begin[fresh]
    boundary = alone[at] | alone[at - 1]
    if not wordpiece:
        boundary |= _unspaced()[characters[at]]
    starts[fresh] = boundary & ~space[at - 1] & ~space[at]
    return starts


def without_space(text: str, offsets: np.ndarray) -> np.ndarray:
    """Offsets of pieces, int64 [n, 2], moved past the white space that a piece begins with."""
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    space = np.append(_spaces()[characters], False)
    moved = offsets.copy()
    while (leading := space[moved[:, 0]] & (moved[:, 0] < moved[:, 1])).any():
        moved[:, 0] += leading
    return moved
