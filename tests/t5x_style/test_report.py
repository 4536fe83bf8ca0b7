"""What summary pages say: no more than the paired tests show, and all that was asked for."""

import dataclasses
import json
from pathlib import Path

import pytest

from t5x_style import evaluate_bitext, report
from t5x_style.reporting import report_tables, report_translations
from t5x_style.training import metric_writer
from tests.kits import fine_tuning_kit, store_kit


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
    page = report.page(results, "claim", [], [])
    assert "95 % bootstrap intervals over queries." in page
    grouped = report.page(results | {"groups": 4}, "claim", [], [])
    assert "95 % bootstrap intervals over 4 groups of queries." in grouped
    assert "- `c` is above `a`: MRR@10 +0.1000 (p = 0.001)." in page
    assert "- `" not in report.page(results | {"compared": []}, "claim", [], [])


def test_a_metric_over_training_is_a_table_by_step() -> None:
    logged = {
        "ict": [{"step": 0, "train/loss": 1.0}, {"step": 10, "eval/dev/Recall@5": 0.25}],
        "realm": [
            {"step": 10, "eval/dev/Recall@5": 0.5, "eval/salient/loss": 2.0},
            {"step": 20, "eval/dev/Recall@5": 0.75},
        ],
    }
    assert report_tables.by_step("eval/dev/Recall@5", logged).splitlines()[3:] == [
        "| step | ict | realm |",
        "|---|---|---|",
        "| 10 | 0.2500 | 0.5000 |",
        "| 20 |  | 0.7500 |",
    ]
    assert "| step | realm |" in report_tables.by_step("eval/salient/loss", logged)
    with pytest.raises(ValueError, match=r"none of the trainings \['ict', 'realm'\] logged 'mrr'"):
        report_tables.by_step("mrr", logged)


def evaluation(split, metric, **more):
    """What `evaluate` writes of two systems."""
    value = {"value": 0.5, "low": 0.4, "high": 0.6}
    test = {"difference": 0.1, "p": 0.001}
    of = {name: {metric: value} for name in "ab"}
    against = {"baseline": "b", "systems": {"a": {metric: test}}}
    head = {"split": split, "n": 9, "passages": 99, "systems": of, "against": against}
    return head | {"compared": []} | more


def trained(link, *inputs, log=({"step": 1, "train/loss": 2.0},), seconds=3.0, **settings):
    """A finished training; the log is what it logged."""
    planned = store_kit.plan(link, "train", *inputs, **settings)
    lines = "".join(f"{json.dumps(line)}\n" for line in log)
    return store_kit.finished(planned, {metric_writer.JSONL: lines}, {"model": "."}, seconds)


def evaluated(link, results, *models, seconds=2.0, **settings):
    """A finished evaluation of trainings; the path of its metrics.json."""
    planned = store_kit.plan(link, "evaluate", *(one.folder for one in models), **settings)
    files = {"metrics.json": json.dumps(results)}
    made = store_kit.finished(planned, files, {"metrics": "metrics.json"}, seconds)
    return str(made.output("metrics"))


def test_further_evaluations_follow_on_the_page(tmp_path) -> None:
    sets = {"squad": evaluation("squad", "EM")}
    answers = evaluated(tmp_path / "run/answers", evaluation("questions", "EM", sets=sets), split=2)
    blocks = evaluated(tmp_path / "run/blocks", evaluation("test", "MRR@10"), split=1)
    trainings = {"qa": str(trained(tmp_path / "run/qa").folder)}
    out = str(tmp_path / "report")
    files = report.report(blocks, trainings, 1.0, "a", out, further=[answers])
    page = (tmp_path / "report" / files["page"]).read_text()
    places = [page.index(part) for part in ("| MRR@10 |", "## questions", "| EM |", "## squad")]
    assert places == sorted(places)
    assert page.count("`a` is above `b`: EM +0.1000 (p = 0.001).") == 2
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        report.report(blocks, trainings, 1.0, "a", out, further=[str(tmp_path / "nowhere.json")])


def test_stages_that_led_to_the_inputs_are_timed_wherever_they_ran(tmp_path) -> None:
    """Not those of the run that have nothing to do with the page."""
    store = tmp_path / ".store"
    corpus = trained(tmp_path / "elsewhere/corpus", store=store, of="a corpus", seconds=20)
    first = trained(tmp_path / "run/first", corpus.folder, store=store, seconds=40, code="first")
    trained(tmp_path / "run/unused", corpus.folder, store=store, seconds=1000, of="nothing here")
    results = evaluation("test", "EM")
    metrics = evaluated(tmp_path / "run/evaluation", results, first, store=store, seconds=4)
    trainings = {"the first one": str(first.folder)}
    files = report.report(metrics, trainings, 0.5, "a", str(tmp_path / "report"))
    summary = json.loads((tmp_path / "report" / files["summary"]).read_text())
    assert summary["stages"] == {"corpus": 20, "first": 40, "evaluation": 4}
    assert summary["seconds"] == 64
    claim = {"one": "a", "other": "b", "EM": {"difference": 0.1, "p": 0.001}}
    assert summary["claims"] == [claim] and summary["queries"] == 9
    assert summary["code"]["first"] == first.record["code_hash"]
    page = (tmp_path / "report" / files["page"]).read_text().splitlines()
    assert "![curves of the first one](curves.png)" in page
    (said,) = (line for line in page if line.startswith("The stages that led to this page"))
    assert said.endswith("Budget 0.5, 64 seconds in all:")
    assert f"| first | 40 | `{first.record['code_hash']}` |" in page
    assert len(summary["code"]["first"]) == 12
    assert summary["code"]["first"] != summary["code"]["corpus"]
    assert not any(first.id in line for line in page)


def test_the_page_depends_on_no_path(tmp_path) -> None:
    """The same versions give the same page, wherever they and the run are."""
    pages = []
    for root in ("a", "b/deeper"):
        run = tmp_path / root / "run"
        first = trained(run / "first")
        metrics = evaluated(run / "evaluation", evaluation("test", "EM"), first)
        out = tmp_path / root / "report"
        report.report(metrics, {"first": str(first.folder)}, 1.0, "a", str(out))
        pages.append([(out / name).read_bytes() for name in ("summary.md", "summary.json")])
    assert pages[0] == pages[1]


def test_as_a_stage_it_reads_versions_and_names_them_as_told(tmp_path) -> None:
    run = tmp_path / "run"
    first = trained(run / "first")
    metrics = evaluated(run / "evaluation", evaluation("test", "EM"), first)
    macros = {"MODEL_DIR": run / "report", "EVALUATION": metrics, "BUDGET": 1.0, "CLAIM": "'a'"}
    trainings = {"a name": str(run / "first")}
    for _ in range(2):  # the second time nothing runs
        job = "t5x_style.report.report"
        assert fine_tuning_kit.run(job, ["runs/reports/run"], TRAININGS=trainings, **macros) == 0
    manifest = json.loads((run / "report/stage.json").read_text())
    assert manifest["inputs"]["TRAININGS['a name']"] == first.identity
    assert first.id in manifest["made_from"] and len(manifest["made_from"]) == 2
    page = (run / "report/summary.md").read_text()
    assert "![curves of a name](curves.png)" in page and "| first | 3 |" in page


def test_versions_of_stages_with_one_name_are_told_apart(tmp_path) -> None:
    link = tmp_path / "run/train"
    one, other = trained(link, steps=1, seconds=1), trained(link, steps=2, seconds=2)
    last = trained(tmp_path / "run/last", one.folder, other.folder)
    stages = report_tables.stages([str(last.folder)])
    assert report_tables.stage_seconds(stages) == {
        f"train ({one.id})": 1,
        f"train ({other.id})": 2,
        "last": 3,
    }


def test_a_stage_of_mixed_code_is_said_to_be_one(tmp_path) -> None:
    made = trained(tmp_path / "run/train")
    assert "continued" not in "".join(report_tables.times({"train": made}, 1.0))
    mixed = dataclasses.replace(made, manifest=made.record | {"mixed_code": True})
    told = report_tables.times({"other": made, "train": mixed}, 1.0)
    assert "Stopped, and continued with changed code: train." in told


def test_a_page_of_translations_has_groups_times_curves_and_languages(tmp_path):
    languages = {"de": {"accuracy": 0.5, "to": 0.4}, "fr": {"accuracy": 0.7, "to": 0.2}}
    groups = {"trained": {"accuracy": 0.5, "to": 0.4, "languages": 1}}
    groups = {"all": {"accuracy": 0.6, "to": 0.3, "languages": 2}, **groups}
    systems = {"labse": {"groups": groups, "languages": languages}}
    sets = {"tatoeba": {"facts": {"translations": 4000}, "systems": systems}}
    lines = [{"step": 1, "train/loss": 2.0}, {"step": 2, "eval/dev/accuracy": 0.25}]
    model = trained(tmp_path / "run/training", log=lines, seconds=12.4)
    planned = store_kit.plan(tmp_path / "run/evaluation", "evaluate_bitext", model.folder)
    files = {
        "metrics.json": json.dumps({"sets": sets}),
        "languages.md": evaluate_bitext.by_language(sets, None),
    }
    made = store_kit.finished(planned, files, {name: name for name in files}, 3.0)

    def page(over_training):
        report_translations.report_translations(
            *(str(made.output(name)) for name in files),
            {"labse": str(model.folder)}, 1.0, str(tmp_path / "report"), over_training,
        )  # fmt: skip
        return Path(tmp_path / "report/summary.md").read_text().splitlines()

    told = page(["eval/dev/accuracy"])
    for line in (
        "translations 4,000. `accuracy`, means over the languages of a group:",
        "| system | all (2) | trained (1) |",
        "| labse | 0.6000 | 0.5000 |",
        "| labse | all | 0.6000 | 0.3000 |",
        f"| training | 12 | `{model.record['code_hash']}` |",
        f"| evaluation | 3 | `{made.record['code_hash']}` |",
        "| 2 | 0.2500 |",
        "| de | 0.500 |",
        "![curves of labse](curves.png)",
    ):
        assert line in told, line
    assert (tmp_path / "report/curves.png").is_file()
    with pytest.raises(ValueError, match=r"none of the trainings \['labse'\] logged 'mrr'"):
        page(["mrr"])
