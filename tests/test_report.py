"""What summary pages say: no more than the paired tests show, and all that was asked for."""

import json
from pathlib import Path

import pytest

from t5x_style import evaluate_bitext, metric_log, report, report_parts, report_translations


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
    assert report_parts.by_step("eval/dev/Recall@5", logged).splitlines()[3:] == [
        "| step | ict | realm |",
        "|---|---|---|",
        "| 10 | 0.2500 | 0.5000 |",
        "| 20 |  | 0.7500 |",
    ]
    assert "| step | realm |" in report_parts.by_step("eval/salient/loss", logged)
    with pytest.raises(ValueError, match=r"none of the trainings \['ict', 'realm'\] logged 'mrr'"):
        report_parts.by_step("mrr", logged)


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


def test_a_page_of_translations_has_groups_times_curves_and_languages(tmp_path):
    languages = {"de": {"accuracy": 0.5, "to": 0.4}, "fr": {"accuracy": 0.7, "to": 0.2}}
    groups = {"trained": {"accuracy": 0.5, "to": 0.4, "languages": 1}}
    groups = {"all": {"accuracy": 0.6, "to": 0.3, "languages": 2}, **groups}
    systems = {"labse": {"groups": groups, "languages": languages}}
    sets = {"tatoeba": {"facts": {"translations": 4000}, "systems": systems}}
    (tmp_path / "metrics.json").write_text(json.dumps({"sets": sets}))
    (tmp_path / "languages.md").write_text(evaluate_bitext.by_language(sets, None))
    done = {"name": "labse", "seconds": 12.4, "finished": "2026-01-01"}
    (tmp_path / "run/labse").mkdir(parents=True)
    (tmp_path / "run/labse/stage.json").write_text(json.dumps(done))
    lines = [{"step": 1, "train/loss": 2.0}, {"step": 2, "eval/dev/accuracy": 0.25}]
    (tmp_path / "run/labse" / metric_log.JSONL).write_text(
        "".join(f"{json.dumps(x)}\n" for x in lines)
    )

    def page(over_training):
        report_translations.report_translations(
            *(str(tmp_path / name) for name in ("metrics.json", "languages.md")),
            [str(tmp_path / "run/labse")], 1.0, str(tmp_path / "run"), str(tmp_path / "report"),
            over_training,
        )  # fmt: skip
        return Path(tmp_path / "report/summary.md").read_text().splitlines()

    told = page(["eval/dev/accuracy"])
    for line in (
        "translations 4,000. `accuracy`, means over the languages of a group:",
        "| system | all (2) | trained (1) |",
        "| labse | 0.6000 | 0.5000 |",
        "| labse | all | 0.6000 | 0.3000 |",
        "| labse | 12 |",
        "| 2 | 0.2500 |",
        "| de | 0.500 |",
        "![curves of labse](curves.png)",
    ):
        assert line in told, line
    assert (tmp_path / "report/curves.png").is_file()
    with pytest.raises(ValueError, match=r"none of the trainings \['labse'\] logged 'mrr'"):
        page(["mrr"])
