"""Concatenate a query and a passage into one text, the input of a re-ranker.

    tokens        CLS  q  ##q SEP  p  ##p  p  SEP
    token_types    0   0   0   0   1   1   1   1

The passage's own [CLS] is removed. Where the tokenizer puts two [SEP] between the texts of a pair,
as RoBERTa's does, a second [SEP] replaces it. A store's passage is its title, then its body.
"""

import copy
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from input_pipelines.batches import packing_plan, prefetch, token_groups
from input_pipelines.batches.negatives import read_pairs, searched_scores
from input_pipelines.batches.packed_text import PREFETCH, open_stores
from input_pipelines.store.token_store import Passages, StoreError, TokenStore
from input_pipelines.tokenizers.tokenization import pair_separators


def group_spec(rows: token_groups.Rows) -> token_groups.GroupSpec:
    """Shape and dtype of each feature of a token group of pairs."""
    spec = token_groups.group_spec(rows.rows, rows.length, rows.segments)
    return spec | {"token_types": ((rows.rows, rows.length), np.dtype(np.int32))}


def build_group(
    queries: Passages,
    passages: Passages,
    slots: np.ndarray,
    length: int,
    example_id: np.ndarray | None = None,
    separators: int = 1,
) -> token_groups.Group:
    """Lays pairs end to end in rows.

    Args:
      queries, passages: of the pairs in the slots that are not free, in the order of the slots; cut
        to their lengths.
      slots, length, example_id: see `token_groups.build_group`.
      separators: see `join`.

    Returns:
      A token group as there, with `token_types` int32 [B, L].
    """
    joined = join(queries, passages, separators)
    group = token_groups.build_group(joined, slots, length, example_id)
    ends = np.zeros(slots.shape, np.int64)  # [B, S], tokens of the query in each segment
    ends[slots != token_groups.NONE] = queries.lengths
    segment = np.maximum(group["segment_ids"] - 1, 0)
    behind = group["positions"] >= np.take_along_axis(ends, segment, axis=1)
    group["token_types"] = (behind & (group["segment_ids"] > 0)).astype(np.int32)
    return group


def join(queries: Passages, passages: Passages, separators: int = 1) -> Passages:
    """Each query followed by its passage; as many of one as of the other.

    Args:
      queries, passages: each with [CLS] and [SEP].
      separators: number of [SEP] between the two. With 1 the passage's [CLS] is removed, with 2 a
        [SEP] replaces it.
    """
    both = Passages(
        np.concatenate([queries.tokens, passages.tokens]),
        np.concatenate([queries.word_starts, passages.word_starts]),
        np.concatenate([queries.lengths, passages.lengths]),
    )
    count = len(queries.lengths)
    laid = token_groups.reorder(both, np.arange(2 * count).reshape(2, count).T.reshape(-1))
    inner = np.cumsum(queries.lengths + passages.lengths) - passages.lengths  # each passage's [CLS]
    lengths = queries.lengths + passages.lengths
    if separators == 2:
        tokens = laid.tokens.copy()
        tokens[inner] = laid.tokens[inner - 1]  # the query's [SEP]
        return Passages(tokens, laid.word_starts, lengths)
    return Passages(np.delete(laid.tokens, inner), np.delete(laid.word_starts, inner), lengths - 1)


def pair_lengths(queries: np.ndarray, passages: np.ndarray, separators: int) -> np.ndarray:
    """Computes how many tokens the pairs of `join` have.

    Args:
      queries, passages: tokens of each text, specials included, of shapes that broadcast.
      separators: see `join`.
    """
    return queries + passages + separators - 2


class JointTexts:
    """Two stores out of which pairs are made, for scoring.

    Attributes:
      query_length, passage_length: tokens at which texts are cut, here or when a store was made.
      query_prefix, passage_prefix: text that was put before each.
      passage_layout: how titles are put into passages, see `layouts.Layout.name`.
      tokenizer_fingerprint: of the tokenizer that made both.
      separators: [SEP] between query and passage.
    """

    def __init__(
        self,
        queries: str | TokenStore,
        passages: str | TokenStore,
        *,
        query_length: int,
        passage_length: int,
        rows: token_groups.Rows,
        tokenizer: str | None = None,
    ):
        """
        Args:
          queries, passages: token store folders.
          query_length, passage_length: tokens at which texts are cut; [SEP] stays.
          rows: of a batch.
          tokenizer: a tokenizer's folder that both stores have to fit, and which says how pairs
            are joined; None: as BERT's.

        Raises:
          ValueError, StoreError: a length out of range, or stores that do not fit.
        """
        self.separators = pair_separators(tokenizer)
        check_lengths("JointTexts", query_length, passage_length, rows, self.separators)
        self.query_store, self.passage_store = open_stores([queries, passages], tokenizer)
        self.rows = rows
        stored = (self.query_store.manifest, self.passage_store.manifest)
        # What prepare cut shorter stays shorter: this is what a contract is compared with.
        self.query_length = min(query_length, int(stored[0]["max_length"]))
        self.passage_length = min(passage_length, int(stored[1]["max_length"]))
        self.query_prefix, self.passage_prefix = (str(manifest["prefix"]) for manifest in stored)
        self.passage_layout = str(stored[1]["layout"])
        self.tokenizer_fingerprint = self.query_store.tokenizer_fingerprint

    @property
    def fingerprint(self) -> str:
        """Of all texts, where they are cut, and the shape of batches, as hexadecimal."""
        stores = (self.query_store.fingerprint, self.passage_store.fingerprint)
        parts: tuple[object, ...] = (stores, self.query_length, self.passage_length, self.rows)
        if self.separators > 1:
            parts += (self.separators,)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def mined(self, negatives: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """The ids of each query of a file of negatives, its positives and its negatives.

        Raises:
          PairsError: as `negatives.read_pairs`, before anything is given.
        """
        found = read_pairs(negatives, self.query_store, self.passage_store)
        tables = (found.queries.tolist(), found.positives.tolist(), found.negatives.tolist())
        return (
            (self.query_store.ids[query], self._passages(right), self._passages(wrong))
            for query, right, wrong in zip(*tables, strict=True)
        )

    def searched(self, negatives: str) -> dict[str, dict[str, float]]:
        """Scores of the search that mined a file, see `searched_scores`."""
        return searched_scores(negatives)

    def _passages(self, rows: list[int]) -> list[str]:
        return [self.passage_store.ids[row] for row in rows if row != token_groups.NONE]

    def pairs(self, query_ids: Sequence[str], passage_ids: Sequence[str]) -> "JointSource":
        """The pairs query_ids[n], passage_ids[n], in this order.

        Raises:
          StoreError: a store does not have one of them.
        """
        rows = [
            _rows_of(store, ids)
            for store, ids in ((self.query_store, query_ids), (self.passage_store, passage_ids))
        ]
        return JointSource(self, *rows)


class JointSource:
    """Pairs of texts, packed, each once; `example_id` of a segment is its place in `ids`.

    Attributes:
      ids: "query passage", in order.
    """

    def __init__(self, texts: JointTexts, query_rows: np.ndarray, passage_rows: np.ndarray):
        """Args:
        texts: the stores, and how texts are cut and packed.
        query_rows, passage_rows: int64 [N], rows in the stores.
        """
        self._texts, self._rows = texts, (query_rows, passage_rows)
        self._slots = self._pack()

    @property
    def ids(self) -> list[str]:
        """See the class."""
        queries, passages = self._texts.query_store.ids, self._texts.passage_store.ids
        return [f"{queries[q]} {passages[p]}" for q, p in zip(*self._rows, strict=True)]

    def __len__(self) -> int:
        """Pairs."""
        return len(self._rows[0])

    @property
    def fingerprint(self) -> str:
        """Of the pairs, where they are cut, and the shape of batches, as hexadecimal."""
        digest = hashlib.sha256(self._texts.fingerprint.encode())
        for rows in self._rows:
            digest.update(rows.astype(np.int64).tobytes())
        return digest.hexdigest()

    def part(self, start: int, end: int) -> "JointSource":
        """Pairs start to end - 1 alone, packed without regard to the others."""
        if not 0 <= start < end <= len(self):
            raise ValueError(
                f"JointSource.part: expected pairs among 0 to {len(self)}, found {start} to {end}"
            )
        found = copy.copy(self)
        queries, passages = self._rows
        found._rows = (queries[start:end], passages[start:end])
        found._slots = found._pack()
        return found

    def batches(self) -> Iterator[token_groups.Group]:
        """Groups of one shape, prefetched; the last one's free rows are padding."""
        count = self._texts.rows.rows
        groups = prefetch.Prefetched(
            lambda number: {"pair": self._group(number)},
            {"pair": group_spec(self._texts.rows)},
            0,
            len(self._slots) // count,
            PREFETCH,
        )
        return (batch["pair"] for batch in groups)

    def _group(self, number: int) -> token_groups.Group:
        rows = self._texts.rows
        slots = self._slots[number * rows.rows : (number + 1) * rows.rows]
        queries, passages = (of[slots[slots != token_groups.NONE]] for of in self._rows)
        texts = self._texts
        return build_group(
            token_groups.truncate(texts.query_store.read(queries), texts.query_length),
            token_groups.truncate(texts.passage_store.read(passages), texts.passage_length),
            slots,
            rows.length,
            separators=texts.separators,
        )

    def _pack(self) -> np.ndarray:
        """int64 [batches * rows, segments]: which pair is where, NONE where free."""
        rows, texts = self._texts.rows, self._texts
        queries, passages = self._rows
        sizes = pair_lengths(
            np.minimum(texts.query_store.lengths[queries], texts.query_length),
            np.minimum(texts.passage_store.lengths[passages], texts.passage_length),
            texts.separators,
        )
        slots = packing_plan.pack_rows(sizes, rows.length, rows.segments)
        spare = np.full((-len(slots) % rows.rows, rows.segments), token_groups.NONE)
        return np.concatenate([slots, spare])


def check_lengths(
    owner: str, query: int, passage: int, rows: token_groups.Rows, separators: int
) -> None:
    """Raises ValueError unless a query and a passage of these lengths fit one row."""
    most = rows.length + 2 - separators
    if query < 2 or passage < 2 or query + passage > most:
        raise ValueError(
            f"{owner}: query_length {query} and passage_length {passage}: expected room for [CLS] "
            f"and [SEP], 2 or more tokens each, and at most {most} together, since a pair in a row "
            f"of {rows.length} tokens has {separators} [SEP] between them; found "
            f"{query + passage}"
        )


def _rows_of(store: TokenStore, ids: Sequence[str]) -> np.ndarray:
    unknown = [name for name in ids if name not in store.row_of]
    if unknown:
        raise StoreError(
            f"{store.folder}: {len(unknown)} of {len(ids)} texts that are to be scored are not "
            f"there, the first is {unknown[0]!r}: prepare the store from the corpus that they are "
            "of"
        )
    return np.array([store.row_of[name] for name in ids], dtype=np.int64)
