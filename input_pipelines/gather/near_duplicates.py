"""Finds texts that say nearly the same thing: exact Jaccard similarity of word shingles.

No text is compared with all others. Shingles are put in one global order, rarest first; two sets
with Jaccard similarity >= t must then share one of their first |S| - ceil(t |S|) + 1 shingles
(prefix filtering: Chaudhuri et al. 2006, Bayardo et al. 2007), so only these are looked up. The
result is exact, unlike that of min-hashing, and rare shingles have short lists.
"""

import collections
import itertools
import math
import re
from collections.abc import Iterator, Sequence

# Letters of Chinese, Japanese, Thai, Lao, Burmese and Khmer, between whose words are no spaces
_UNSPACED = (
    r"\u0e01-\u0e3a\u0e40-\u0e4e\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"
    r"\u3005-\u3007\u3041-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]+|(?:(?![{_UNSPACED}])\w)+")
_RUN = re.compile(rf"[{_UNSPACED}]")


def words(text: str) -> list[str]:
    """Lower-case words of a text, punctuation and layout aside.

    Of scripts without spaces between words, pairs of neighbouring characters.
    """
    found: list[str] = []
    for word in _WORD.findall(text.lower()):
        if len(word) > 1 and _RUN.match(word):
            found.extend(map("".join, itertools.pairwise(word)))
        else:
            found.append(word)
    return found


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
    found = _Similar(texts, threshold, shingle_size)
    out: dict[int, int] = {}
    for i in range(len(texts)):
        match = next(found.earlier(i), None)
        if match is None:
            found.add(i)
        else:
            out[i] = match
    return out


def similar_pairs(
    texts: Sequence[str], threshold: float, shingle_size: int
) -> Iterator[tuple[int, int]]:
    """Yields (earlier, later) of all texts that nearly repeat each other, whatever their order.

    Texts of the same shingles are paired with the first of them only, which connects them.

    Args:
      texts: those without words are similar to none.
      threshold, shingle_size: as of `duplicate_of`.
    """
    found = _Similar(texts, threshold, shingle_size)
    first: dict[frozenset[tuple[str, ...]], int] = {}
    for i, one in enumerate(found.sets):
        if not one:
            continue
        same = first.setdefault(one, i)
        if same != i:
            yield same, i
            continue
        for j in found.earlier(i):
            yield j, i
        found.add(i)


class _Similar:
    """An index of the texts that were added, by the shingles of which similar ones share one."""

    def __init__(self, texts: Sequence[str], threshold: float, shingle_size: int):
        if not 0.0 < threshold <= 1.0:
            raise ValueError(f"threshold={threshold}: expected a Jaccard similarity in (0, 1]")
        self.sets = [shingles(text, shingle_size) for text in texts]
        self._threshold = threshold
        self._frequency = collections.Counter(s for one in self.sets for s in one)
        self._index: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)

    def add(self, i: int) -> None:
        for shingle in self._prefix(i):
            self._index[shingle].append(i)

    def earlier(self, i: int) -> Iterator[int]:
        """Yields the added texts that are similar enough to text i, in order."""
        one = self.sets[i]
        for j in sorted({j for shingle in self._prefix(i) for j in self._index.get(shingle, ())}):
            shared = len(one & self.sets[j])
            if shared >= self._threshold * (len(one) + len(self.sets[j]) - shared):
                yield j

    def _prefix(self, i: int) -> list[tuple[str, ...]]:
        ordered = sorted(self.sets[i], key=lambda s: (self._frequency[s], s))
        return ordered[: len(ordered) - math.ceil(self._threshold * len(ordered)) + 1]


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
