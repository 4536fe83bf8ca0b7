"""What BERT's tokenizer makes of each code point of Unicode, asked once and kept as a table.

BERT's clean-up, its lower case, its accents and its splits at white space and punctuation decide
code point by code point, but for one thing: where accents are removed, marks are sorted first
(Unicode's canonical order). Marks that are removed do not show it. Some are kept, those that the
library's tables do not know as accents; the table says how they are sorted.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import normalizers, pre_tokenizers

ITSELF = -1  # an output that is the code point that was asked for
WORD, ALONE, SPACE, NOTHING = range(4)  # classes; NOTHING only ends a run of marks that are sorted
PAGE = 256
_END = 0x110000
# Planes 4 to 13 are empty, 15 and 16 for private use: pages of them are asked about as a whole.
_PAGES_WITHOUT_CHARACTERS = [
    range(plane * 0x10000 + page * PAGE, plane * 0x10000 + (page + 1) * PAGE)
    for plane in (*range(4, 14), 15, 16)
    for page in range(256)
]
_SURROGATES = range(0xD800, 0xE000)  # half a character, which no text holds
# Marks of the lowest and the highest order. Between them each other mark changes its place.
_LOWEST, _HIGHEST = "\u0334", "\u0345"

_BETWEEN = "|"  # what no normalizer here changes or joins with anything
_ASKED_AT_ONCE = 4096

_Output = tuple[int, int, int]  # code point, class, order


@dataclasses.dataclass(frozen=True)
class CodePoints:
    """Code point c has the kind `kinds[pages[c // PAGE] * PAGE + c % PAGE]`.

    A kind k becomes the outputs from `starts[k]` to `starts[k + 1]`.

    Attributes:
      pages: int32 [4352].
      kinds: int32 [n * PAGE]; pages that are equal are there once.
      starts: int32 [k + 1].
      outputs: int32 [m], code points, or ITSELF.
      classes: int32 [m]: WORD in a word, ALONE a word of its own, SPACE between words, or NOTHING.
      orders: int32 [m]; 0: of no mark, else marks are sorted by it.
    """

    pages: np.ndarray
    kinds: np.ndarray
    starts: np.ndarray
    outputs: np.ndarray
    classes: np.ndarray
    orders: np.ndarray


@functools.cache
def of_bert(
    clean_text: bool, handle_chinese_chars: bool, strip_accents: bool, lowercase: bool
) -> CodePoints:
    """The table for `BertNormalizer` with these settings, then `BertPreTokenizer`; some seconds."""
    clean = normalizers.BertNormalizer(clean_text, handle_chinese_chars, False, False)
    rest = normalizers.BertNormalizer(False, False, strip_accents, lowercase)
    plain = [page for page in _PAGES_WITHOUT_CHARACTERS if _is_plain(clean, rest, page)]
    asked = set(range(_END)).difference(_SURROGATES, *plain)
    cleaned = {ord(one): text for one, text in _each(clean, map(chr, sorted(asked))) if text}
    orders: dict[str, int] = {}
    if strip_accents:
        nfd = normalizers.NFD()
        cleaned = dict(
            zip(cleaned, (text for _, text in _each(nfd, cleaned.values())), strict=True)
        )
        orders = _orders(set().union(*cleaned.values()))
    become = dict(_each(rest, set().union(*cleaned.values())))
    classes = _classes(set().union(*become.values()))

    def outputs(code: int) -> Iterator[_Output]:
        for part in cleaned[code]:
            order = orders.get(part, 0)
            for one in become[part]:
                yield ITSELF if ord(one) == code else ord(one), classes[one], order
            if not become[part] and not order:
                yield ITSELF, NOTHING, 0

    made = {code: tuple(outputs(code)) for code in cleaned}
    return _table(made | dict.fromkeys(itertools.chain(*plain), ((ITSELF, WORD, 0),)))


def _is_plain(clean: normalizers.Normalizer, rest: normalizers.Normalizer, page: range) -> bool:
    """Whether all code points of a page without characters are kept, as parts of words."""
    text = "".join(map(chr, page))
    same = clean.normalize_str(text) == rest.normalize_str(text) == text
    return same and len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)) == 1


def _each(normalizer: normalizers.Normalizer, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each text with what a normalizer makes of it; a call for each text alone is slower."""
    every = list(texts)
    for start in range(0, len(every), _ASKED_AT_ONCE):
        given = every[start : start + _ASKED_AT_ONCE]
        made = normalizer.normalize_str(_BETWEEN.join(given)).split(_BETWEEN)
        if len(made) != len(given):  # one of them has _BETWEEN
            made = [normalizer.normalize_str(text) for text in given]
        yield from zip(given, made, strict=True)


def _orders(characters: Iterable[str]) -> dict[str, int]:
    """Mark -> a number from 1 on; of two in a text, the one of the lower number goes first."""
    nfd = normalizers.NFD()
    around = (_HIGHEST + one + _LOWEST for one in characters)
    # A mark goes after the lowest one, and before the highest; nothing crosses another character.
    marks = {before[1] for before, after in _each(nfd, around) if after[0] == _LOWEST}

    def compare(one: str, other: str) -> int:
        pairs = one + other, other + one
        changed = [nfd.normalize_str(pair) != pair for pair in pairs]
        return changed[0] - changed[1]

    orders: dict[str, int] = {}
    order, last = 0, ""
    for one in sorted(marks, key=functools.cmp_to_key(compare)):
        order += not last or compare(last, one) != 0
        orders[one], last = order, one
    return orders


def _classes(characters: Iterable[str]) -> dict[str, int]:
    """Character -> its class, by how "a" before it and "a" after it are split."""
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words = {1: WORD, 2: SPACE, 3: ALONE}
    return {one: words[len(split(f"a{one}a"))] for one in characters}


def _table(made: dict[int, tuple[_Output, ...]]) -> CodePoints:
    numbers: dict[tuple[_Output, ...], int] = {(): 0}  # kind 0: it is left out
    kinds = np.zeros(_END, np.int32)
    for code, outputs in made.items():
        kinds[code] = numbers.setdefault(outputs, len(numbers))
    distinct, pages = np.unique(kinds.reshape(-1, PAGE), axis=0, return_inverse=True)
    flat = np.array([one for outputs in numbers for one in outputs], np.int32).reshape(-1, 3)
    starts = np.cumsum([0, *map(len, numbers)], dtype=np.int32)
    return CodePoints(pages.reshape(-1).astype(np.int32), distinct.reshape(-1), starts, *flat.T)
