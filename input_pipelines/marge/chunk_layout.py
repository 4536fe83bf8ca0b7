"""Documents cut into chunks, rows of a token store: "[CLS] tokens [SEP]", ids "de/news/NAME#0"."""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence

import numpy as np

from input_pipelines.gather.documents import parts_of
from input_pipelines.sources.text_sources import Record
from input_pipelines.store import layouts
from input_pipelines.store.layouts import Rows
from input_pipelines.store.store_writer import StoreRecord
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers import tokenization

FIRST = "first_chunk"  # table [rows, 1] int64: the row where a chunk's document begins


@dataclasses.dataclass(frozen=True)
class Chunks(layouts.Plain):
    """A layout (`layouts.Layout`): documents are cut where words begin, and nothing is lost.

    A title is the beginning of the first chunk.

    Attributes:
      max_chunks: chunks of a document at most; 0: all. Later ones are counted as truncated.
    """

    max_chunks: int = 0

    @property
    def name(self) -> str:
        """See `Layout`."""
        return layouts.TEXT

    @property
    def numbers(self) -> Mapping[str, str]:
        """See `Layout`."""
        return {FIRST: "rows"}

    def rows(
        self,
        records: Sequence[Record],
        tokenizer: tokenization.Tokenizer,
        length: int,
        prefix: str,
    ) -> Rows:
        """See `Layout`."""
        cls, sep = (int(tokenizer.vocabulary[role]) for role in ("cls", "sep"))
        texts = [prefix + tokenization.join_title(r.title, r.text) for r in records]
        rows: list[StoreRecord] = []
        first: list[int] = []
        truncated = 0
        for record, text, pieces in zip(records, texts, tokenizer.pieces(texts), strict=True):
            cuts = _cut(pieces.word_starts, length - 2)
            truncated += 0 < self.max_chunks < len(cuts)
            begin = len(rows)
            for number, (start, end) in enumerate(cuts[: self.max_chunks or None]):
                said = text[pieces.offsets[start][0] : pieces.offsets[end - 1][1]]
                tokens = np.concatenate([[cls], pieces.tokens[start:end], [sep]]).astype(np.int32)
                starts = np.concatenate([[True], pieces.word_starts[start:end], [True]])
                rows.append(
                    StoreRecord(f"{record.id}#{number}", "", said, record.source, tokens, starts)
                )
                first.append(begin)
        return Rows(rows, truncated, {FIRST: np.asarray(first, np.int64).reshape(-1, 1)})


def _cut(word_starts: np.ndarray, room: int) -> list[tuple[int, int]]:
    """Start and end of each chunk of at most `room` tokens; words that fit are not cut."""
    cuts: list[tuple[int, int]] = []
    start, count = 0, len(word_starts)
    while start < count:
        end = min(start + room, count)
        if end < count:
            begins = np.flatnonzero(word_starts[start + 1 : end + 1])
            end = start + 1 + int(begins[-1]) if len(begins) else end
        cuts.append((start, end))
        start = end
    return cuts


@dataclasses.dataclass(frozen=True)
class ChunkTable:
    """Metadata of the chunks of a store.

    Attributes:
      document: int64 [N], a number for each document.
      number: int64 [N], of a chunk in its document.
      languages: the codes.
      language: int64 [N], number of a chunk's language among them.
      shard: int64 [N], a number for each.
      name: int64 [N], equal where the documents' shards and names are.
    """

    document: np.ndarray
    number: np.ndarray
    languages: tuple[str, ...]
    language: np.ndarray
    shard: np.ndarray
    name: np.ndarray

    @classmethod
    def of(cls, store: TokenStore) -> "ChunkTable":
        """Raises StoreError unless the rows are chunks of documents that `documents` gathered."""
        if f"{FIRST}.npy" not in store.manifest["files"]:
            raise StoreError(
                f"token store {store.folder}: expected chunks, prepared with "
                f"runs/stores/chunks.gin, found no table {FIRST!r}"
            )
        document = np.asarray(store.table(FIRST), np.int64)[:, 0]
        parts = [parts_of(name.rpartition("#")[0]) for name in store.ids]
        codes, language = np.unique([part[0] for part in parts], return_inverse=True)
        return cls(
            document,
            np.arange(len(store)) - document,
            tuple(codes.tolist()),
            language,
            np.unique([part[1] for part in parts], return_inverse=True)[1],
            np.unique([f"{part[1]}/{part[2]}" for part in parts], return_inverse=True)[1],
        )


def table_of(store: str) -> ChunkTable:
    """Of the token store in a folder; errors as `ChunkTable.of`."""
    return ChunkTable.of(TokenStore.open(store))


@functools.cache
def language_ids(tokenizer: str, languages: tuple[str, ...]) -> tuple[int, ...]:
    """Ids of the tokens of some languages.

    Args:
      tokenizer: folder.
      languages: codes.

    Raises:
      TokenizerError: a language has none; names those that have.
    """
    with open(os.path.join(tokenizer, "tokenizer.json"), encoding="utf-8") as file:
        added = {token["content"]: int(token["id"]) for token in json.load(file)["added_tokens"]}
    tokens = [tokenization.language_token(code) for code in languages]
    without = [token for token in tokens if token not in added]
    if without:
        raise tokenization.TokenizerError(
            f"tokenizer folder {tokenizer}: no token for {len(without)} of {len(languages)} "
            f"languages, expected {without[:5]}; it has {sorted(added)[:20]}. Train it with "
            "tokenization.train_tokenizer.languages, the list that documents.gather wrote."
        )
    return tuple(added[token] for token in tokens)
