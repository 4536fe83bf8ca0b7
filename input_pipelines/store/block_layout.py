"""Documents as blocks: "[CLS] title [SEP] body [SEP]", cut where sentences end.

With the rows four tables are stored, which ICT and REALM read:

    sentences  int32 [n, 3]  row, and its tokens start to end - 1: each sentence of each block
    spans      int32 [m, 3]  number of a sentence, and tokens of its row: each salient span
    minhash    int64 [N]     of a block's words: two blocks have the same one with a probability
                             that is the Jaccard similarity of their runs of five words
    page       int64 [N]     the same for blocks of one title; of one record, where that has none
"""

import bisect
import dataclasses
import hashlib
import itertools
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from input_pipelines.sources.text_sources import Record
from input_pipelines.store import mixing
from input_pipelines.store.layouts import TITLE_AND_BODY, Plain, Rows
from input_pipelines.store.salient_spans import Finder, Span
from input_pipelines.store.store_writer import StoreRecord
from input_pipelines.store.token_store import TokenStore
from input_pipelines.tokenizers import tokenization

_SHINGLE = 5
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A layout (`layouts.Layout`): each document cut into blocks, ids "doc#0", "doc#1", ...

    Sentences are put together until the next one would not fit; one that is longer than a block is
    cut where it is full. A title keeps at most a quarter of the tokens.

    Attributes:
      spans: what finds salient spans; None: none are stored.
      language: of the sentences, as two letters.
    """

    spans: Finder | None
    language: str = "en"

    @property
    def name(self) -> str:
        """See `Layout`."""
        return TITLE_AND_BODY

    @property
    def numbers(self) -> Mapping[str, str]:
        """See `Layout`."""
        return {"sentences": "rows", "spans": "sentences"}

    @property
    def wants_titles(self) -> bool:
        """See `Layout`."""
        return self.spans is not None and self.spans.wants_titles

    def fitted(self, titles: Sequence[str] | None, folder: str) -> "Blocks":
        """See `Layout`."""
        spans = None if self.spans is None else self.spans.fitted(titles, folder)
        return dataclasses.replace(self, spans=spans)

    def rows(
        self,
        records: Sequence[Record],
        tokenizer: tokenization.Tokenizer,
        length: int,
        prefix: str,
    ) -> Rows:
        """See `Layout`; no text is lost, so none counts as truncated."""
        found = _Tables()
        for record, head, body, room in _headed(records, tokenizer, length, prefix):
            sentences = split(record.text, self.language)
            spans = self.spans.find(record.id, record.text, sentences) if self.spans else []
            in_pieces = [one for one in _tokens_of(spans, body.offsets) if one[1] > one[0]]
            for number, block in enumerate(_packed(_cut_at(sentences, body.offsets), room)):
                found.add(_row(record, number, head, body, block, tokenizer), block, in_pieces)
        return Rows(found.records, 0, found.arrays())


@dataclasses.dataclass(frozen=True)
class TitleAndBody(Plain):
    """A layout (`layouts.Layout`): a record a row, "[CLS] title [SEP] body [SEP]", the body cut.

    As blocks are written, for passages that an evaluation judges whole. A title keeps at most a
    quarter of the tokens.
    """

    @property
    def name(self) -> str:
        """See `Layout`."""
        return TITLE_AND_BODY

    def rows(
        self,
        records: Sequence[Record],
        tokenizer: tokenization.Tokenizer,
        length: int,
        prefix: str,
    ) -> Rows:
        """See `Layout`."""
        rows, truncated = [], 0
        for record, head, body, room in _headed(records, tokenizer, length, prefix):
            truncated += len(body.tokens) > room
            block = _Block(0, min(room, len(body.tokens)), [])
            row = _row(record, 0, head, body, block, tokenizer)
            rows.append(dataclasses.replace(row, id=record.id, text=record.text))
        return Rows(rows, truncated)


def ids_of(store: str, documents: Sequence[str]) -> list[str]:
    """The ids of these documents' blocks in a store, by row."""
    wanted = set(documents)
    return [name for name in TokenStore.open(store).ids if name.rpartition("#")[0] in wanted]


def split(text: str, language: str) -> list[Span]:
    """Characters of each sentence, white space around it aside."""
    import sentencex  # a compiled module: workers that need none do not load it

    found = []
    for boundary in sentencex.get_sentence_boundaries(language, text):
        start, end = boundary["start_index"], boundary["end_index"]
        part = text[start:end]
        start += len(part) - len(part.lstrip())
        end -= len(part) - len(part.rstrip())
        if end > start:
            found.append((start, end))
    return found


@dataclasses.dataclass(frozen=True)
class _Head:
    """[CLS] title [SEP]."""

    tokens: np.ndarray
    word_starts: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Block:
    """Pieces first to last - 1 of a body, and the pieces of each of its sentences."""

    first: int
    last: int
    sentences: Sequence[Span]


def _headed(
    records: Sequence[Record], tokenizer: tokenization.Tokenizer, length: int, prefix: str
) -> Iterator[tuple[Record, _Head, tokenization.Pieces, int]]:
    """Each record with its head, its body in pieces, and how many of these fit after the head.

    Raises:
      ValueError: a row of `length` tokens is too short for a body.
    """
    if length - (length // 4 + 2) - 1 < 1:
        raise ValueError(
            f"blocks of {length} tokens: expected at least 5, for [CLS], a title, [SEP], a body "
            "and [SEP]"
        )
    titles = tokenizer.pieces([prefix + record.title for record in records])
    bodies = tokenizer.pieces([record.text for record in records])
    for record, title, body in zip(records, titles, bodies, strict=True):
        head = _head(title, length // 4, tokenizer)
        yield record, head, body, length - len(head.tokens) - 1


def _head(title: tokenization.Pieces, max_pieces: int, tokenizer: tokenization.Tokenizer) -> _Head:
    """Of at most `max_pieces` pieces of a title."""
    ids, starts = title.tokens[:max_pieces], title.word_starts[:max_pieces]
    vocabulary = tokenizer.vocabulary
    tokens = np.concatenate([[vocabulary["cls"]], ids, [vocabulary["sep"]]]).astype(np.int32)
    return _Head(tokens, np.concatenate([[True], starts, [True]]))


def _cut_at(sentences: Sequence[Span], offsets: np.ndarray) -> list[Span]:
    """Pieces of each sentence; each piece belongs to one, whatever is between sentences."""
    cuts = np.searchsorted(offsets[:, 0], [start for start, _ in sentences]).tolist()
    bounds = [0, *cuts[1:], len(offsets)] if cuts else []
    return list(itertools.pairwise(bounds))


def _tokens_of(spans: Sequence[Span], offsets: np.ndarray) -> list[Span]:
    """Pieces of each span of characters; those that hold nothing but its characters."""
    first = np.searchsorted(offsets[:, 0], [start for start, _ in spans])
    last = np.searchsorted(offsets[:, 1], [end for _, end in spans], side="right")
    return [(int(a), max(int(a), int(b))) for a, b in zip(first, last, strict=True)]


def _packed(sentences: Sequence[Span], room: int) -> Iterator[_Block]:
    """Sentences, as pieces, together in blocks of at most `room` pieces."""
    waiting: list[Span] = []
    for first, last in sentences:
        if waiting and last - waiting[0][0] > room:
            yield _Block(waiting[0][0], waiting[-1][1], waiting)
            waiting = []
        while last - first > room:  # longer than a block, which it fills alone
            yield _Block(first, first + room, [(first, first + room)])
            first += room
        if last > first:
            waiting.append((first, last))
    if waiting:
        yield _Block(waiting[0][0], waiting[-1][1], waiting)


def _row(
    record: Record,
    number: int,
    head: _Head,
    body: tokenization.Pieces,
    block: _Block,
    tokenizer: tokenization.Tokenizer,
) -> StoreRecord:
    pieces = slice(block.first, block.last)
    text = ""
    if block.last > block.first:
        text = record.text[body.offsets[block.first, 0] : body.offsets[block.last - 1, 1]]
    sep = [tokenizer.vocabulary["sep"]]
    return StoreRecord(
        f"{record.id}#{number}",
        record.title,
        text,
        record.source,
        np.concatenate([head.tokens, body.tokens[pieces], sep]).astype(np.int32),
        np.concatenate([head.word_starts, body.word_starts[pieces], [True]]),
    )


class _Tables:
    """Rows and what is known of them so far."""

    def __init__(self) -> None:
        self.records: list[StoreRecord] = []
        self._sentences: list[tuple[int, int, int]] = []
        self._spans: list[tuple[int, int, int]] = []
        self._minhash: list[int] = []
        self._page: list[int] = []

    def add(
        self,
        row: StoreRecord,
        block: _Block,
        spans: Sequence[Span],
    ) -> None:
        """A row; `spans` are those of its whole document, in pieces, in their order."""
        number = len(self.records)
        shift = len(row.tokens) - 1 - block.last  # from pieces of the body to tokens of the row
        for first, last in block.sentences:
            begin, end = (bisect.bisect_left(spans, (piece, 0)) for piece in (first, last))
            self._spans += [
                (len(self._sentences), a + shift, b + shift)
                for a, b in spans[begin:end]
                if b <= last
            ]
            self._sentences.append((number, first + shift, last + shift))
        self._minhash.append(minhash(row.text))
        self._page.append(page(row.title, row.id.rpartition("#")[0]))
        self.records.append(row)

    def arrays(self) -> dict[str, np.ndarray]:
        """The four tables of the module's docstring."""
        return {
            "sentences": np.array(self._sentences, np.int32).reshape(-1, 3),
            "spans": np.array(self._spans, np.int32).reshape(-1, 3),
            "minhash": np.array(self._minhash, np.int64),
            "page": np.array(self._page, np.int64),
        }


def page(title: str, record: str) -> int:
    """A number for a title, or for a record's id if there is none; below 2^63.

    Collections of paragraphs give each that of its article.
    """
    named = f"title {title.strip()}" if title.strip() else f"record {record}"
    digest = hashlib.blake2b(named.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def minhash(text: str) -> int:
    """The smallest hash of the text's runs of five words; of all its words if it is shorter."""
    words = np.array([zlib.crc32(w.encode()) for w in _WORD.findall(text.lower())], np.uint64)
    size = max(1, min(_SHINGLE, len(words)))
    if not len(words):
        return 0
    mixed = np.zeros(len(words) - size + 1, np.uint64)
    for place in range(size):
        mixed = mixing.mix64(mixed + words[place : len(words) - size + 1 + place])
    return int(mixed.min() >> np.uint64(1))
