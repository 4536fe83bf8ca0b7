"""Stage: find labelled pairs that are probably wrong, for a person to check.

A pair is suspect if not one of several searches finds its passage among the best for its query. A
shifted column or a wrong join makes such pairs in numbers; a few are merely hard. Nothing is left
out of the training because of it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t5x_style.distributed import startup
from t5x_style.mining.candidates import Candidates, MakeCandidates
from t5x_style.retrieval.beir_collection import (
    Passages,
    find_qrels,
    has_judgements,
    read_qrels,
    read_queries,
)

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "suspects": {
        "name": "suspects",
        "version": 1,
        "outputs": ["suspects", "report"],
        "program": True,
        "check": "check",
    }
}
SUSPECTS, REPORT = "suspects.jsonl", "report.json"
SHOWN = 5  # pairs in the report

Pair = tuple[str, int]  # a query's id and the row of a passage


def suspects(
    corpus: str, split: str, searches: Sequence[MakeCandidates], depth: int, model_dir: str
) -> dict[str, str]:
    """Writes suspects.jsonl and report.json, and prints how many there are.

    suspects.jsonl: {"query_id", "query", "passage_id", "passage"} a line, those that the last
    search gives the lowest scores first. report.json: {"split", "pairs", "suspect", "depth",
    "passages", "examples": the first lines}.

    Args:
      corpus: a folder in BEIR's layout.
      split: whose pairs.
      searches: of the whole corpus.
      depth: how many hits of each search are looked at.
      model_dir: where both files go.

    Raises:
      ValueError, FileNotFoundError: see `check`.
    """
    check(corpus, split, depth)
    passages, texts = Passages(corpus), read_queries(corpus)
    pairs = _pairs(corpus, split, texts, passages)
    queries = {query: texts[query] for query, _ in pairs}
    found: set[Pair] = set()
    scores: dict[Pair, float] = {}
    for make in searches if pairs else ():
        found |= _found(make(passages, queries), pairs, depth, scores)
    wrong = sorted((pair for pair in pairs if pair not in found), key=lambda pair: scores[pair])
    lines = [
        {
            "query_id": query,
            "query": texts[query],
            "passage_id": passages.ids[row],
            "passage": passages.passage(row).content,
        }
        for query, row in wrong
    ]
    counts = {"pairs": len(pairs), "suspect": len(wrong), "passages": len(passages)}
    if jax.process_index() == 0:
        _write(Path(model_dir), {"split": split, **counts, "depth": depth}, lines)
        print(
            f"suspects: {len(wrong):,} of {len(pairs):,} {split} pairs, whose passages no search "
            f"has among its {depth} best of {len(passages):,}"
        )
    return {"suspects": SUSPECTS, "report": REPORT}


def check(corpus: str, split: str, depth: int) -> None:
    """Check arguments before `suspects` runs; reads names of files only.

    Raises:
      ValueError: depth below 1.
      FileNotFoundError: the collection has no such split.
    """
    if depth < 1:
        raise ValueError(f"suspects.depth: expected at least 1, found {depth}")
    find_qrels(corpus, split)


def _pairs(corpus: str, split: str, texts: Mapping[str, str], passages: Passages) -> list[Pair]:
    """The pairs that a split calls relevant, in the order of its queries."""
    if not has_judgements(corpus, split):
        return []
    return [
        (query, passages.row(passage))
        for query, judged in read_qrels(corpus, split, texts, passages).items()
        for passage, relevance in judged.items()
        if relevance > 0
    ]


def _found(
    search: Candidates, pairs: Sequence[Pair], depth: int, scores: dict[Pair, float]
) -> set[Pair]:
    """Pairs whose passages are among the best hits; `scores` gets what the search gives each."""
    rows: dict[str, list[int]] = {}
    for query, row in pairs:
        rows.setdefault(query, []).append(row)
    hits = search.search(list(rows), list(rows.values()), depth)
    found = set()
    for (query, positives), one in zip(rows.items(), hits, strict=True):
        scores.update(
            ((query, row), float(score))
            for row, score in zip(positives, one.positive_scores, strict=True)
        )
        found |= {(query, row) for row in positives if row in one.rows}
    return found


def _write(folder: Path, report: Mapping[str, Any], lines: Sequence[Mapping[str, str]]) -> None:
    with open(folder / SUSPECTS, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    text = json.dumps({**report, "examples": lines[:SHOWN]}, indent=1, ensure_ascii=False)
    (folder / REPORT).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.suspects.suspects")
