"""A teacher's scores that some passages of a negatives file lack, as mining leaves them."""

import json
from pathlib import Path

import numpy as np
import pytest

from input_pipelines.batches.negatives import NO_SCORE, PairsError, read_pairs
from input_pipelines.store.token_store import TokenStore
from tests.kits.tiny_stores import write_store


def read(folder: Path, *scores: dict[str, float]) -> np.ndarray:
    """The teacher's scores [queries, p0, p1, p2] of queries whose passages p0 answers."""
    stores = [
        TokenStore.open(str(write_store(folder / name, [4, 4, 4], prefix=name)))
        for name in ("q", "p")
    ]
    lines = [
        {
            "query_id": f"q{n}", "positive_ids": ["p0"], "negative_ids": ["p1", "p2"],
            "teacher_scores": given,
        }
        for n, given in enumerate(scores)
    ]  # fmt: skip
    path = folder / "negatives.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_pairs(str(path), *stores, teacher=True, partial=True).teacher
    assert found is not None
    return found


def test_a_passage_without_a_score_has_none(tmp_path: Path) -> None:
    found = read(tmp_path, {"p0": 2.0, "p1": 1.0}, {"p0": 2.0, "p1": 1.0, "p2": 0.5})
    assert found.tolist() == [[2.0, 1.0, NO_SCORE], [2.0, 1.0, 0.5]]


def test_without_a_score_of_a_positive_labels_alone_count(tmp_path: Path) -> None:
    found = read(tmp_path, {"p1": 1.0}, {"p0": 2.0})
    assert found.tolist() == [[NO_SCORE] * 3, [2.0, NO_SCORE, NO_SCORE]]


def test_a_teacher_without_scores_is_none(tmp_path: Path) -> None:
    with pytest.raises(PairsError, match="teacher_scores.*found no such query"):
        read(tmp_path, {}, {"p1": 1.0})
