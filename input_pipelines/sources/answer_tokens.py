"""Check whether a passage holds an answer, as evaluations of retrieval on MKQA do.

The rule is DPR's, with Contriever's tokens (arXiv:2112.09118) and M3's passages (arXiv:2402.03216):
in Unicode's NFD and in lower case, a token is a run of letters, digits and marks, or any other
character that is not white space; a passage holds an answer whose tokens follow each other in it.
Quotes, dashes and slashes of a passage, not those of an answer, are written as in ASCII first.

Punctuation and articles count, unlike in `answers.Finder`, which normalises as SQuAD's evaluation.
"""

import functools
import unicodedata
from collections.abc import Sequence

import regex

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_PLAIN = {
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u207b\u2212\uff0d",
    '"': "\u201c\u201d\u201e\u201f",
    "'": "\u2018\u2019\u201a\u201b\u055a\ua78b\ua78c\uff07`\u00b4\u2032\u2035",
    "''": "\u2033\u2036",
    "'''": "\u2034\u2037",
    "''''": "\u2057",
    "...": "\u2026",
    "/": "\u2044\u2215",
    " ": "\u000b\u000c\u0085",
    "": "\u00ad" + "".join(map(chr, [*range(1, 9), 14, 15, *range(17, 28)])),
}
_TABLE = str.maketrans({old: new for new, several in _PLAIN.items() for old in several})
_BETWEEN = "\0"


def tokens_of(text: str) -> str:
    """The tokens of a text, each with a separator before and after it; '' for none."""
    found = _TOKEN.findall(unicodedata.normalize("NFD", text))
    return _BETWEEN + _BETWEEN.join(found).lower() + _BETWEEN if found else ""


@functools.lru_cache(maxsize=1 << 17)  # passages are found for many questions
def _of_passage(text: str) -> str:
    return tokens_of(text.lower().translate(_TABLE))


def holds(passage: str, answers: Sequence[str]) -> bool:
    """Whether a passage holds one of the answers.

    Args:
      passage: its title and text.
      answers: `tokens_of` each; none is empty.
    """
    there = _of_passage(passage)
    return any(answer in there for answer in answers)
