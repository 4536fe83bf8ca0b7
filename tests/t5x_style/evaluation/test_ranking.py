"""Metrics against hand-computed numbers and trec_eval, and run files."""

import math

import numpy as np
import pytest
import pytrec_eval

from t5x_style.evaluation import ranking
from t5x_style.evaluation.ranking import RunError

QRELS = {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": {"z": 1}}


def test_a_grade_from_which_a_passage_counts_as_relevant():
    """As TREC DL's official MRR and recall, from grade 2 on."""
    qrels = {"a": {"x": 1, "y": 2, "z": 3}, "b": {"x": 1}}
    run = {"a": [("x", 3.0), ("y", 2.0)], "b": [("x", 1.0)]}
    names = ("MRR@10", "MRR(rel=2)@10", "Recall@2", "Recall(rel=2)@2")
    found = ranking.score_run(run, qrels, names).values
    assert [found[name].tolist() for name in names] == [[1, 1], [0.5, 0], [2 / 3, 1], [0.5, 0]]


def test_metrics_by_hand():
    run = {
        "a": [("w", 9.0), ("x", 8.0)],  # relevant at rank 2
        "b": [("y", 1.0), ("w", 0.5)],  # one of two, the better one, at rank 1
        # c: nothing was found, counts as 0
        "unjudged": [("x", 1.0)],  # ignored
    }
    scores = ranking.score_run(run, QRELS)
    assert scores.queries == ("a", "b", "c")
    np.testing.assert_allclose(scores.values["MRR@10"], [1 / 2, 1, 0])
    ideal = 2 + 1 / math.log2(3)
    np.testing.assert_allclose(scores.values["nDCG@10"], [1 / math.log2(3), 2 / ideal, 0])
    np.testing.assert_allclose(scores.values["Recall@10"], [1, 1 / 2, 0])
    assert scores.means()["MRR@10"] == pytest.approx(0.5)


def random_run(seed: int, queries: int = 30, depth: int = 120):
    generator = np.random.default_rng(seed)
    names = [f"d{i}" for i in range(200)]
    run, qrels = {}, {}
    for q in range(queries):
        scores = np.sort(generator.normal(size=depth))[::-1]
        chosen = generator.permutation(names)[:depth].tolist()
        run[f"q{q}"] = [(d, float(s)) for d, s in zip(chosen, scores, strict=True)]
        relevant = generator.permutation(names)[:5].tolist()
        qrels[f"q{q}"] = {d: int(generator.integers(1, 3)) for d in relevant}
    return run, qrels


def test_equals_trec_eval():
    run, qrels = random_run(0)
    measures = {"ndcg_cut.10", "recall.10,100"}
    official = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(
        {q: dict(hits) for q, hits in run.items()}
    )
    scores = ranking.score_run(run, qrels)
    for ours, theirs in (
        ("nDCG@10", "ndcg_cut_10"),
        ("Recall@10", "recall_10"),
        ("Recall@100", "recall_100"),
    ):
        expected = [official[q][theirs] for q in scores.queries]
        np.testing.assert_allclose(scores.values[ours], expected, atol=1e-9)
    first = {
        q: next((r for r, (d, _) in enumerate(h[:10], 1) if d in qrels[q]), 0)
        for q, h in run.items()
    }
    expected = [1 / first[q] if first[q] else 0 for q in scores.queries]
    np.testing.assert_allclose(scores.values["MRR@10"], expected)


def test_ranks_decide_where_scores_tie():
    # trec_eval would put 'z' first: equal scores, later name.
    scores = ranking.score_run({"a": [("x", 1.0), ("z", 1.0)]}, {"a": {"x": 1}})
    assert scores.means()["MRR@10"] == 1.0


@pytest.mark.parametrize(
    "run,message",
    [
        ({"a": [("x", 2.0), ("x", 1.0)]}, "'x' is listed more than once"),
        ({"a": [("x", math.nan)]}, "score nan is not finite"),
        ({"other": [("x", 1.0)]}, "none of the run's 1 queries"),
        ({}, "none of the run's 0 queries"),
    ],
)
def test_bad_runs_are_refused(run, message):
    with pytest.raises(RunError, match=message):
        ranking.score_run(run, QRELS)


def test_a_passage_that_the_corpus_lacks_is_refused():
    with pytest.raises(RunError, match="'old' is not in the corpus"):
        ranking.check_run({"a": [("old", 1.0)]}, {"x", "y"})


def test_run_files_keep_order_and_scores(tmp_path):
    path = tmp_path / "run.trec"
    run = {"a": [("z", 0.1), ("y", 0.1), ("x", 0.1)], "b": [("x", 1e-30), ("y", -3.25)]}
    ranking.write_run(path, run, "tag")
    assert path.read_text().splitlines()[0] == f"a Q0 z 1 {float(np.float32(0.1))!r} tag"
    loaded = ranking.read_run(path)
    assert {q: [d for d, _ in hits] for q, hits in loaded.items()} == {
        "a": list("zyx"),
        "b": list("xy"),
    }
    np.testing.assert_allclose([s for _, s in loaded["a"]], [0.1] * 3, rtol=1e-6)
    # Strictly falling, so that trec_eval, which sorts by score, ranks as we did.
    official = pytrec_eval.parse_run(path.read_text().splitlines())
    assert sorted(official["a"], key=official["a"].get, reverse=True) == list("zyx")


def test_bad_run_files_are_refused(tmp_path):
    path = tmp_path / "run.trec"
    with pytest.raises(RunError, match="'two words'"):
        ranking.write_run(path, {"a": [("two words", 1.0)]}, "tag")
    path.write_text("a Q0 x 1 0.5 tag\na Q0 y 2 high tag\n")
    with pytest.raises(RunError, match="run.trec:2"):
        ranking.read_run(path)


def test_systems_on_other_queries_are_not_compared():
    one = ranking.score_run({"a": [("x", 1.0)]}, {"a": {"x": 1}})
    other = ranking.score_run({"b": [("x", 1.0)]}, {"b": {"x": 1}})
    with pytest.raises(RunError, match="same queries"):
        ranking.compare(one, other, 10, 0)
    same = {"difference": 0.0, "low": 0.0, "high": 0.0, "p": 1.0}
    assert ranking.compare(one, one, 10, 0)["MRR@10"] == same
