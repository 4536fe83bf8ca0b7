"""benchmarks/comparison.py: one system minus another over the queries of several runs."""

import json

import pytest

from benchmarks import comparison


def run(seed: int, groups=None) -> dict:
    """per_query.json of ten queries: `good` is better than `poor` by 0.1, more or less by seed."""
    noise = 0.01 if seed % 2 else -0.01
    values = {"poor": [0.2] * 10, "good": [0.3 + noise] * 5 + [0.3 - noise] * 5}
    systems = {name: dict.fromkeys(comparison.METRICS, v) for name, v in values.items()}
    return {"queries": [f"q{i}" for i in range(10)], "groups": groups, "systems": systems}


def test_a_pair_is_tested_on_the_mean_of_each_query_over_the_runs():
    difference, low, high, p_value = comparison.pooled([run(0), run(1)], "good", "poor", "MRR@10")
    assert (difference, low, high) == pytest.approx((0.1, 0.1, 0.1))  # the seeds' noise cancels
    assert p_value < 0.01
    reverse = comparison.pooled([run(0), run(1)], "poor", "good", "MRR@10")
    assert reverse[0] == pytest.approx(-0.1) and reverse[3] == p_value


def test_groups_of_queries_stay_together():
    """Two groups leave four patterns of signs, half of them as extreme as what was seen."""
    grouped = [run(0, [0] * 5 + [1] * 5)]
    assert comparison.pooled(grouped, "good", "poor", "MRR@10")[3] == pytest.approx(0.5, abs=0.02)


def test_runs_that_do_not_compare_are_refused():
    other = run(1)
    other["queries"] = other["queries"][::-1]
    with pytest.raises(ValueError, match="run 2: expected the queries of run 1"):
        comparison.pooled([run(0), other], "good", "poor", "MRR@10")
    with pytest.raises(
        ValueError, match=r"run 1: --differences names 'best'; its systems are \['good', 'poor'\]"
    ):
        comparison.pooled([run(0)], "best", "poor", "MRR@10")
    with pytest.raises(ValueError, match="expected ONE-OTHER, two systems, found 'good'"):
        comparison.differences([run(0)], ["good"])


def test_a_run_without_values_of_each_query_is_named(tmp_path):
    (tmp_path / "kept/evaluation").mkdir(parents=True)
    (tmp_path / "kept/evaluation/per_query.json").write_text(json.dumps(run(0)), "utf-8")
    folders = [str(tmp_path / name) for name in ("kept", "lacks")]
    assert comparison.per_query(folders[:1], "evaluation") == [run(0)]
    with pytest.raises(SystemExit, match="lacks/evaluation/per_query.json"):
        comparison.per_query(folders, "evaluation")
