"""A mixture of all kinds of pairs over small stores, for tests of what is in a batch."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from absl import logging

from input_pipelines.batches import token_groups
from input_pipelines.pairs import pair_rows
from input_pipelines.pairs.pair_kinds import (
    LabelledPairs,
    Neighbours,
    PairKind,
    RandomCrops,
    Sentences,
    TitleToBody,
)
from input_pipelines.pairs.pair_mixture import PairMixture
from input_pipelines.pairs.training_pairs import TrainingPairs
from tests.kits.pair_stores import some_texts, write_texts
from tests.kits.tiny_stores import write_store

PASSAGES, QUERIES = 60, 14
QUERY_LENGTH, PASSAGE_LENGTH = 12, 24
SHAPE = {
    "query_row_length": 24, "query_segments": 4, "passage_row_length": 48, "passage_segments": 6,
}  # fmt: skip
WEIGHTS = {"labelled": 2, "crops": 3, "two": 1, "sentences": 2, "titles": 1, "neighbours": 1}


@dataclasses.dataclass(frozen=True)
class Files:
    passages: str
    queries: str
    negatives: str


def write_files(root: Path) -> Files:
    """A store of passages, one of queries, and negatives with a teacher's scores."""
    texts = some_texts(PASSAGES)
    texts[4] = dataclasses.replace(texts[4], titled="same")
    texts[40] = dataclasses.replace(texts[40], titled="same", title=texts[4].title)
    passages = write_texts(root / "p", texts, vocabulary=50)
    lengths = np.random.default_rng(1).integers(3, 16, QUERIES).tolist()
    queries = str(write_store(root / "q", lengths, prefix="q"))
    with (root / "negatives.jsonl").open("w") as f:
        for row in range(QUERIES):
            ids = [texts[(row * 4 + i) % PASSAGES].name for i in range(5)]
            scores = dict(zip(ids, map(float, range(5)), strict=True))
            line = {"query_id": f"q{row}", "positive_ids": ids[:2], "negative_ids": ids[2:]}
            f.write(json.dumps(line | {"teacher_scores": scores}) + "\n")
    return Files(passages, queries, str(root / "negatives.jsonl"))


def kinds_of(files: Files) -> dict[str, PairKind]:
    return {
        "labelled": LabelledPairs(files.queries, files.negatives),
        "crops": RandomCrops(2, 8, False, 0.5),
        "two": RandomCrops(2, 8, True, 0.0),
        "sentences": Sentences(2, 0.9),
        "titles": TitleToBody(),
        "neighbours": Neighbours(),
    }


def mixture(files: Files, **changes: Any) -> PairMixture:
    arguments: dict[str, Any] = {
        "passages": files.passages, "kinds": kinds_of(files), "weights": WEIGHTS, "batch": 20,
        "group_size": 3, "query_length": QUERY_LENGTH, "passage_length": PASSAGE_LENGTH, "seed": 5,
    }  # fmt: skip
    return PairMixture(**{**arguments, **changes})


def make(pairs: PairMixture, **changes: Any) -> TrainingPairs:
    """Packed into rows that follow from the data."""
    query, passage = (pair_rows.fitting_rows(pairs, side, **SHAPE) for side in pair_rows.SIDES)
    arguments = {
        "query_rows": token_groups.Rows(query, 24, 4),
        "passage_rows": token_groups.Rows(passage, 48, 6),
        "known_positives": pair_rows.known_positives(pairs),
    }
    return TrainingPairs(pairs, **{**arguments, **changes})


def unpacked(pairs: PairMixture) -> TrainingPairs:
    opened = pairs.open()
    count = len(opened.step(0).document)
    texts = dict(zip(pair_rows.SIDES, (opened.batch, count), strict=True))
    shape = {**SHAPE, "query_segments": 1, "passage_segments": 1}
    rows = {side: pair_rows.fitting_rows(pairs, side, **shape) for side in texts}
    assert all(rows[side] >= texts[side] for side in texts)
    lengths = {"query": 24, "passage": 48}
    shapes = {f"{side}_rows": token_groups.Rows(rows[side], lengths[side], 1) for side in rows}
    return make(pairs, **shapes)


def texts_of(group: dict[str, np.ndarray]) -> list[tuple]:
    """Everything that belongs to each text of a group, sorted."""
    found = []
    for row, segment in np.argwhere(group["segment_valid"]):
        inside = group["segment_ids"][row] == segment + 1
        named = [
            group[name][row, segment].tolist()
            for name in ("example_id", "relevance", "document_id", "known", "teacher_score")
            if name in group
        ]
        found.append((*named, group["tokens"][row, inside].tolist()))
    return sorted(found)


def warnings_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: said.append(text % values))
    return said
