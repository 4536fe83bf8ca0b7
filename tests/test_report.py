"""What the summary page claims: no more than the paired tests show."""

import json

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
        "n": 9,
        "passages": 99,
        "systems": {name: {"MRR@10": value} for name in "abc"},
        "compared": [{"one": "c", "other": "a", "MRR@10": test}],
    }
    summary = {"queries": 9, "passages": 99, "budget": 1, "seconds": 2, "stages": {}}
    page = report.page(results, summary, "claim", [])
    assert "- `c` is above `a`: MRR@10 +0.1000 (p = 0.001)." in page
    assert "- `" not in report.page(results | {"compared": []}, summary, "claim", [])


def test_a_metric_over_training_is_a_table_by_step() -> None:
    logged = {
        "ict": [{"step": 0, "train/loss": 1.0}, {"step": 10, "eval/dev/Recall@5": 0.25}],
        "realm": [
            {"step": 10, "eval/dev/Recall@5": 0.5, "eval/salient/loss": 2.0},
            {"step": 20, "eval/dev/Recall@5": 0.75},
        ],
    }
    assert report.by_step("eval/dev/Recall@5", logged).splitlines()[3:] == [
        "| step | ict | realm |",
        "|---|---|---|",
        "| 10 | 0.2500 | 0.5000 |",
        "| 20 |  | 0.7500 |",
    ]
    assert "| step | realm |" in report.by_step("eval/salient/loss", logged)
    with pytest.raises(ValueError, match=r"none of the trainings \['ict', 'realm'\] logged 'mrr'"):
        report.by_step("mrr", logged)


def test_further_evaluations_follow_on_the_page(tmp_path) -> None:
    value = {"value": 0.5, "low": 0.4, "high": 0.6}
    test = {"difference": 0.1, "p": 0.001}

    def evaluation(split, metric, **more):
        of = {name: {metric: value} for name in "ab"}
        against = {"baseline": "b", "systems": {"a": {metric: test}}}
        return {"split": split, "n": 9, "passages": 99, "systems": of, "against": against, **more}

    blocks = evaluation("test", "MRR@10", compared=[])
    answers = evaluation("questions", "EM", compared=[], sets={})
    answers["sets"]["squad"] = evaluation("squad", "EM", compared=[])
    for name, results in (("blocks", blocks), ("answers", answers)):
        (tmp_path / f"{name}.json").write_text(json.dumps(results))
    training = tmp_path / "qa"
    training.mkdir()
    (training / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0}\n')
    record = {"name": "qa", "finished": 1.0, "seconds": 3.0}
    (training / "stage.json").write_text(json.dumps(record))
    files = report.report(
        *(str(tmp_path / "blocks.json"), [str(training)], 1.0, "a", str(tmp_path)),
        model_dir=str(tmp_path / "report"),
        further=[str(tmp_path / "answers.json")],
    )
    page = (tmp_path / "report" / files["page"]).read_text()
    places = [page.index(part) for part in ("| MRR@10 |", "## questions", "| EM |", "## squad")]
    assert places == sorted(places)
    assert page.count("`a` is above `b`: EM +0.1000 (p = 0.001).") == 2
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        report.report(
            *(str(tmp_path / "blocks.json"), [str(training)], 1.0, "a", str(tmp_path)),
            model_dir=str(tmp_path / "report"),
            further=[str(tmp_path / "nowhere.json")],
        )
