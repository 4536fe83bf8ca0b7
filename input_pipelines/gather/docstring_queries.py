"""Makes retrieval queries of docstrings: the summary asks, the rest of the docstring answers.

The summary is taken out of the passage, so neither side can match by copying. Whole modules are
held out, and a held-out query that nearly repeats a training query is dropped.
"""

import collections
import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

from input_pipelines.gather import near_duplicates

SPLITS = ("train", "dev", "test")
_ROLE = re.compile(r":[a-z:]+:`~?([^`<]*?)(?:\s*<[^`>]*>)?`")
_CODE = re.compile(r"``([^`]*)``|`([^`]*)`_*")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(\[])")
_RULER = re.compile(r"([=\-~*^#])\1{3,}")  # lines above and below a heading
_SIGNATURE = re.compile(r"^[\w.]+\(.*\)(\s*->\s*[^\n]*)?(\n--)?$", re.DOTALL)
# Words that say nothing about what a function does; they do not count as content of a query.
_EMPTY_WORDS = frozenset(
    """a an and are as at be been but by can class do does for from function get gets given has have
    helper if in instance into is it its may method module not object of on only or other return
    returned returns same self set sets should such test than that the their then these this those
    to type use used uses using value values was when where which will with wrapper""".split()
)


@dataclasses.dataclass(frozen=True)
class Query:
    """A summary, the module it was written in, and the ids of the passages that continue it."""

    id: str
    text: str
    module: str
    positives: tuple[str, ...]


def without_markup(text: str) -> str:
    """Text without reStructuredText roles and code quotes: ":func:`~os.walk`" -> "os.walk"."""
    text = _ROLE.sub(lambda m: m[1].strip(), text)
    return _CODE.sub(lambda m: m[1] or m[2] or "", text)


def summary_and_rest(text: str) -> tuple[str, str]:
    """Splits a docstring into its first sentence (on one line) and everything else.

    A signature before the summary, as in C functions, stays in the rest:
      "f(x)\\n\\nAdd one. Not two.\\n\\nMore."  ->  ("Add one.", "f(x)\\n\\nNot two.\\n\\nMore.")
    """
    paragraphs = [p for p in re.split(r"\n\s*\n", text.strip()) if p.strip()]
    head: list[str] = []
    while paragraphs and _SIGNATURE.match(paragraphs[0].strip()):
        head.append(paragraphs.pop(0))
    if not paragraphs:
        return "", text.strip()
    first = _SENTENCE_END.split(paragraphs[0].strip(), maxsplit=1)
    rest = head + first[1:] + paragraphs[1:]
    return " ".join(_RULER.sub(" ", first[0]).split()), "\n\n".join(rest)


def uninformative(query: str, min_words: int, max_words: int, min_content: int) -> str:
    """Why a summary is no query ("" if it is one): too short, too long, few content words."""
    found = near_duplicates.words(query)
    if len(found) < min_words:
        return "summary_too_short"
    if len(found) > max_words:
        return "summary_too_long"
    if len({w for w in found if w not in _EMPTY_WORDS and not w.isdigit()}) < min_content:
        return "summary_uninformative"
    return ""


def module_group(module: str) -> str:
    """The unit that is held out: the first two public parts of a dotted module name.

    "jax._src.lax.linalg" -> "jax.lax"; "collections" -> "collections".
    """
    parts = [part for part in module.split(".") if not part.startswith("_")]
    return ".".join(parts[:2])


def split_by_module(
    queries: Sequence[Query], targets: Mapping[str, int], largest_share: float
) -> dict[str, list[Query]]:
    """Puts whole modules into dev and test until each has its target, the others into train.

    Modules are taken in the order of their hash. One that is larger than `largest_share` of the
    target goes to train, so that no held-out split is about one module.

    Args:
      queries: all of them.
      targets: {"dev": n, "test": n}; a split gets at least n queries where there are enough.
      largest_share: in (0, 1].
    """
    groups = collections.defaultdict(list)
    for query in queries:
        groups[module_group(query.module)].append(query)
    out: dict[str, list[Query]] = {split: [] for split in SPLITS}
    for group in sorted(groups, key=lambda g: hashlib.sha256(g.encode()).digest()):
        size = len(groups[group])
        fits = (
            split
            for split in ("test", "dev")
            if len(out[split]) < targets[split] and size <= max(1, largest_share * targets[split])
        )
        out[next(fits, "train")].extend(groups[group])
    return out


def drop_ambiguous(queries: Iterable[Query]) -> tuple[list[Query], int]:
    """Drops every query whose words are also another query's: which passage is meant is unclear."""
    queries = list(queries)
    count = collections.Counter(tuple(near_duplicates.words(q.text)) for q in queries)
    kept = [q for q in queries if count[tuple(near_duplicates.words(q.text))] == 1]
    return kept, len(queries) - len(kept)


def drop_quoted(queries: Iterable[Query], passages: Sequence[str]) -> tuple[list[Query], int]:
    """Drops queries whose text is, word for word, in some passage."""
    queries = list(queries)
    phrases = near_duplicates.Phrases(passages, shingle_size=4)
    kept = [q for q in queries if phrases.find(q.text) is None]
    return kept, len(queries) - len(kept)


def drop_seen_in_training(
    splits: Mapping[str, Sequence[Query]], threshold: float
) -> tuple[dict[str, list[Query]], int]:
    """Drops held-out queries that nearly repeat (Jaccard of words) a training or earlier query."""
    ordered = [(split, query) for split in SPLITS for query in splits[split]]
    repeats = near_duplicates.duplicate_of([q.text for _, q in ordered], threshold, 1)
    out: dict[str, list[Query]] = {split: [] for split in SPLITS}
    for i, (split, query) in enumerate(ordered):
        if split == "train" or i not in repeats:
            out[split].append(query)
    return out, len(ordered) - sum(map(len, out.values()))
