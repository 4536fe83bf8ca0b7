"""One verdict on folds: all their queries together; what is no cross-validation is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from t5x_style import folds

METRIC = "nDCG@10"
QUERIES = 150  # of a fold, two for each passage


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def finished(run: Path, number: int, gain: float, first: int | None = None) -> Path:
    """A run to its verdict, whose tuned encoder gains so much on its test queries."""
    folder = run / f"fold_{number}"
    first = QUERIES * number if first is None else first
    names = sorted(f"q{n:04d}" for n in range(first, first + QUERIES))
    before = np.random.default_rng(number).uniform(0.2, 0.6, QUERIES)
    noise = np.random.default_rng(9 + number).normal(0, 0.05, QUERIES)
    systems = {"untouched": before, "finetuned": before + gain + noise}
    write(
        folder / "evaluation/per_query.json",
        {
            "queries": names,
            "groups": None,
            "systems": {name: {METRIC: values.tolist()} for name, values in systems.items()},
        },
    )
    write(folder / "evaluation/metrics.json", {"n": QUERIES, "passages": 80, "compared": []})
    write(
        folder / "verdict/verdict.json",
        {
            "system": "finetuned",
            "baseline": "untouched",
            "metric": METRIC,
            "difference": float(np.mean(systems["finetuned"] - before)),
        },
    )
    data = {"path": "mine", "sha256": "0" * 64, "splits": {"train": 300, "dev": 50}}
    overlap = {"test": {"shared": names[:100], "apart": names[100:]}}
    write(folder / "collection/report.json", data | {"overlap": overlap})
    corpus = folder / "collection/corpus"
    (corpus / "qrels").mkdir(parents=True)
    passages = [f"p{n:04d}" for n in range(first // 2, (first + QUERIES) // 2)]
    for file, ids in (("corpus", passages), ("queries", names)):
        lines = [json.dumps({"_id": one, "title": "", "text": f"text of {one}"}) for one in ids]
        (corpus / f"{file}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    judged = [f"{name}\t{passages[n // 2]}\t1\n" for n, name in enumerate(names)]
    (corpus / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return folder


def test_folds_with_few_development_queries_have_a_verdict(tmp_path, capsys):
    for number, gain in enumerate((0.02, 0.05, 0.08)):
        finished(tmp_path, number, gain)
    finished(tmp_path, 3, -0.5)  # of an earlier command with more folds
    assert folds.main([str(tmp_path), "--folds=3"]) == 0
    found = json.loads((tmp_path / "verdict.json").read_text())
    assert found["verdict"] == "better" and found["queries"]["test"] == 3 * QUERIES
    single = [one["difference"] for one in found["folds"]]
    assert found["difference"] == pytest.approx(np.mean(single), abs=1e-9)
    assert found["low"] < found["difference"] < found["high"]
    assert found["parts"]["shared"]["n"] == 300 and found["parts"]["apart"]["n"] == 150
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["groups"] == 3 * QUERIES // 2
    page = (tmp_path / "summary.md").read_text()
    assert page.splitlines()[0] == found["line"] and "3 trainings: each query is tested" in page
    assert f"| 0 | {QUERIES} | {single[0]:+.4f} |" in page
    assert found["line"] in capsys.readouterr().out


def test_the_shares_of_two_added_scores_are_those_of_the_folds(tmp_path):
    for number, weight in enumerate((0.4, 0.6)):
        path = finished(tmp_path, number, 0.05) / "verdict/verdict.json"
        added = {"first": "finetuned", "second": "untouched", "weight": weight, "hits": 10}
        added |= {"queries": 50, "tuned_on": "dev"}
        write(path, json.loads(path.read_text()) | {"weighed": added})
    assert folds.main([str(tmp_path), "--folds=2"]) == 0
    page = (tmp_path / "summary.md").read_text()
    assert "40% to 60% is the share of `finetuned`, the best one on 50 development" in page
    assert "queries in each fold" in page
    found = json.loads((tmp_path / "verdict.json").read_text())["weighed"]
    assert found["weight"] == pytest.approx(0.5) and found["weights"] == [0.4, 0.6]


def test_repeats_count_the_mean_of_each_query(tmp_path):
    """A query whose two models differ counts once: the interval is that of the queries."""
    (tmp_path / "repeat_1").mkdir()
    for number, gain in enumerate((0.02, 0.04)):
        finished(tmp_path, number, gain)
    # Divided otherwise: the queries of fold 1 are tested first, and the gains are larger.
    for number, gain in enumerate((0.05, 0.07)):
        finished(tmp_path / "repeat_1", number, gain, first=QUERIES * (1 - number))
    assert folds.main([str(tmp_path), "--folds=2", "--repeats=2"]) == 0
    found = json.loads((tmp_path / "verdict.json").read_text())
    single = [(one["repeat"], one["difference"]) for one in found["folds"]]
    assert [repeat for repeat, _ in single] == [0, 0, 1, 1]
    assert found["difference"] == pytest.approx(np.mean([gain for _, gain in single]), abs=1e-9)
    assert found["queries"]["test"] == 2 * QUERIES
    per_query = json.loads((tmp_path / "per_query.json").read_text())
    assert per_query["queries"] == sorted(per_query["queries"])
    places = ("fold_0", "repeat_1/fold_1")  # which test the same queries
    files = [tmp_path / place / "evaluation/per_query.json" for place in places]
    scores = [json.loads(file.read_text())["systems"]["finetuned"][METRIC] for file in files]
    expected = np.mean(scores, axis=0)
    given = per_query["systems"]["finetuned"][METRIC][:QUERIES]
    np.testing.assert_allclose(given, expected, atol=1e-12)
    page = (tmp_path / "summary.md").read_text()
    assert "each query is tested 2 times" in page
    assert f"| 1 | 0 | {QUERIES} | {single[2][1]:+.4f} |" in page


def test_what_is_no_cross_validation_is_refused(tmp_path, capsys):
    def refused(expected: str, count: int = 2) -> None:
        assert folds.main([str(tmp_path), f"--folds={count}"]) == 1
        assert expected in capsys.readouterr().err

    refused("expected --folds of 2 or more and --repeats of 1 or more, found 1 and 1", 1)
    finished(tmp_path, 0, 0.1)
    refused("fold_1: expected a run with its verdict, found no verdict/verdict.json")
    finished(tmp_path, 1, 0.1, first=QUERIES - 1)
    refused("expected each query tested once, found 'q0149' in both")
    finished(tmp_path / "other", 0, 0.1)
    finished(tmp_path / "other", 1, 0.1)
    finished(tmp_path / "other/repeat_1", 0, 0.1)
    finished(tmp_path / "other/repeat_1", 1, 0.1, first=5 * QUERIES)
    assert folds.main([str(tmp_path / "other"), "--folds=2", "--repeats=2"]) == 1
    assert "expected the 300 test queries of" in (said := capsys.readouterr().err)
    assert "found 300, 150 of them the same" in said
    per_query = tmp_path / "fold_1/evaluation/per_query.json"
    write(per_query, {"queries": ["other"], "groups": None, "systems": {"untouched": {}}})
    refused("fold_1: expected the systems of")
