"""Hard negatives from BM25: passages that share a query's words and do not answer it."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from t5x_style.retrieval import index as index_lib
from t5x_style.retrieval.bm25 import Bm25Index
from t5x_style.retrieval.passages import Qrels


@dataclasses.dataclass(frozen=True)
class MiningSettings:
    """Which BM25 hits become negatives.

    Attributes:
      depth: how many hits are looked at.
      negatives: how many are kept, from the top.
      skip_top: how many of the best hits are passed over, as likely unlabelled answers.
      max_overlap: a hit whose stems overlap a positive's by more than this (Jaccard) is a near
        duplicate of an answer; 1 keeps all.
      max_score_ratio: a hit that scores more than this times the best positive is passed over
        (NV-Retriever's positive-aware mining, https://arxiv.org/abs/2407.15831); 0 turns this off.
    """

    depth: int
    negatives: int
    skip_top: int
    max_overlap: float
    max_score_ratio: float

    def __post_init__(self) -> None:
        if not (self.negatives >= 1 and 0 <= self.skip_top < self.depth):
            raise ValueError(f"expected negatives >= 1 and 0 <= skip_top < depth, found {self}")
        if not 0 < self.max_overlap <= 1 or self.max_score_ratio < 0:
            raise ValueError(
                f"expected max_overlap in (0, 1] and max_score_ratio of at least 0, found {self}"
            )


@dataclasses.dataclass(frozen=True)
class Mined:
    """One line of negatives.jsonl; negatives best first, `skipped` counts hits by reason."""

    query_id: str
    positive_ids: list[str]
    negative_ids: list[str]
    negative_scores: list[float]
    skipped: dict[str, int]

    def line(self) -> str:
        """Of negatives.jsonl, with its line break."""
        record = dataclasses.asdict(self)
        del record["skipped"]
        return json.dumps(record, ensure_ascii=False) + "\n"


def mine_negatives(
    index: Bm25Index, queries: Mapping[str, str], qrels: Qrels, settings: MiningSettings
) -> Iterator[Mined]:
    """Negatives for each query that has judgements, in the order of `queries`.

    A query may get fewer than asked for, or none: its negatives are then only those of its batch.
    """
    rows = {name: row for row, name in enumerate(index.ids)}
    for query_id, text in queries.items():
        if query_id in qrels:
            yield _mine_one(index, query_id, text, qrels[query_id], rows, settings)


def _mine_one(
    index: Bm25Index,
    query_id: str,
    text: str,
    judged: Mapping[str, int],
    rows: Mapping[str, int],
    settings: MiningSettings,
) -> Mined:
    positives = [name for name, relevance in judged.items() if relevance > 0]
    positive_rows = [rows[name] for name in positives]
    scores, hits = (result[0] for result in index.search([text], settings.depth))
    limit = np.inf
    if settings.max_score_ratio:
        limit = settings.max_score_ratio * float(index.score(text)[positive_rows].max())
    answers = [index.stems(row) for row in positive_rows]
    kept: list[int] = []
    skipped = {"positive": 0, "top": 0, "score": 0, "near_duplicate": 0}
    for place, row in enumerate(hits):
        if row == index_lib.NO_ROW or len(kept) == settings.negatives:
            break
        reason = ""
        if row in positive_rows:
            reason = "positive"
        elif place < settings.skip_top:
            reason = "top"
        elif scores[place] > limit:
            reason = "score"
        elif _overlap(index.stems(row), answers) > settings.max_overlap:
            reason = "near_duplicate"
        if reason:
            skipped[reason] += 1
        else:
            kept.append(place)
    return Mined(
        query_id,
        positives,
        [index.ids[hits[place]] for place in kept],
        [round(float(scores[place]), 4) for place in kept],
        skipped,
    )


def _overlap(stems: frozenset[str], answers: list[frozenset[str]]) -> float:
    """The largest Jaccard overlap with any answer."""
    return max(len(stems & a) / max(len(stems | a), 1) for a in answers)


def read_negatives(path: str | Path) -> dict[str, list[str]]:
    """Query id -> ids of its negatives, as `mine` wrote them."""
    found: dict[str, list[str]] = {}
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
                found[record["query_id"]] = list(record["negative_ids"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}:{number}: not a line of mined negatives ({error!r})"
                ) from error
    return found
