"""Finds texts that say nearly the same thing: exact Jaccard similarity of word shingles.

No text is compared with all others. Shingles are put in one global order, rarest first; two sets
with Jaccard similarity >= t must then share one of their first |S| - ceil(t |S|) + 1 shingles
(prefix filtering: Chaudhuri et al. 2006, Bayardo et al. 2007), so only these are looked up. The
result is exact, unlike that of min-hashing, and rare shingles have short lists.
"""

import collections
import math
import re
from collections.abc import Sequence

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Lower-case words of a text, punctuation and layout aside."""
    return _WORD.findall(text.lower())


def shingles(text: str, size: int) -> frozenset[tuple[str, ...]]:
    """The runs of `size` words in a text; a shorter text is one run."""
    found = words(text)
    return frozenset(
        tuple(found[i : i + size]) for i in range(max(1, len(found) - size + 1)) if found
    )


def duplicate_of(texts: Sequence[str], threshold: float, shingle_size: int) -> dict[int, int]:
    """For each text that nearly repeats an earlier one that is kept: index -> the earlier index.

    Args:
      texts: in order of precedence: the first of several near duplicates is kept.
      threshold: Jaccard similarity in (0, 1] from which two texts count as duplicates.
      shingle_size: words a shingle.

    Example, threshold 0.5, shingle_size 1:
      ["a b c", "a b", "x"]  ->  {1: 0}     since |{a,b}| / |{a,b,c}| = 0.67
    """
    if not 0.0 < threshold <= 1.0:
        raise ValueError(f"threshold={threshold}: expected a Jaccard similarity in (0, 1]")
    sets = [shingles(text, shingle_size) for text in texts]
    frequency = collections.Counter(s for one in sets for s in one)
    index: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
    out: dict[int, int] = {}
    for i, one in enumerate(sets):
        ordered = sorted(one, key=lambda s: (frequency[s], s))
        prefix = ordered[: len(ordered) - math.ceil(threshold * len(ordered)) + 1]
        match = _first_match(one, prefix, index, sets, threshold)
        if match is not None:
            out[i] = match
            continue
        for shingle in prefix:
            index[shingle].append(i)
    return out


def _first_match(
    one: frozenset[tuple[str, ...]],
    prefix: Sequence[tuple[str, ...]],
    index: dict[tuple[str, ...], list[int]],
    sets: Sequence[frozenset[tuple[str, ...]]],
    threshold: float,
) -> int | None:
    """The earliest indexed set that is similar enough to `one`."""
    for j in sorted({j for shingle in prefix for j in index.get(shingle, ())}):
        shared = len(one & sets[j])
        if shared >= threshold * (len(one) + len(sets[j]) - shared):
            return j
    return None


class Phrases:
    """Answers whether a phrase occurs, word for word, in any of many texts."""

    def __init__(self, texts: Sequence[str], shingle_size: int):
        self._size = shingle_size
        self._texts = [" " + " ".join(words(text)) + " " for text in texts]
        self._index: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
        for i, text in enumerate(texts):
            for shingle in shingles(text, shingle_size):
                self._index[shingle].append(i)

    def find(self, phrase: str) -> int | None:
        """The first text with this phrase. Phrases shorter than a shingle are never found."""
        found = words(phrase)
        if len(found) < self._size:
            return None
        lists = [self._index.get(shingle, []) for shingle in shingles(phrase, self._size)]
        wanted = " " + " ".join(found) + " "
        return next((i for i in min(lists, key=len) if wanted in self._texts[i]), None)
