"""Generation requests: documents to write in another language, or shorter, from their chunks.

chunk      each chunk of a document is evidence by itself, and what is written of them is joined:
           the translation of a document, however long it is (MARGE, arXiv:2006.15020, section 4.2)
document   the chunks of a document that fit one row, from its beginning, are evidence together, and
           one text is written: its summary
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from input_pipelines.batches import packing_plan, token_groups
from input_pipelines.batches.packed_text import open_stores
from input_pipelines.batches.token_groups import NONE
from input_pipelines.gather.documents import parts_of
from input_pipelines.marge.chunk_layout import ChunkTable, language_ids
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers.tokenization import Tokenizer

READINGS = ("chunk", "document")
VERSION = 1  # part of every fingerprint: raise it when the same arguments give other batches


class Request(NamedTuple):
    """A document, and the language in which it is to be written.

    Attributes:
      id: of the document, "LANGUAGE/SHARD/NAME".
      name: "SHARD/NAME", equal of documents that say the same.
      source, target: codes of the document's language, and of what is written.
    """

    id: str
    name: str
    source: str
    target: str


class Batch(NamedTuple):
    """A request has the rows of its chunks in order, in one batch or in several on end.

    Attributes:
      evidence: token group of B rows, of which a text is written each.
      language: int32 [B], the token that it begins with.
      request: int64 [B], place in `Writing.requests`; NONE in rows that fill the last batch up,
        which repeat the row before them.
    """

    evidence: token_groups.Group
    language: np.ndarray
    request: np.ndarray


@dataclasses.dataclass(frozen=True)
class Choice:
    """Selection of documents for requests.

    Attributes:
      pairs: (language of the document, language to write); the same twice for summaries. A number:
        so many pairs of different languages, those that have the most documents to choose from.
      max_documents: documents of a pair at most. Those are taken whose names have the lowest hash,
        so that pairs share names where they can.
      max_chunks: chunks of a document at most, longer ones are left out; 0: any. Where chunks of
        long documents were not stored (MAX_CHUNKS), a smaller number leaves out what was cut.
      translated: whether the document has to exist in the language to write, too, so that there is
        something to compare with.
    """

    pairs: Sequence[tuple[str, str]] | int
    max_documents: int
    max_chunks: int = 0
    translated: bool = True

    def __post_init__(self) -> None:
        packing_plan.check_sizes("Choice", max_documents=self.max_documents)
        if self.max_chunks < 0:
            raise ValueError(
                f"Choice.max_chunks: expected 0 or more chunks, found {self.max_chunks}"
            )
        if isinstance(self.pairs, int):
            packing_plan.check_sizes("Choice", pairs=self.pairs)
            return
        pairs = [tuple(pair) for pair in self.pairs]
        if not pairs or len(set(pairs)) != len(pairs) or any(len(pair) != 2 for pair in pairs):
            raise ValueError(
                "Choice.pairs: expected one or more pairs of languages, each once, as "
                f"[('de', 'en')], found {self.pairs}"
            )

    def of(self, table: ChunkTable, where: str) -> list[tuple[str, str, int]]:
        """Source, target, and first row of every document to choose from, pair by pair.

        Args:
          table: of the chunks.
          where: they are, for messages.

        Raises:
          StoreError: a language without documents, a pair without any to choose from.
        """
        first, chunks = np.unique(table.document, return_counts=True)
        fit = first[(chunks <= self.max_chunks) | (self.max_chunks == 0)]
        names = {
            code: np.unique(table.name[table.language == number])
            for number, code in enumerate(table.languages)
        }
        rows = {
            code: fit[table.language[fit] == number] for number, code in enumerate(table.languages)
        }

        def possible(source: str, target: str) -> np.ndarray:
            if not self.translated:
                return rows[source]
            stand = np.isin(table.name[rows[source]], names.get(target, np.empty(0, np.int64)))
            return rows[source][stand]

        found = []
        for source, target in self._pairs(table.languages, possible, where):
            if source not in rows:
                raise StoreError(
                    f"{where}: expected documents in {source!r}, found the languages {list(rows)}"
                )
            chosen = possible(source, target)
            if not len(chosen):
                limits = f" of at most {self.max_chunks} chunks" if self.max_chunks else ""
                limits += f" that exist in {target!r}, too" if self.translated else ""
                raise StoreError(f"{where}: expected documents in {source!r}{limits}, found none")
            found += [(source, target, row) for row in chosen.tolist()]
        return found

    def _pairs(
        self,
        languages: Sequence[str],
        possible: Callable[[str, str], np.ndarray],
        where: str,
    ) -> Sequence[tuple[str, str]]:
        if not isinstance(self.pairs, int):
            return self.pairs
        counts = {pair: len(possible(*pair)) for pair in itertools.permutations(languages, 2)}
        ranked = sorted((pair for pair in counts if counts[pair]), key=lambda p: (-counts[p], p))
        if not ranked:
            raise StoreError(
                f"{where}: expected documents that exist in two languages, found none in "
                f"{list(languages)}"
            )
        return ranked[: self.pairs]


class Writing:
    """Requests, and the batches in which they are read.

    Attributes:
      requests: in the order of the pairs, and of the store.
      notes: sentences for people: what of the documents is left out or not read.
      passage_length, passage_prefix, passage_layout, tokenizer_fingerprint: of the store, as a
        model's contract names them.
      fingerprint: of the requests and of the shape of batches.
    """

    def __init__(
        self,
        store: str | TokenStore,
        *,
        reading: str,
        choice: Choice,
        rows: int,
        length: int,
        segments: int,
        tokenizer: str,
    ):
        """
        Args:
          store: token store folder, prepared with `chunk_layout.Chunks`.
          reading: one of READINGS.
          choice: which documents, into which languages.
          rows, length, segments: of every batch; with 'chunk' only the first segment is used.
          tokenizer: folder of the tokenizer that made the store.

        Raises:
          ValueError: a size or the reading out of range, a chunk that does not fit a row; whole
            documents read in rows of one segment.
          StoreError: no chunks, or nothing to choose from, see `Choice.of`.
          TokenizerError: a language to write without a token.
        """
        packing_plan.check_sizes("Writing", rows=rows, length=length, segments=segments)
        if reading not in READINGS:
            raise ValueError(f"Writing.reading: expected one of {READINGS}, found {reading!r}")
        (self._store,) = open_stores([store], tokenizer)
        if self._store.max_length > length:
            raise ValueError(
                f"Writing: expected rows for chunks of up to {self._store.max_length} tokens, "
                f"found length {length}"
            )
        self._table = ChunkTable.of(self._store)
        self._tokenizer = Tokenizer(tokenizer)
        self._reading, self._shape = reading, token_groups.Rows(rows, length, segments)
        first, count = np.unique(self._table.document, return_counts=True)
        self._chunks = dict(zip(first.tolist(), count.tolist(), strict=True))
        chosen = self._chosen(choice)
        self.requests = [request for _, request in chosen]
        self._first = [row for row, _ in chosen]
        self.notes = self._left_out(choice) + self._unread()
        targets = tuple(sorted({request.target for request in self.requests}))
        self._tokens = dict(zip(targets, language_ids(tokenizer, targets), strict=True))
        manifest = self._store.manifest
        self.passage_length = int(manifest["max_length"])
        self.passage_prefix, self.passage_layout = str(manifest["prefix"]), str(manifest["layout"])
        self.tokenizer_fingerprint = self._store.tokenizer_fingerprint
        self.fingerprint = self._hash()

    def _chosen(self, choice: Choice) -> list[tuple[int, Request]]:
        """First rows and requests, by pair and then in the order of the store."""
        pairs: dict[tuple[str, str], list[tuple[int, Request]]] = {}
        where = f"token store {self._store.folder}"
        for source, target, row in choice.of(self._table, where):
            document = self._store.ids[row].rpartition("#")[0]
            _, shard, name = parts_of(document)
            request = Request(document, f"{shard}/{name}", source, target)
            pairs.setdefault((source, target), []).append((row, request))
        lowest = [
            sorted(found, key=lambda one: _hash_of(one[1].name))[: choice.max_documents]
            for found in pairs.values()
        ]
        return [one for found in lowest for one in sorted(found)]

    def _left_out(self, choice: Choice) -> list[str]:
        """Of documents that have more chunks than are wanted."""
        asked = {request.source for request in self.requests}
        codes = self._table.languages
        of_these = [
            count
            for row, count in self._chunks.items()
            if codes[self._table.language[row]] in asked
        ]
        longer = sum(count > choice.max_chunks > 0 for count in of_these)
        if not longer:
            return []
        return [
            f"{longer:,} of {len(of_these):,} documents in {sorted(asked)} have more than "
            f"{choice.max_chunks} chunks, Choice.max_chunks, and are left out"
        ]

    def _unread(self) -> list[str]:
        """Of chunks that come after what fits a row."""
        if self._reading == "chunk":
            return []
        cut = sum(len(self._rows_of(row)[0]) < self._chunks[row] for row in self._first)
        if not cut:
            return []
        if self._shape.segments == 1:
            raise ValueError(
                "Writing: expected rows of several segments for reading 'document', found 1, so "
                f"that {cut} of {len(self._first)} documents would be read to their first chunk: "
                "set READ_SEGMENTS and READ_LENGTH, as of a training's rows"
            )
        return [
            f"{cut:,} of {len(self._first):,} documents are longer than a row of "
            f"{self._shape.length} tokens in {self._shape.segments} chunks, and are read to there"
        ]

    def batches(self, start: int, end: int) -> Iterator[Batch]:
        """Requests `start` to `end` - 1, without regard to the others."""
        rows = [(n, slots) for n in range(start, end) for slots in self._rows_of(self._first[n])]
        for at in range(0, len(rows), self._shape.rows):
            yield self._batch(rows[at : at + self._shape.rows])

    def _rows_of(self, first: int) -> list[list[int]]:
        """The chunks in each row of a document that begins at a row of the store."""
        chunks = range(first, first + self._chunks[first])
        if self._reading == "chunk":
            return [[chunk] for chunk in chunks]
        filled = np.cumsum(self._store.lengths[chunks.start : chunks.stop])
        fit = int(np.searchsorted(filled, self._shape.length, side="right"))
        return [list(chunks[: min(fit, self._shape.segments)])]

    def _batch(self, rows: Sequence[tuple[int, list[int]]]) -> Batch:
        shape = self._shape
        slots = np.full((shape.rows, shape.segments), NONE)
        for row in range(shape.rows):
            chunks = rows[min(row, len(rows) - 1)][1]
            slots[row, : len(chunks)] = chunks
        passages = self._store.read(slots[slots != NONE])
        request = np.full(shape.rows, rows[-1][0])
        request[: len(rows)] = [number for number, _ in rows]
        language = [self._tokens[self.requests[number].target] for number in request.tolist()]
        request[len(rows) :] = NONE
        evidence = token_groups.build_group(passages, slots, shape.length)
        return Batch(evidence, np.asarray(language, np.int32), request)

    def text(self, written: Sequence[np.ndarray]) -> str:
        """The text of a request, from the tokens that were written of its rows, int [T] each."""
        texts = self._tokenizer.decode_batch([tokens.tolist() for tokens in written])
        return " ".join(filter(None, map(str.strip, texts)))

    def _hash(self) -> str:
        parts = {
            "version": VERSION,
            "store": self._store.fingerprint,
            "shape": dataclasses.astuple(self._shape),
            "reading": self._reading,
            "requests": self.requests,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _hash_of(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
