"""Reads a negatives file: passages that answer a query, and passages that only look like it.

docs/mining.md describes its lines, and the `.origin.json` next to a mined file.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from input_pipelines.batches import token_groups
from input_pipelines.store.token_store import TokenStore

NO_SCORE = -math.inf  # of a passage that the teacher has not seen


class PairsError(ValueError):
    """A negatives file that is malformed or does not fit its stores."""


@dataclass(frozen=True)
class Pairs:
    """Content of a negatives file, as rows of the stores.

    Attributes:
      queries: int64 [Q], rows in the query store.
      positives: int64 [Q, most positives], rows in the passage store; -1 where none.
      negatives: int64 [Q, most negatives], likewise, in the order of the file.
      teacher: float32 [Q, most positives + most negatives], the teacher's scores of both, NO_SCORE
        where there is no passage or no score; None if they were not asked for.
    """

    queries: np.ndarray
    positives: np.ndarray
    negatives: np.ndarray
    teacher: np.ndarray | None = None

    def digests(self) -> list[str]:
        """sha256 of each table that there is, as hexadecimal."""
        tables = (self.queries, self.positives, self.negatives, self.teacher)
        return [
            hashlib.sha256(np.ascontiguousarray(table).tobytes()).hexdigest()
            for table in tables
            if table is not None
        ]

    def teacher_scores(self, picked: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """The teacher's scores of queries' passages.

        Args:
          picked: int64 [B], which of the Q.
          documents: int64 [B, G], rows in the passage store.

        Returns:
          float32 [B, G]; NO_SCORE for a passage that the file does not list for the query.
        """
        assert self.teacher is not None
        named = np.concatenate([self.positives, self.negatives], axis=1)[picked]  # [B, N]
        same = documents[:, :, None] == named[:, None, :]  # [B, G, N]
        scores = np.take_along_axis(self.teacher[picked], same.argmax(axis=2), axis=1)
        return np.where(same.any(axis=2), scores, np.float32(NO_SCORE))


@dataclass(frozen=True)
class _Line:
    """One query: rows in the stores, ids, and the teacher's scores by id."""

    query: int
    positives: list[int]
    negatives: list[int]
    teacher: list[float]
    unknown: int  # negatives that the passage store does not have
    contradicted: int  # negatives that are positives too


def read_pairs(
    path: str,
    query_store: TokenStore,
    passage_store: TokenStore,
    *,
    teacher: bool = False,
    partial: bool = False,
    made_by: str | None = None,
) -> Pairs:
    """Reads `{"query_id", "positive_ids": [...], "negative_ids": [...]}` lines.

    A negative that is also a positive of its query is left out, and so is one that the passage
    store does not have; both are counted in a warning.

    Args:
      path: the file.
      query_store, passage_store: whose ids it names.
      teacher: whether lines have to carry `teacher_scores`, {id: score}, of all their passages.
      partial: whether some may lack them: a negative without a score has NO_SCORE, and so has each
        passage of a query of which a positive has none. A warning counts these queries.
      made_by: the fingerprint of the model that has to have mined the file; None: any, or none.

    Raises:
      PairsError: a line that is not of that form, a query that is unknown, comes twice or has no
        positive in the passage store, a score that is missing, no line at all, or an origin that
        names other texts or another model. Says which line and query.
    """
    _check_origin(path, query_store, passage_store, made_by)
    with open(path, "rb") as f:
        lines = [
            _read(line, f"{path}:{number}", query_store, passage_store, teacher, partial)
            for number, line in enumerate(f, 1)
        ]
    _check_unique(path, [line.query for line in lines], query_store)
    _warn(path, lines)
    positives = _padded([line.positives for line in lines], token_groups.NONE, np.int64)
    negatives = _padded([line.negatives for line in lines], token_groups.NONE, np.int64)
    scores = None
    if teacher:
        _require_some(path, [line.teacher for line in lines])
        both = [
            (line.teacher[: len(line.positives)], line.teacher[len(line.positives) :])
            for line in lines
        ]
        sides = [_padded(list(side), NO_SCORE, np.float32) for side in zip(*both, strict=True)]
        scores = np.concatenate(sides, axis=1)
    return Pairs(np.array([line.query for line in lines]), positives, negatives, scores)


def hits(path: str) -> list[str]:
    """The negatives of all queries of a file, each once, sorted: what a search found.

    Raises:
      PairsError: a line that is not of the form that `read_pairs` reads.
    """
    with open(path, "rb") as f:
        lines = [_parse(line, f"{path}:{number}") for number, line in enumerate(f, 1)]
    return sorted({name for line in lines for name in line["negative_ids"]})


def searched_scores(path: str) -> dict[str, dict[str, float]]:
    """Scores of the search that mined a file: query -> passage -> score.

    Queries whose line has no score of each passage, such as one that was edited, are left out.

    Raises:
      PairsError: a line that is not of the form that `read_pairs` reads.
    """
    found = {}
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            record = _parse(line, f"{path}:{number}")
            scores: dict[str, float] = {}
            for side in ("positive", "negative"):
                given, ids = record.get(f"{side}_scores"), record[f"{side}_ids"]
                if not isinstance(given, list) or len(given) != len(ids):
                    continue
                if all(isinstance(n, int | float) for n in given):
                    scores |= dict(zip(ids, given, strict=True))
            if scores.keys() >= {*record["positive_ids"], *record["negative_ids"]}:
                found[record["query_id"]] = scores
    return found


def _read(
    text: bytes,
    where: str,
    query_store: TokenStore,
    passage_store: TokenStore,
    teacher: bool,
    partial: bool,
) -> _Line:
    record = _parse(text, where)
    query = _query_row(query_store, record["query_id"], where)
    ids = record["positive_ids"]
    known = list(dict.fromkeys(name for name in ids if name in passage_store.row_of))
    if not known:
        raise PairsError(
            f"{where}: query {record['query_id']!r} has no positive in {passage_store.folder}: "
            f"expected at least one of {ids[:5]} there. Drop the query, or prepare the store from "
            "the corpus that the file was made from."
        )
    found = [name for name in record["negative_ids"] if name in passage_store.row_of]
    wrong = [name for name in dict.fromkeys(found) if name not in known]
    return _Line(
        query,
        [passage_store.row_of[name] for name in known],
        [passage_store.row_of[name] for name in wrong],
        _teacher_scores(record, known, wrong, where, partial) if teacher else [],
        len(record["negative_ids"]) - len(found),
        len(set(found) & set(known)),
    )


def _teacher_scores(
    record: Mapping[str, Any], positives: list[str], negatives: list[str], where: str, partial: bool
) -> list[float]:
    """Of the positives, then of the negatives; see `read_pairs`."""
    scores, ids = record.get("teacher_scores", {}), [*positives, *negatives]
    if not isinstance(scores, dict):
        raise PairsError(f"{where}: teacher_scores: expected {{id: score}}, found {scores!r:.60}")
    lacking = [name for name in ids if name not in scores]
    if partial and any(name in lacking for name in positives):
        return [NO_SCORE] * len(ids)
    if lacking and not partial:
        raise PairsError(
            f"{where}: query {record['query_id']!r}: the teacher's score is missing for "
            f"{len(lacking)} of {len(ids)} passages, the first is {lacking[0]!r}. Let the teacher "
            "score the file (stage t5x_style.score), or take these passages out of it."
        )
    for name in scores.keys() & set(ids):
        if not isinstance(scores[name], (int, float)) or not math.isfinite(scores[name]):
            raise PairsError(
                f"{where}: teacher_scores of {name!r}: expected a finite number, found "
                f"{scores[name]!r:.60}"
            )
    return [float(scores.get(name, NO_SCORE)) for name in ids]


def _require_some(path: str, scores: list[list[float]]) -> None:
    """Raises PairsError where a teacher has scored nothing; says how many queries lack scores."""
    without = sum(not any(map(math.isfinite, of_query)) for of_query in scores)
    if without == len(scores):
        raise PairsError(
            f"{path}: a teacher's scores (teacher_scores) are missing: expected them of all "
            "positives of a query, found no such query. Let the teacher score the file (stage "
            "t5x_style.score), or learn without a teacher (TEACHER=None)."
        )
    some = [of_query for of_query in scores if any(map(math.isfinite, of_query))]
    if lacking := sum(not math.isfinite(score) for of_query in some for score in of_query):
        logging.warning(
            "%s: %d of %d passages have no teacher's score: it gives them the share 0",
            *(path, lacking, sum(map(len, some))),
        )
    if without:
        logging.warning(
            "%s: %d of %d queries have no teacher's scores of their positives, and learn from "
            "labels alone",
            *(path, without, len(scores)),
        )


def _warn(path: str, lines: Iterable[_Line]) -> None:
    """Says what was left out: it may mean that the file belongs to another corpus."""
    for count, what in (
        (sum(line.unknown for line in lines), "are not in the passage store"),
        (sum(line.contradicted for line in lines), "are positives of the same query"),
    ):
        if count:
            logging.warning("%s: %d negatives %s and are left out", path, count, what)


def _check_origin(
    path: str, query_store: TokenStore, passage_store: TokenStore, made_by: str | None
) -> None:
    """Compares the origin of a mined file with the stores; a file made by hand has none."""
    origin = Path(path).with_suffix(".origin.json")
    if not origin.is_file():
        if made_by is not None:
            raise PairsError(
                f"{origin}: not found: expected it to say that the model {made_by[:12]} mined "
                f"{path}. Mine again, or do not ask for a model."
            )
        return
    record = _read_origin(origin)
    if made_by is not None and record["made_by"] != made_by:
        raise PairsError(
            f"{path} was made by the model {record['made_by'][:12]}, expected {made_by[:12]}: "
            "mine again with this model, or name the one that it was mined with."
        )
    for kind, store in (("queries", query_store), ("passages", passage_store)):
        for name, digest in record[kind].items():
            if name not in store.row_of or _digest(store, name, kind) == digest:
                continue  # what a file names and a store lacks is reported line by line
            raise PairsError(
                f"{path} was made from other {kind} than {store.folder}: {name!r} has another "
                "text there. Mine again from this corpus, or prepare the store from the one that "
                "was mined."
            )


def _read_origin(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name, kind in (("made_by", str), ("queries", dict), ("passages", dict)):
            if not isinstance(record[name], kind):
                raise TypeError(f"{name} is {record[name]!r:.40}")
    except (ValueError, KeyError, TypeError) as error:
        raise PairsError(
            f"{path}: expected made_by, queries and passages of mined negatives, found something "
            f"else ({error!r}). Mine again, or remove it to do without its check."
        ) from error
    return record


def _digest(store: TokenStore, name: str, kind: str) -> str:
    """As `t5x_style.mining.provenance` makes it."""
    text = store.text(store.row_of[name])
    parts = [text.title if kind == "passages" else "", text.text]
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:16]


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
        if not isinstance(record["query_id"], str):
            raise TypeError(f"query_id is {record['query_id']!r}")
        for ids in (record["positive_ids"], record["negative_ids"]):
            if not isinstance(ids, list) or not all(isinstance(value, str) for value in ids):
                raise TypeError(f"expected a list of strings, found {ids!r:.60}")
    except (ValueError, KeyError, TypeError) as error:
        raise PairsError(
            f"{where}: expected an object with query_id (text), positive_ids and negative_ids "
            f"(lists of texts), found {line.strip()[:80]!r} ({error!r})"
        ) from error
    return record


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


def _padded(lists: list[list[Any]], fill: float, dtype: type) -> np.ndarray:
    """Lists of different lengths -> [n, longest, at least 1], `fill` where there is nothing."""
    shape = (len(lists), max(1, *map(len, lists)))
    out: np.ndarray = np.full(shape, fill, dtype=dtype)
    for row, values in enumerate(lists):
        out[row, : len(values)] = values
    return out
