"""Queries with their positive and hard negatives: the pipeline for fine-tuning a bi-encoder."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from input_pipelines import packing, plan, stream
from input_pipelines.pipeline import PREFETCH, open_stores
from input_pipelines.token_store import StoreError, TokenStore

PAIRS_VERSION = 1  # part of every fingerprint: raise it when the same arguments give other pairs

# Streams of random numbers, so that no two uses of a seed share any.
_ORDER = 0  # the order of an epoch
_FILL = 1  # + attempt: random passages where a query has too few negatives
_ATTEMPTS = 64


class PairsError(ValueError):
    """A negatives file that is malformed or does not fit its stores."""


@dataclass(frozen=True)
class Pairs:
    """What a negatives file says, as rows of the stores.

    Attributes:
      queries: int64 [Q], rows in the query store.
      positives: int64 [Q, most positives], rows in the passage store; -1 where none.
      negatives: int64 [Q, most negatives], likewise, in the order of the file.
      unknown_negatives: negatives left out because the passage store does not have them.
    """

    queries: np.ndarray
    positives: np.ndarray
    negatives: np.ndarray
    unknown_negatives: int


def read_pairs(path: str, query_store: TokenStore, passage_store: TokenStore) -> Pairs:
    """Reads `{"query_id", "positive_ids": [...], "negative_ids": [...]}` lines.

    A negative that is also a positive of its query is left out, and so is one that the passage
    store does not have (it is counted).

    Raises:
      PairsError: a line that is not of that form, a query that is unknown, comes twice or has no
        positive in the passage store, or no line at all. Names the line and the query.
    """
    queries: list[int] = []
    positives: list[list[int]] = []
    negatives: list[list[int]] = []
    unknown = 0
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            where = f"{path}:{number}"
            name, positive_ids, negative_ids = _parse(line, where)
            queries.append(_query_row(query_store, name, where))
            known = _rows(passage_store, positive_ids)
            if not known:
                raise PairsError(
                    f"{where}: query {name!r} has no positive in {passage_store.folder}: expected "
                    f"at least one of {positive_ids[:5]} there. Drop the query, or prepare the "
                    "store from the corpus that the file was made from."
                )
            found = _rows(passage_store, negative_ids)
            unknown += len(negative_ids) - len(found)
            positives.append(list(dict.fromkeys(known)))
            negatives.append([row for row in dict.fromkeys(found) if row not in set(known)])
    _check_unique(path, queries, query_store)
    return Pairs(np.array(queries), _padded(positives), _padded(negatives), unknown)


def _parse(line: bytes, where: str) -> tuple[str, list[str], list[str]]:
    try:
        record = json.loads(line)
        name, *lists = record["query_id"], record["positive_ids"], record["negative_ids"]
        if not isinstance(name, str):
            raise TypeError(f"query_id is {name!r}")
        for ids in lists:
            if not isinstance(ids, list) or not all(isinstance(value, str) for value in ids):
                raise TypeError(f"expected a list of strings, found {ids!r:.60}")
    except (ValueError, KeyError, TypeError) as error:
        raise PairsError(
            f"{where}: expected an object with query_id (text), positive_ids and negative_ids "
            f"(lists of texts), found {line.strip()[:80]!r} ({error!r})"
        ) from error
    return name, lists[0], lists[1]


def _query_row(store: TokenStore, name: str, where: str) -> int:
    if name not in store.row_of:
        raise PairsError(
            f"{where}: query {name!r} is not in {store.folder}: expected a query of that store. "
            "Mine again from this store's queries, or point to the store that was mined from."
        )
    return store.row_of[name]


def _check_unique(path: str, queries: list[int], store: TokenStore) -> None:
    if not queries:
        raise PairsError(f"{path} is empty: expected a line for each training query")
    repeated = np.flatnonzero(np.bincount(queries) > 1)
    if len(repeated):
        raise PairsError(
            f"{path}: query {store.ids[repeated[0]]!r} has {queries.count(int(repeated[0]))} lines:"
            " expected one line for each query, with all its positives"
        )


def _rows(store: TokenStore, ids: list[str]) -> list[int]:
    return [store.row_of[name] for name in ids if name in store.row_of]


def _padded(lists: list[list[int]]) -> np.ndarray:
    """Lists of different lengths -> int64 [n, longest, at least 1], -1 where there is nothing."""
    out = np.full((len(lists), max(1, *map(len, lists))), packing.NONE, dtype=np.int64)
    for row, values in enumerate(lists):
        out[row, : len(values)] = values
    return out


class PairsPipeline:
    """Batches of B queries, and for each its positive and G - 1 negatives, without end.

    An epoch shows every query once, in a new order (the last queries that fill no batch wait for
    another epoch, so that a batch never holds a query twice). A query with several positives takes
    the next one each epoch; its negatives are a window that slides over the list in the file; where
    the list is too short, random passages that are no positive of the query fill up.

    Attributes:
      pairs: what the negatives file says.
      steps_per_epoch: batches in an epoch.
      fingerprint: of everything that decides what is in a step.
    """

    def __init__(
        self,
        queries: str | TokenStore,
        passages: str | TokenStore,
        negatives: str,
        *,
        rows: int,
        group_size: int,
        query_length: int,
        passage_length: int,
        seed: int,
        tokenizer: str | None = None,
    ):
        """
        Args:
          queries: token store folder of the queries.
          passages: token store folder of the passages.
          negatives: a jsonl file, see `read_pairs`.
          rows: B, queries of the global batch.
          group_size: G, passages for each query: 1 positive and G - 1 negatives.
          query_length, passage_length: tokens in a row; what is longer is cut and keeps its [SEP].
          seed: decides order and random fill.
          tokenizer: a tokenizer's folder that both stores have to fit.

        Raises:
          ValueError, StoreError, PairsError: a size out of range, stores or a file that do not fit.
        """
        plan.check_sizes("PairsPipeline", rows=rows, group_size=group_size)
        for name, value in (("query_length", query_length), ("passage_length", passage_length)):
            if value < 2:
                raise ValueError(
                    f"PairsPipeline.{name}: expected room for [CLS] and [SEP], 2 or more tokens, "
                    f"found {value}"
                )
        self.query_store, self.passage_store = open_stores([queries, passages], tokenizer)
        self.pairs = read_pairs(negatives, self.query_store, self.passage_store)
        self.rows, self.group_size, self.seed = rows, group_size, seed
        self.query_length, self.passage_length = query_length, passage_length
        self.steps_per_epoch = len(self.pairs.queries) // rows
        if not self.steps_per_epoch:
            raise ValueError(
                f"PairsPipeline.rows: a batch of {rows} queries needs as many different ones, "
                f"found {len(self.pairs.queries)} in {negatives}; make the batch smaller"
            )
        needed = self.pairs.positives.shape[1] + group_size - 1
        if len(self.passage_store) < needed:
            raise StoreError(
                f"{self.passage_store.folder} holds {len(self.passage_store)} passages: expected "
                f"{needed} or more, all positives of a query and {group_size - 1} negatives"
            )
        self.fingerprint = self._hash()

    def specs(self) -> stream.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        passages = self.rows * self.group_size
        passage = packing.group_spec(passages, self.passage_length, 1)
        for feature in ("relevance", "document_id"):
            passage[feature] = ((passages, 1), np.dtype(np.int32))
        return {"query": packing.group_spec(self.rows, self.query_length, 1), "passage": passage}

    def batch(self, step: int, rows: np.ndarray | None = None) -> stream.Batch:
        """These queries of the global batch of a step, and their passages; no others are read.

        Args:
          step: 0 or more.
          rows: int [n] from 0 to B - 1; None takes all.

        Returns:
          `query`: n rows, example_id is the row in the query store. `passage`: n * G rows, those of
          a query together, its positive first; example_id is that of the query, document_id the row
          in the passage store, relevance 1 for the positive and 0 for negatives.
        """
        picked, documents = self.choose(step)
        rows = stream.own_rows(rows, self.rows)
        query_rows = self.pairs.queries[picked[rows]][:, None]  # [n, 1]
        document_id = documents[rows].reshape(-1, 1)  # [n * G, 1]
        query = _unpacked(self.query_store, query_rows, self.query_length, query_rows)
        owner = np.repeat(query_rows, self.group_size, axis=0)
        passage = _unpacked(self.passage_store, document_id, self.passage_length, owner)
        first = np.arange(len(document_id)) % self.group_size == 0
        passage["relevance"] = first[:, None].astype(np.int32)
        passage["document_id"] = document_id.astype(np.int32)
        return {"query": query, "passage": passage}

    def batches(self, start_step: int, rows: np.ndarray | None = None) -> stream.Prefetched:
        """batch(start_step), batch(start_step + 1), ... without end, prefetched."""
        rows = stream.own_rows(rows, self.rows)
        return stream.Prefetched(
            lambda step: self.batch(step, rows), self.specs(), start_step, None, PREFETCH
        )

    def choose(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of a step, int64 [B], and their passages' rows, positive first, int64 [B, G]."""
        if step < 0:
            raise ValueError(f"PairsPipeline: step: expected 0 or more, found {step}")
        epoch, within = divmod(step, self.steps_per_epoch)
        order = plan.permutation(self.seed, _ORDER, epoch, len(self.pairs.queries))
        picked = order[within * self.rows : (within + 1) * self.rows]
        positives = self.pairs.positives[picked]  # [B, P]
        turn = epoch % (positives != packing.NONE).sum(axis=1)
        chosen = np.full((self.rows, self.group_size), packing.NONE, dtype=np.int64)
        chosen[:, 0] = positives[np.arange(self.rows), turn]
        chosen[:, 1:] = self._window(self.pairs.negatives[picked], epoch)
        return picked, self._fill(chosen, positives, step)

    def _window(self, negatives: np.ndarray, epoch: int) -> np.ndarray:
        """[B, all negatives] -> [B, G - 1], the next ones each epoch; -1 where too few."""
        wanted = self.group_size - 1
        count = (negatives != packing.NONE).sum(axis=1)[:, None]  # [B, 1]
        place = np.arange(wanted)[None, :]
        at = (epoch * wanted + place) % np.maximum(count, 1)
        return np.where(place < count, np.take_along_axis(negatives, at, axis=1), packing.NONE)

    def _fill(self, chosen: np.ndarray, positives: np.ndarray, step: int) -> np.ndarray:
        """Puts random passages where `chosen` [B, G] is free: no positive, none twice."""
        size = len(self.passage_store)
        for attempt in range(_ATTEMPTS):
            free = chosen == packing.NONE
            if not free.any():
                return chosen
            numbers = plan.hashed(self.seed, _FILL + attempt, step, chosen.size)
            draw = (numbers % np.uint64(size)).astype(np.int64).reshape(chosen.shape)
            trial = np.where(free, draw, chosen)
            taken = (trial[:, :, None] == positives[:, None, :]).any(axis=2)
            same = trial[:, :, None] == trial[:, None, :]  # [B, G, G]
            earlier = np.tri(self.group_size, k=-1, dtype=bool)
            taken |= (same & (earlier | ~free[:, None, :])).any(axis=2)
            chosen = np.where(free & ~taken, draw, chosen)
        return self._fill_in_order(chosen, positives)

    def _fill_in_order(self, chosen: np.ndarray, positives: np.ndarray) -> np.ndarray:
        """What luck did not fill (a store with hardly more passages than a row needs)."""
        for row, column in np.argwhere(chosen == packing.NONE):
            used = np.concatenate([positives[row], chosen[row]])
            chosen[row, column] = np.setdiff1d(np.arange(len(self.passage_store)), used)[0]
        return chosen

    def _hash(self) -> str:
        parts = {
            "version": PAIRS_VERSION,
            "stores": [self.query_store.fingerprint, self.passage_store.fingerprint],
            "pairs": [
                hashlib.sha256(np.ascontiguousarray(table).tobytes()).hexdigest()
                for table in (self.pairs.queries, self.pairs.positives, self.pairs.negatives)
            ],
            "shape": [self.rows, self.group_size, self.query_length, self.passage_length],
            "seed": self.seed,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _unpacked(
    store: TokenStore, rows: np.ndarray, length: int, example_id: np.ndarray
) -> packing.Group:
    """One passage a row: rows, example_id int64 [n, 1]."""
    passages = packing.truncate(store.read(rows[:, 0]), length)
    return packing.build_group(passages, rows, length, example_id)
