"""Hard negatives: passages that a search puts near a query's answers, and that do not answer it."""

import collections
import dataclasses
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.mining.candidates import Candidates, Hits
from t5x_style.retrieval.beir_collection import Passages, Qrels

Judged = tuple[str, Sequence[int]]  # a query's id, and the rows of its positives, at least one


class MiningError(ValueError):
    """Mining found nothing to train on."""


@dataclasses.dataclass(frozen=True)
class MiningSettings:
    """Rules that turn hits into negatives; a query's positives never become one.

    Attributes:
      depth: how many hits are looked at.
      negatives: how many are kept, from the top.
      skip_top: how many of the best hits are passed over, as likely unlabelled answers.
      max_overlap: a hit whose stems overlap a positive's by more than this (Jaccard) is a near
        duplicate of an answer; 1 keeps all.
      max_score_ratio: a hit that scores more than this times the best positive is passed over
        (NV-Retriever's positive-aware mining, https://arxiv.org/abs/2407.15831); 0 turns this off.
        Where the best positive scores 0 or less, a ratio of it says nothing (0.95 times -2 is above
        -2): a hit is then passed over if it scores more than the best positive.
      only_answers: whether a hit that answers no query of the split is passed over. Where the
        passages of the split that is evaluated are in the corpus and answer no training query,
        they would be negatives and never positives, and learned as such.
    """

    depth: int
    negatives: int
    skip_top: int
    max_overlap: float
    max_score_ratio: float
    only_answers: bool = False

    def __post_init__(self) -> None:
        if not (self.skip_top >= 0 and 1 <= self.negatives <= self.depth - self.skip_top):
            raise ValueError(
                "expected skip_top of at least 0 and negatives from 1 to depth - skip_top, found "
                f"{self}"
            )
        if not 0 < self.max_overlap <= 1 or not 0 <= self.max_score_ratio < float("inf"):
            raise ValueError(
                f"expected max_overlap in (0, 1] and max_score_ratio of at least 0, found {self}"
            )

    def limit(self, best_positive: float) -> float:
        """The highest score that a negative may have."""
        if not self.max_score_ratio:
            return float("inf")
        return best_positive * (self.max_score_ratio if best_positive > 0 else 1)


@dataclasses.dataclass(frozen=True)
class Mined:
    """One line of negatives.jsonl, see docs/mining.md; negatives best first.

    Attributes:
      passed_over: why how many hits, better than the last negative, are none.
    """

    query_id: str
    positive_ids: list[str]
    positive_scores: list[float]
    negative_ids: list[str]
    negative_scores: list[float]
    passed_over: dict[str, int]

    def line(self, teacher: Mapping[str, float] = MappingProxyType({})) -> str:
        """Of negatives.jsonl, with its line break; with those of a teacher's scores that fit it."""
        ids = (*self.positive_ids, *self.negative_ids)
        scores = {name: teacher[name] for name in ids if name in teacher}
        record = dataclasses.asdict(self) | ({"teacher_scores": scores} if scores else {})
        return json.dumps(record, ensure_ascii=False) + "\n"


def judged_queries(
    queries: Iterable[str], qrels: Qrels, passages: Passages
) -> tuple[list[Judged], set[int]]:
    """These queries with their positives, and the rows that answer any query of the judgements.

    Args:
      queries: ids, all of them judged.
      qrels: of the split.
      passages: the corpus.
    """
    rows = {
        query: [passages.row(name) for name, relevance in judged.items() if relevance > 0]
        for query, judged in qrels.items()
    }
    return [(query, rows[query]) for query in queries], {row for of in rows.values() for row in of}


def mine_negatives(
    candidates: Candidates,
    judged: Sequence[Judged],
    settings: MiningSettings,
    answers: Collection[int] = (),
    given: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> Iterator[Mined]:
    """Negatives for each of these queries, in their order.

    A query may get fewer than asked for, or none: its negatives are then only those of its batch.

    Args:
      candidates: searched for the queries, and for their positives' scores.
      judged: the queries.
      settings: which hits become negatives.
      answers: rows that answer some query of the split; `only_answers` is about them.
      given: query -> rows of its known negatives, none of them a positive; they come first.
    """
    allowed = answers if settings.only_answers else None
    queries = [query for query, _ in judged]
    scored = [[*rows, *given.get(query, ())] for query, rows in judged]
    found = candidates.search(queries, scored, settings.depth)
    for (query, rows), hits in zip(judged, found, strict=True):
        known = given.get(query, ())
        yield _mine_one(candidates, query, rows, known, hits, settings, allowed)


def _mine_one(
    candidates: Candidates,
    query: str,
    positives: Sequence[int],
    given: Sequence[int],
    hits: Hits,
    settings: MiningSettings,
    allowed: Collection[int] | None,
) -> Mined:
    positive_scores, given_scores = np.split(np.asarray(hits.positive_scores), [len(positives)])
    given, given_scores = given[: settings.negatives], given_scores[: settings.negatives]
    reasons = _reasons(hits, positives, given, max(positive_scores), settings, allowed)
    wanted, kept = settings.negatives - len(given), list[int]()
    free = (place for place, reason in enumerate(reasons) if not reason)
    while chosen := list(itertools.islice(free, wanted - len(kept))):
        near = _near_duplicates(candidates, hits.rows[chosen].tolist(), positives, settings)
        for place, is_near in zip(chosen, near, strict=True):
            if is_near:
                reasons[place] = "near_duplicate"
            else:
                kept.append(place)
    if len(kept) == wanted:
        reasons = reasons[: kept[-1]] if kept else []
    return Mined(
        query,
        [candidates.ids[row] for row in positives],
        _rounded(positive_scores),
        [candidates.ids[row] for row in (*given, *(hits.rows[place] for place in kept))],
        _rounded((*given_scores, *(hits.scores[place] for place in kept))),
        dict(sorted(collections.Counter(filter(None, reasons)).items())),
    )


def _reasons(
    hits: Hits,
    positives: Sequence[int],
    given: Sequence[int],
    best_positive: float,
    settings: MiningSettings,
    allowed: Collection[int] | None,
) -> list[str]:
    """Why each hit is no negative, '' where its text has yet to be looked at."""
    limit = settings.limit(float(best_positive))
    reasons = []
    for place, row in enumerate(hits.rows.tolist()):
        if row == index_lib.NO_ROW:
            break
        if row in positives:
            reasons.append("positive")
        elif row in given:
            reasons.append("given")
        elif place < settings.skip_top:
            reasons.append("top")
        elif allowed is not None and row not in allowed:
            reasons.append("no_answer")
        else:
            reasons.append("score" if hits.scores[place] > limit else "")
    return reasons


def _near_duplicates(
    candidates: Candidates, rows: list[int], positives: Sequence[int], settings: MiningSettings
) -> list[bool]:
    """Whether each of these passages has nearly the stems of an answer."""
    if settings.max_overlap == 1:
        return [False] * len(rows)
    answers = candidates.stems(positives)
    return [
        max(len(stems & answer) / max(len(stems | answer), 1) for answer in answers)
        > settings.max_overlap
        for stems in candidates.stems(rows)
    ]


def _rounded(scores: Iterable[float]) -> list[float]:
    return [round(float(score), 6) for score in scores]


def report(lines: Iterable[str], wanted: int) -> str:
    """Report of the number of negatives in a mined file, and why not more.

    Args:
      lines: of `Mined.line`, at least one.
      wanted: negatives that each query was to get.

    Raises:
      MiningError: not one query has a negative.
    """
    passed_over: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[int] = collections.Counter()
    for line in lines:
        record = json.loads(line)
        passed_over.update(record["passed_over"])
        counts[len(record["negative_ids"])] += 1
    total, found = sum(counts.values()), sum(number * many for number, many in counts.items())
    reasons = _listed(passed_over)
    if not found:
        raise MiningError(
            f"not one of {total:,} queries has a negative left. Hits passed over: {reasons}. "
            "Raise depth, or loosen the filter that took them: skip_top (top), max_score_ratio "
            "(score; 0 turns it off), max_overlap (near_duplicate; 1 turns it off), only_answers "
            "(no_answer)."
        )
    return (
        f"mine: {total:,} queries, {found / total:.2f} negatives each of {wanted}, "
        f"{counts[0]:,} without any; hits passed over: {reasons}"
    )


def _listed(passed_over: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(passed_over.items())) or "none"
