"""BM25's hits in the order of a re-ranker: the lists of an evaluation."""

import numpy as np
import pytest

from t5x_style.evaluation import fusion as evaluated
from t5x_style.evaluation.ranking import Run
from t5x_style.interfaces.index import NO_ROW
from t5x_style.retrieval.bm25 import Bm25Search
from t5x_style.retrieval.lexical.bm25_fusion import Fusion
from t5x_style.retrieval.lexical.bm25_reranking import Bm25Reranking
from tests.t5x_style.retrieval.lexical.test_bm25_fusion import QUESTION, passages

COUNT = 40
LOGITS = np.random.default_rng(2).normal(size=COUNT).astype(np.float32)


def made(weight: float | None, depth: int) -> Bm25Reranking:
    ids = [f"p{n}" for n in range(COUNT)]
    words = Bm25Search.of(passages(COUNT), ids, lambda texts: [text.split() for text in texts])
    return Bm25Reranking(Fusion(weight, depth, reranked=True), words)


def score(question: str, rows: np.ndarray) -> np.ndarray:
    assert question == QUESTION
    return LOGITS[rows]


def expected(one: Bm25Reranking, k: int) -> list[tuple[str, float]]:
    """Of `retrieval_systems.Reranker` and `Fusion` over BM25."""
    ids, depth = one.words.ids, one.fusion.depth
    scores, rows = (array[0] for array in one.words.search([QUESTION], COUNT))
    found = [(int(row), float(hit)) for hit, row in zip(scores, rows, strict=True) if row != NO_ROW]
    first: Run = {"q": [(ids[row], hit) for row, hit in found]}
    scored = [(ids[row], float(LOGITS[row])) for row, _ in found[:depth]]
    ordered: Run = {"q": sorted(scored, key=lambda hit: -hit[1])}
    lists = ordered, evaluated.head(first, depth)
    if one.fusion.weight is None:
        fused = evaluated.reciprocal_rank(lists, COUNT)
    else:
        fused = evaluated.linear(*lists, one.fusion.weight, COUNT)
    return evaluated.with_rest(fused, first, k)["q"]


@pytest.mark.parametrize("k", [3, 10, 100])
@pytest.mark.parametrize("depth", [1, 7, 1000])
@pytest.mark.parametrize("weight", [None, 0.0, 0.55, 1.0])
def test_it_gives_the_list_of_the_evaluation(weight, depth, k):
    one = made(weight, depth)
    sums, rows = one.search(QUESTION, one.found(QUESTION), k, score)
    assert len(sums) == len(rows) == k
    kept = rows != NO_ROW
    wanted = expected(one, k)
    assert [one.words.ids[row] for row in rows[kept]] == [name for name, _ in wanted]
    assert list(sums[kept]) == pytest.approx([value for _, value in wanted], abs=1e-5)
    assert list(sums) == sorted(sums, reverse=True)


def test_only_the_best_hits_are_scored():
    asked = []

    def counting(question: str, rows: np.ndarray) -> np.ndarray:
        asked.append(rows)
        return score(question, rows)

    one = made(0.5, 4)
    one.search(QUESTION, one.found(QUESTION), 20, counting)
    np.testing.assert_array_equal(asked[0], one.words.search([QUESTION], 4)[1][0])
    assert len(asked) == 1


def test_some_passages_alone():
    one = made(0.5, 3)
    some = np.array([3, 9, 12, 30], np.int32)
    _, rows = one.search(QUESTION, one.found(QUESTION, some), 10, score)
    found = one.words.score(QUESTION)
    assert set(rows[rows != NO_ROW].tolist()) == {row for row in some.tolist() if found[row] > 0}


def test_a_question_without_known_words_finds_nothing_and_scores_nothing():
    def never(question: str, rows: np.ndarray) -> np.ndarray:
        raise AssertionError("nothing to score")

    one = made(0.5, 3)
    _, rows = one.search("zebra", one.found("zebra"), 5, never)
    assert rows.tolist() == [NO_ROW] * 5
