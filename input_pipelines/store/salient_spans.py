"""Find salient spans of a sentence to mask: names, dates, numbers (REALM, section 3.4).

What it takes to fill such a span in is knowledge of the world, which a retrieved text may hold.
`Rules` needs nothing but the text: names by their capitals, dates and numbers by patterns, titles
of the corpus by looking them up. `Spacy` asks a tagger that the user has installed; `Given` takes
spans that the user brings.
"""

import bisect
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

Span = tuple[int, int]  # characters start to end - 1 of a text


class SpanError(ValueError):
    """Spans that do not fit their text, or a tagger that is not there."""


class Finder(Protocol):
    """A frozen, small object that is sent to every worker; its repr identifies what it finds."""

    @property
    def wants_titles(self) -> bool:
        """Whether `fitted` needs the titles of the corpus."""
        ...

    def fitted(self, titles: Sequence[str] | None, folder: str) -> "Finder":
        """The finder after it has seen all titles, where it wants them; may write to `folder`."""
        ...

    def find(self, record_id: str, text: str, sentences: Sequence[Span]) -> list[Span]:
        """Spans in order, none overlapping another, each inside one of `sentences`."""
        ...


_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December|"
    r"Jan\.|Feb\.|Mar\.|Apr\.|Aug\.|Sept?\.|Oct\.|Nov\.|Dec\.)"
)
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_YEAR = r"(?:1\d{3}|20\d{2})"
_DATES = re.compile(
    rf"\b(?:{_DAY} (?:of )?{_MONTH}(?:,? {_YEAR})?|{_MONTH} {_DAY}(?:, ?{_YEAR})?|"
    rf"{_MONTH},? {_YEAR}|{_YEAR}s?(?:[–-](?:{_YEAR}|\d\d))?|\d{{1,4}} (?:BC|BCE|AD|CE)|"
    r"\d{1,2}(?:st|nd|rd|th) centur(?:y|ies))(?!\w)"
)
_NUMBERS = re.compile(
    r"(?<![\w.,])[$€£¥]?\d+(?:,\d{3})*(?:\.\d+)?(?:%| percent| (?:hundred|thousand|million|billion|"
    r"trillion))?(?![\w]|[.,]\d)"
)
_WORD = re.compile(r"[^\W_]+(?:['’.\-&][^\W_]+)*\.?", re.UNICODE)
_JOINS = frozenset("of the de la du von van der den di da del al".split())
_GENITIVE = re.compile(r"['’]s$")
# Words that open sentences and no names; a name that begins with one is found without it.
_OPENERS = frozenset(
    "a an the this that these those it its he she they we you i his her their our my your in on at "
    "by for from with without to of as and or but if when while where after before since until "
    "although though because however there here what which who whose how why not no some many most "
    "all both each every other another such one two three several during under over between "
    "through then thus also only even just more less first second third new old so yet once unlike "
    "like despite according including is are was were be been has have had do does did will would "
    "can could may might should must".split()
)


@dataclasses.dataclass(frozen=True)
class Rules:
    """Names by their capitals, dates, numbers, titles of the corpus.

    Attributes:
      names: whether capitalised phrases count.
      dates, numbers: whether those count.
      titles: whether the titles of the corpus are looked up.
      gazetteer: a file that `fitted` writes; not to be bound.
    """

    names: bool = True
    dates: bool = True
    numbers: bool = True
    titles: bool = True
    gazetteer: str = ""
    gazetteer_hash: str = ""

    def __repr__(self) -> str:
        kinds = (self.names, self.dates, self.numbers, self.titles, self.gazetteer_hash)
        return f"Rules{kinds}"  # not where the file lies

    @property
    def wants_titles(self) -> bool:
        """See `Finder`."""
        return self.titles

    def fitted(self, titles: Sequence[str] | None, folder: str) -> "Rules":
        """See `Finder`."""
        if not self.titles:
            return self
        known = [words for title in titles or () if (words := _title_words(title))]
        whole = np.unique(np.array([_title_hash(words) for words in known], np.uint64))
        first = np.unique(np.array([_title_hash(words[:1]) for words in known], np.uint64))
        path = os.path.join(folder, "titles")
        np.save(f"{path}.whole.npy", whole)
        np.save(f"{path}.first.npy", first)
        digest = hashlib.sha256(whole.tobytes()).hexdigest()[:16]
        return dataclasses.replace(self, gazetteer=path, gazetteer_hash=digest)

    def find(self, record_id: str, text: str, sentences: Sequence[Span]) -> list[Span]:
        """See `Finder`; where two overlap, the longer one."""
        found: list[Span] = []
        for start, end in sentences:
            part = text[start:end]
            spans = []
            if self.dates:
                spans += [match.span() for match in _DATES.finditer(part)]
            if self.numbers:
                spans += [match.span() for match in _NUMBERS.finditer(part)]
            words = [(match.start(), match.end()) for match in _WORD.finditer(part)]
            if self.names:
                spans += _names(part, words)
            if self.titles:
                spans += _titles(part, words, _loaded(self.gazetteer, self.gazetteer_hash))
            found += [(start + a, start + b) for a, b in _longest(spans)]
        return found


def _longest(spans: Sequence[Span]) -> list[Span]:
    """Of spans that overlap the longest, the first of equals; in their order."""
    kept: list[Span] = []
    for a, b in sorted(set(spans), key=lambda span: (span[0] - span[1], span[0])):
        at = bisect.bisect(kept, (a, b))
        if (at == 0 or kept[at - 1][1] <= a) and (at == len(kept) or b <= kept[at][0]):
            kept.insert(at, (a, b))
    return kept


def _names(text: str, words: Sequence[Span]) -> list[Span]:
    """Runs of capitalised words, small words such as "of" among them but not at their ends."""
    found, run = [], list[int]()
    for number in range(len(words) + 1):
        if number < len(words) and _continues(text, words, run, number):
            run.append(number)
            continue
        while run and not _is_capital(text, words[run[-1]]):
            run.pop()
        found += _accepted(text, words, run)
        run = [number] if number < len(words) and _is_capital(text, words[number]) else []
    return found


def _continues(text: str, words: Sequence[Span], run: list[int], number: int) -> bool:
    if not run:
        return False
    gap = text[words[number - 1][1] : words[number][0]]
    word = text[slice(*words[number])]
    return gap == " " and (_is_capital(text, words[number]) or word in _JOINS)


def _accepted(text: str, words: Sequence[Span], run: list[int]) -> list[Span]:
    """The span of a run: without a word that opens the sentence and need not be a name."""
    # A sentence begins with a capital: its first word alone says nothing.
    if run and run[0] == 0 and (len(run) == 1 or _opens(text, words[0])):
        run = run[1:]
        while run and not _is_capital(text, words[run[0]]):
            run = run[1:]
    if not run or (len(run) == 1 and _opens(text, words[run[0]])):
        return []
    start, end = words[run[0]][0], words[run[-1]][1]
    end -= len(text[start:end]) - len(_GENITIVE.sub("", text[start:end]))
    if text[end - 1] == "." and text[start:end].count(".") == 1:
        end -= 1  # the sentence's, not an abbreviation's
    return [(start, end)]


def _opens(text: str, word: Span) -> bool:
    return text[slice(*word)].lower() in _OPENERS


def _is_capital(text: str, word: Span) -> bool:
    return text[word[0]].isupper()


def _titles(text: str, words: Sequence[Span], known: "_Titles") -> list[Span]:
    bare = [_bare(text[start:end]) for start, end in words]
    found: list[Span] = []
    # Most words begin no title, which one look-up of all of them finds.
    begins = _among(known.first, [bare[i : i + 1] for i in range(len(bare))])
    for first in np.flatnonzero(begins).tolist():
        lasts = range(min(first + _MOST_TITLE_WORDS, len(words)) - 1, first - 1, -1)
        hits = _among(known.whole, [bare[first : last + 1] for last in lasts])
        for last in np.array(lasts)[hits].tolist():
            if first != last or bare[last].lower() not in _OPENERS:
                found.append((words[first][0], words[last][0] + len(bare[last])))
                break
    return found


def _among(hashes: np.ndarray, titles: Sequence[Sequence[str]]) -> np.ndarray:
    """bool [n]: whether the hash of each title is in `hashes`, which is sorted."""
    wanted = np.array([_title_hash(words) for words in titles], np.uint64)
    at = np.minimum(np.searchsorted(hashes, wanted), max(len(hashes) - 1, 0))
    return hashes[at] == wanted if len(hashes) else np.zeros(len(wanted), np.bool_)


_MOST_TITLE_WORDS = 8


class _Titles(NamedTuple):
    """Sorted hashes, uint64, of all titles, and of their first words."""

    whole: np.ndarray
    first: np.ndarray


@functools.lru_cache(maxsize=2)
def _loaded(path: str, digest: str) -> _Titles:
    """Read what `Rules.fitted` wrote; `digest` distinguishes versions under the same path."""
    files = (f"{path}.{name}.npy" for name in ("whole", "first"))
    return _Titles(*(np.load(file, mmap_mode="r", allow_pickle=False) for file in files))


def _title_words(title: str) -> tuple[str, ...]:
    """The words of a title without the text in parentheses; () if there is no capital in it."""
    bare = re.sub(r"\s*\([^)]*\)\s*$", "", title.replace("_", " "))
    words = tuple(_bare(match.group()) for match in _WORD.finditer(bare))
    capital = any(word[0].isupper() or word[0].isdigit() for word in words)
    return words if capital and len(words) <= _MOST_TITLE_WORDS else ()


def _title_hash(words: Sequence[str]) -> int:
    digest = hashlib.blake2b("\x00".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _bare(word: str) -> str:
    """A word without the genitive and the full stop at its end."""
    return _GENITIVE.sub("", word.rstrip("."))


@dataclasses.dataclass(frozen=True)
class Spacy:
    """The entities of a spaCy model that is installed.

    Attributes:
      model: its name, for instance 'en_core_web_sm'.
      labels: which entities count; those of CoNLL-2003 and dates by default.
      version: of the model, once `fitted` has seen it: another one makes another store.
    """

    model: str
    labels: tuple[str, ...] = (
        "PERSON", "NORP", "FAC", "ORG", "GPE", "LOC", "PRODUCT", "EVENT", "WORK_OF_ART", "LAW",
        "LANGUAGE", "DATE",
    )  # fmt: skip
    version: str = ""
    wants_titles: bool = dataclasses.field(default=False, init=False)

    def fitted(self, titles: Sequence[str] | None, folder: str) -> "Spacy":
        """See `Finder`; raises SpanError at once if the model is not there."""
        return dataclasses.replace(self, version=str(_tagger(self.model).meta["version"]))

    def find(self, record_id: str, text: str, sentences: Sequence[Span]) -> list[Span]:
        """See `Finder`."""
        found = [
            (entity.start_char, entity.end_char)
            for entity in _tagger(self.model)(text).ents
            if entity.label_ in self.labels
        ]
        return _longest([span for span in found if _inside(span, sentences)])


@functools.lru_cache(maxsize=1)
def _tagger(model: str) -> Any:
    try:
        import spacy  # not among our dependencies

        return spacy.load(model, disable=["parser", "lemmatizer"])
    except (ImportError, OSError) as error:
        raise SpanError(
            f"spaCy with model {model!r} cannot be loaded: {error}. pip install spacy && python -m "
            f"spacy download {model}; or use salient_spans.Rules, which needs nothing."
        ) from error


@dataclasses.dataclass(frozen=True)
class Given:
    """Spans that the user brings: a jsonl of {"id": record, "spans": [[start, end], ...]}.

    Attributes:
      path: the file; positions count characters of the record's text.
    """

    path: str
    wants_titles: bool = dataclasses.field(default=False, init=False)

    def __repr__(self) -> str:
        return f"Given({_given_hash(self.path)})"

    def fitted(self, titles: Sequence[str] | None, folder: str) -> "Given":
        """See `Finder`; raises SpanError if the file is malformed."""
        _given(self.path)
        return self

    def find(self, record_id: str, text: str, sentences: Sequence[Span]) -> list[Span]:
        """See `Finder`; raises SpanError for a span outside the text."""
        spans = _given(self.path).get(record_id, [])
        for start, end in spans:
            if not 0 <= start < end <= len(text):
                raise SpanError(
                    f"{self.path}: record {record_id!r} has {len(text)} characters, found a span "
                    f"from {start} to {end}"
                )
        return _longest([span for span in spans if _inside(span, sentences)])


@functools.lru_cache(maxsize=1)
def _given_hash(path: str) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()[:16]


@functools.lru_cache(maxsize=1)
def _given(path: str) -> Mapping[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            try:
                record = json.loads(line)
                found[str(record["id"])] = [(int(a), int(b)) for a, b in record["spans"]]
            except (ValueError, KeyError, TypeError) as error:
                raise SpanError(
                    f'{path}:{number}: expected {{"id": ..., "spans": [[start, end], ...]}}, found '
                    f"{line[:80]!r} ({error!r})"
                ) from error
    return found


def _inside(span: Span, sentences: Sequence[Span]) -> bool:
    return any(start <= span[0] and span[1] <= end for start, end in sentences)
