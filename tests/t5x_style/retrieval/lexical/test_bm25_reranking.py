"""BM25's hits in the order of a re-ranker: the lists of an evaluation."""

import numpy as np
import pytest

from t5x_style.evaluation import fusion as evaluated
from t5x_style.evaluation.ranking import Run
from t5x_style.evaluation.retrieval_systems import Reranker
from t5x_style.interfaces.index import NO_ROW
from t5x_style.retrieval.bm25 import Bm25Search
from t5x_style.retrieval.lexical.bm25_fusion import ALONE, SUMMED, Fusion
from t5x_style.retrieval.lexical.bm25_reranking import Bm25Reranking
from tests.t5x_style.retrieval.lexical.test_bm25_fusion import QUESTION, passages

COUNT = 40
DRAWN = np.random.default_rng(2).normal(size=COUNT).astype(np.float32)
SCORES = {"different": DRAWN, "some equal": np.round(DRAWN), "all equal": np.zeros_like(DRAWN)}


def made(weight: float | None, depth: int, reranked: str = SUMMED) -> Bm25Reranking:
    ids = [f"p{n}" for n in range(COUNT)]
    words = Bm25Search.of(passages(COUNT), ids, lambda texts: [text.split() for text in texts])
    return Bm25Reranking(Fusion(weight, depth, reranked=reranked), words)


def expected(one: Bm25Reranking, logits: np.ndarray, k: int) -> list[tuple[str, float]]:
    """Of `retrieval_systems.Reranker`, and its `Fusion` with BM25."""
    ids, depth = one.words.ids, one.fusion.depth
    scores, rows = (array[0] for array in one.words.search([QUESTION], COUNT))
    found = [(int(row), float(hit)) for hit, row in zip(scores, rows, strict=True) if row != NO_ROW]
    first: Run = {"q": [(ids[row], hit) for row, hit in found]}
    given = iter(float(logits[row]) for row, _ in found[:depth])
    system = Reranker("reranker", None, None, "bm25", depth)
    ordered: Run = {"q": system._ordered(first["q"], given)}
    if one.fusion.reranked == ALONE:
        return evaluated.with_rest(ordered, first, k)["q"]
    lists = ordered, evaluated.head(first, depth)
    if one.fusion.weight is None:
        fused = evaluated.reciprocal_rank(lists, COUNT)
    else:
        fused = evaluated.linear(*lists, one.fusion.weight, COUNT)
    return evaluated.with_rest(fused, first, k)["q"]


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("k", [3, 100])
@pytest.mark.parametrize("depth", [1, 7, 1000])
@pytest.mark.parametrize(
    ("weight", "reranked"),
    [(None, SUMMED), (0.0, SUMMED), (0.55, SUMMED), (1.0, SUMMED), (1.0, ALONE)],
)
def test_it_gives_the_list_of_the_evaluation(weight, reranked, depth, k, scores):
    one, logits = made(weight, depth, reranked), SCORES[scores]
    found = one.found(QUESTION)
    head = one.head(found)
    sums, rows = one.order(found, head, logits[head], k)
    assert len(sums) == len(rows) == k
    kept = rows != NO_ROW
    wanted = expected(one, logits, k)
    assert [one.words.ids[row] for row in rows[kept]] == [name for name, _ in wanted]
    assert list(sums[kept]) == pytest.approx([value for _, value in wanted], abs=1e-5)
    assert list(sums) == sorted(sums, reverse=True)


def test_only_the_best_hits_are_scored():
    one = made(0.5, 4)
    np.testing.assert_array_equal(
        one.head(one.found(QUESTION)), one.words.search([QUESTION], 4)[1][0]
    )


def test_some_passages_alone():
    one = made(0.5, 3)
    some = np.array([3, 9, 12, 30], np.int32)
    found = one.found(QUESTION, some)
    head = one.head(found)
    _, rows = one.order(found, head, DRAWN[head], 10)
    words = one.words.score(QUESTION)
    assert set(rows[rows != NO_ROW].tolist()) == {row for row in some.tolist() if words[row] > 0}


def test_a_question_without_known_words_finds_nothing():
    one = made(0.5, 3)
    found = one.found("zebra")
    head = one.head(found)
    assert not len(head)
    _, rows = one.order(found, head, np.zeros(0, np.float32), 5)
    assert rows.tolist() == [NO_ROW] * 5
