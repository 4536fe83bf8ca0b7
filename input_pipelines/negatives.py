"""The file that says which passages answer a query and which only look as if they did."""

import json
from dataclasses import dataclass

import numpy as np

from input_pipelines import packing
from input_pipelines.token_store import TokenStore


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
