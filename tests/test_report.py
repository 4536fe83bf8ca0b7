"""What the summary page claims: no more than the paired tests show."""

import pytest

from t5x_style import report


@pytest.mark.parametrize(
    "tests,verdict",
    [
        ([(0.1, 0.001), (0.2, 0.01)], "`a` is above `b`"),
        ([(0.1, 0.3), (0.2, 0.9)], "`a` is not distinguishable from `b`"),
        ([(0.1, 0.3), (0.2, 0.01)], "`a` is on some metrics above `b`"),
        ([(-0.1, 0.01), (-0.2, 0.01)], "`a` is below `b`"),
        ([(-0.1, 0.3), (-0.2, 0.01)], "`a` is on some metrics below `b`"),
        ([(0.1, 0.01), (-0.2, 0.01)], "`a` is on some metrics above and on others below `b`"),
        ([(0.0, 1.0)], "`a` is not distinguishable from `b`"),
    ],
)
def test_the_verdict_counts_significant_differences_only(
    tests: list[tuple[float, float]], verdict: str
) -> None:
    metrics = {f"m{i}": {"difference": d, "p": p} for i, (d, p) in enumerate(tests)}
    results = {"against": {"baseline": "b", "systems": {"a": metrics}}}
    told = report.compare(results, "a")
    assert told.startswith(verdict + ": m0 ")
    assert f"(p = {tests[-1][1]:.3g})" in told


def test_a_system_that_was_not_tested_makes_no_claim() -> None:
    results = {"against": {"baseline": "b", "systems": {"a": {}}}}
    with pytest.raises(ValueError, match="report.claim"):
        report.compare(results, "c")


def test_pairs_that_were_compared_stand_on_the_page() -> None:
    value = {"value": 0.5, "low": 0.4, "high": 0.6}
    test = {"difference": 0.1, "p": 0.001}
    results = {
        "split": "test",
        "systems": {name: {"MRR@10": value} for name in "abc"},
        "compared": [{"one": "c", "other": "a", "MRR@10": test}],
    }
    summary = {"queries": 9, "passages": 99, "budget": 1, "seconds": 2, "stages": {}}
    page = report.page(results, summary, "claim", [])
    assert "- `c` is above `a`: MRR@10 +0.1000 (p = 0.001)." in page
    assert "- `" not in report.page(results | {"compared": []}, summary, "claim", [])
