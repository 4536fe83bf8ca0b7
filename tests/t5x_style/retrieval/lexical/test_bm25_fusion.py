"""BM25 added to a search: the lists of an evaluation, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from t5x_style.evaluation import fusion as evaluated
from t5x_style.interfaces.index import NO_ROW
from t5x_style.retrieval import analysis
from t5x_style.retrieval.bm25 import Bm25Search
from t5x_style.retrieval.lexical import bm25_fusion
from t5x_style.retrieval.lexical.bm25_fusion import ALONE, SUMMED, Fusion, FusionError

WORDS = "river sea salt bread hill song rain flour stone wood".split()
QUESTION = "salt of the sea, and bread"
FACTS = {
    "bm25": {"k1": 0.9, "b": 0.4, "stemmer": "english"},
    "mine": {"contract": {}},
    "fusion": {
        "of": ["mine", "bm25"], "method": "linear", "list_depth": 50, "weight_of_first": 0.4,
    },
    "ranks": {"of": ["mine", "bm25"], "method": "reciprocal_rank", "list_depth": 50},
    "kinds": {"kinds": ["dense"], "candidates_by": ["dense"], "method": "linear"},
    "reranker": {"of": "bm25", "reranked": 10, "contract": {}},
    "in order": {
        "of": ["reranker", "bm25"], "method": "linear", "list_depth": 50, "reranked": 10,
        "weight_of_first": 0.7,
    },
    "other hits": {"of": "mine", "reranked": 10, "contract": {}},
    "fewer hits": {
        "of": ["reranker", "bm25"], "method": "linear", "list_depth": 50, "reranked": 5,
        "weight_of_first": 0.4,
    },
    "all hits": {
        "of": ["reranker", "bm25"], "method": "linear", "list_depth": 50, "weight_of_first": 0.4,
    },
    "no reranker": {
        "of": ["mine", "bm25"], "method": "linear", "list_depth": 50, "reranked": 10,
        "weight_of_first": 0.4,
    },
}  # fmt: skip


def job_runs() -> dict[str, dict]:
    """For tests/job_outputs.py."""
    Path("metrics.json").write_text(json.dumps({"facts": FACTS}))
    return {"": {"metrics": "metrics.json", "system": "fusion"}}


def passages(count=40, seed=0):
    drawn = np.random.default_rng(seed).choice(WORDS, (count, 5))
    return [" ".join(row) for row in drawn.tolist()]


def made(weight, depth, count=40):
    """The fusion, and a model's scores of all passages."""
    texts = passages(count)
    ids = [f"p{n}" for n in range(count)]  # whose order is not that of the rows
    scores = np.random.default_rng(1).normal(size=count).astype(np.float32)
    return bm25_fusion.over(texts, ids, Fusion(weight, depth)), scores


def best(scores, depth):
    order = np.argsort(-scores, kind="stable")[:depth].astype(np.int32)
    return scores[order], order


def runs(one, scores, depth):
    """The two lists, as an evaluation has them."""
    listed, rows = best(scores, depth)
    words, found = (array[0] for array in one.words.search([QUESTION], depth))
    ids = one.words.ids
    return (
        {"q": [(ids[row], float(score)) for score, row in zip(listed, rows, strict=True)]},
        {
            "q": [
                (ids[row], float(score))
                for score, row in zip(words, found, strict=True)
                if row != NO_ROW
            ]
        },
    )


@pytest.mark.parametrize("depth", [5, 20, 1000])
@pytest.mark.parametrize("weight", [None, 0.0, 0.35, 1.0])
def test_it_gives_the_list_of_the_evaluation(weight, depth):
    one, scores = made(weight, depth)
    lists = runs(one, scores, one.depth)
    if weight is None:
        expected = evaluated.reciprocal_rank(lists, 10)["q"]
    else:
        expected = evaluated.linear(*lists, weight, 10)["q"]
    sums, rows = one.add(QUESTION, *best(scores, one.depth), 10)
    kept = rows != NO_ROW
    assert [one.words.ids[row] for row in rows[kept]] == [name for name, _ in expected]
    assert list(sums[kept]) == pytest.approx([score for _, score in expected], abs=1e-6)


def test_within_passages_only_these_are_compared():
    one, scores = made(0.4, 1000)
    every = np.arange(40, dtype=np.int32)
    everything = one.within(QUESTION, scores, every, every, 40)
    listed = one.add(QUESTION, *best(scores, one.depth), 40)
    np.testing.assert_array_equal(everything[1], listed[1])
    np.testing.assert_allclose(everything[0], listed[0], atol=1e-6)
    some = np.array([3, 9, 30, 12], np.int32)
    sums, rows = one.within(QUESTION, scores[some], some, some, 10)
    assert set(rows[rows != NO_ROW].tolist()) == set(some.tolist()) and sums[0] <= 1
    words = one.words.score(QUESTION)
    known, unknown = int(words.argmax()), int(words.argmin())
    listed = np.array([known, unknown], np.int32)
    found = np.array([-np.inf, 0.5], np.float32), np.array([NO_ROW, unknown], np.int32)
    sums, rows = one.within(QUESTION, *found, listed, 3)  # the model did not find the first
    assert set(rows[rows != NO_ROW].tolist()) == {known, unknown}


def test_a_question_without_known_words_has_the_models_order():
    one, scores = made(0.4, 1000)
    sums, rows = one.add("zebra", *best(scores, one.depth), 5)
    np.testing.assert_array_equal(rows, best(scores, 5)[1])
    assert sums[0] == pytest.approx(0.4)


def written(tmp_path, facts=FACTS):
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"facts": facts}))
    return str(path)


def test_an_evaluation_says_how(tmp_path):
    metrics = written(tmp_path)
    assert bm25_fusion.of_evaluation(metrics, "fusion") == Fusion(0.4, 50, "en")
    assert bm25_fusion.of_evaluation(metrics, "ranks") == Fusion(None, 50, "en")
    assert bm25_fusion.of_evaluation(metrics, None) is None
    reranked = Fusion(0.7, 10, "en", SUMMED)
    assert bm25_fusion.of_evaluation(metrics, "in order") == reranked
    alone = Fusion(1.0, 10, "en", ALONE)
    assert bm25_fusion.of_evaluation(metrics, "reranker") == alone


@pytest.mark.parametrize(("system", "expected"), [("fusion", Fusion(0.4, 50)), (None, None)])
def test_a_stage_keeps_it_for_searches(tmp_path, system, expected):
    outputs = bm25_fusion.keep(written(tmp_path), system, str(tmp_path))
    assert bm25_fusion.load(str(tmp_path / outputs["fusion"])) == expected


NO_FUSION = ["kinds", "bm25", "mine", "other"]


@pytest.mark.parametrize(
    "system", [*NO_FUSION, "other hits", "fewer hits", "all hits", "no reranker"]
)
def test_other_systems_are_refused(tmp_path, system):
    with pytest.raises(FusionError, match=r"found \['fusion', 'ranks', 'reranker', 'in order'\]"):
        bm25_fusion.of_evaluation(written(tmp_path), system)


def test_words_of_another_language_are_refused(tmp_path):
    with pytest.raises(FusionError, match="other words than those of language 'de'"):
        bm25_fusion.of_evaluation(written(tmp_path), "fusion", "de")
    with pytest.raises(ValueError, match="expected one of .* found 'xx'"):
        bm25_fusion.of_evaluation(written(tmp_path), "fusion", "xx")


def test_it_is_kept_in_a_file(tmp_path):
    assert Fusion.load(tmp_path) is None
    Fusion(0.25, 7, "de").save(tmp_path)
    assert Fusion.load(tmp_path) == Fusion(0.25, 7, "de")
    assert "reranked" not in (tmp_path / bm25_fusion.FILE).read_text()
    Fusion(1.0, 7, "de", ALONE).save(tmp_path)
    assert Fusion.load(tmp_path) == Fusion(1.0, 7, "de", ALONE)
    other = '{"weight": 0.5, "depth": 3, "reranked": "twice"}'
    for text in ("{", "[]", '{"weight": 0.5}', '{"weight": 2, "depth": 3}', other):
        (tmp_path / bm25_fusion.FILE).write_text(text)
        with pytest.raises(FusionError, match="expected how BM25 is added"):
            Fusion.load(tmp_path)


def test_bm25_that_was_saved_searches_alike(tmp_path):
    one, _ = made(0.4, 10)
    one.words.save(tmp_path / "bm25")
    english = analysis.LanguageAnalyzer("en")
    loaded = Bm25Search.load(tmp_path / "bm25", one.words.ids, english)
    for found, expected in zip(
        loaded.search([QUESTION, "zebra"], 9), one.words.search([QUESTION, "zebra"], 9), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="expected BM25 of 3 passages, found 40"):
        Bm25Search.load(tmp_path / "bm25", ["a", "b", "c"], english)
    next((tmp_path / "bm25").glob("data*")).write_bytes(b"short")
    with pytest.raises(ValueError, match="expected BM25 of passages"):
        Bm25Search.load(tmp_path / "bm25", one.words.ids, english)


def test_parts_add_up_to_the_score():
    one, _ = made(0.4, 10)
    question = "salt, more salt and bread"
    scores = one.words.score(question)
    row = int(scores.argmax())
    parts = one.words.parts(question, row)
    assert dict((stem, count) for stem, count, _ in parts).get("salt", 2) == 2
    assert sum(count * part for _, count, part in parts) == pytest.approx(scores[row], abs=1e-5)
