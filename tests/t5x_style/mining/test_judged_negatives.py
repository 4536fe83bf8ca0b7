"""Negatives that a re-ranker finds as good as the answer are left out."""

import json
from pathlib import Path

import pytest

from t5x_style.mining import judged_negatives, provenance


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def line(query, positives, negatives):
    """A line of scored.jsonl; both are passage -> score."""
    return {
        "query_id": query,
        "positive_ids": list(positives),
        "negative_ids": list(negatives),
        "teacher_scores": {**positives, **negatives},
    }


LINES = (
    line("q0", {"a": 2.0, "b": 5.0}, {"c": 5.5, "d": 5.0, "e": 4.0, "f": -1.0}),
    line("q1", {"a": -3.0}, {"c": 0.0}),
)


def runs():
    """What `job_outputs` records, in the present folder."""
    return {"judged": {"scored": write(Path("scored.jsonl"), *LINES), "margin": 0.5}}


def judged(tmp_path, margin=0.0, lines=LINES):
    scored = write(tmp_path / "scored.jsonl", *lines)
    outputs = judged_negatives.judged_negatives(scored, margin, str(tmp_path))
    text = (tmp_path / outputs["negatives"]).read_text()
    return {one["query_id"]: one for one in map(json.loads, text.splitlines())}


@pytest.mark.parametrize(
    "margin,kept",
    [(0.0, ["e", "f"]), (0.5, ["e", "f"]), (2.0, ["f"]), (-1.0, ["c", "d", "e", "f"])],
)
def test_a_negative_is_compared_with_the_best_positive(tmp_path, margin, kept):
    found = judged(tmp_path, margin)
    assert found["q0"] == {"query_id": "q0", "positive_ids": ["a", "b"], "negative_ids": kept}
    assert list(found) == ["q0", "q1"] and found["q1"]["negative_ids"] == []


def test_how_many_are_left_out_is_said(tmp_path, capsys):
    judged(tmp_path)
    said = capsys.readouterr().err
    assert "judge: 3 of 5 negatives are left out" in said and "1 of 2 queries have none" in said
    assert "has a positive first for 0% of the queries" in said


def test_the_origin_goes_along(tmp_path):
    judged(tmp_path)
    assert not provenance.path_beside(tmp_path / "negatives.jsonl").exists()
    origin = provenance.Provenance("bm25", {"split": "train"}, {"a": "0"}, {"q0": "1"})
    provenance.save(tmp_path / "scored.jsonl", origin)
    judged(tmp_path, 0.5)
    found = provenance.read(tmp_path / "negatives.jsonl")
    assert found.made_by == "bm25" and found.settings == {"split": "train", "judge_margin": 0.5}


def test_what_is_not_scored_is_refused(tmp_path):
    bare = {key: value for key, value in LINES[1].items() if key != "teacher_scores"}
    with pytest.raises(judged_negatives.JudgeError, match=r"line 2: .* found none of \['a', 'c'\]"):
        judged(tmp_path, lines=(LINES[0], bare))


def test_a_judge_that_leaves_nothing_is_refused(tmp_path):
    with pytest.raises(judged_negatives.JudgeError, match="each of 1 negatives as good as"):
        judged(tmp_path, lines=LINES[1:])
    assert not (tmp_path / "negatives.jsonl").exists()
    with pytest.raises(ValueError, match="expected a number, found nan"):
        judged_negatives.check(float("nan"))
