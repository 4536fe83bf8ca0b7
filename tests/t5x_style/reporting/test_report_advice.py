"""Advice on summary pages: each rule where it applies, and not where it does not."""

import json

import pytest

from t5x_style import report
from t5x_style.reporting import report_advice
from tests.t5x_style.test_report import evaluated, trained

NAMES = ("bm25", "bag_of_embeddings", "retriever", "fusion")
FACTS = {"bm25": {"k1": 0.9}, "fusion": {"method": "linear", "of": ["retriever", "bm25"]}}


def difference(value, half=0.01):
    sure = 0.001 if abs(value) > half else 0.5
    return {"difference": value, "low": value - half, "high": value + half, "p": sure}


def evaluation(values, half=0.02, dev=None, compared=True, **more):
    """What `evaluate` writes of four systems."""
    of = dict(zip(NAMES, values, strict=True))
    pairs = [("retriever", "bag_of_embeddings"), ("fusion", "retriever")]
    results = {
        "split": "test",
        "n": 300,
        "groups": 300,
        "passages": 999,
        "systems": {
            name: {
                "MRR@10": {"value": value, "low": value - half, "high": value + half},
                "Recall@10": {"value": 0.75, "low": 0.7, "high": 0.8},
            }
            for name, value in of.items()
        },
        "against": {
            "baseline": "bm25",
            "systems": {
                name: dict.fromkeys(("MRR@10", "Recall@10"), difference(value - of["bm25"]))
                for name, value in of.items()
                if name != "bm25"
            },
        },
        "compared": [
            {"one": one, "other": other}
            | dict.fromkeys(("MRR@10", "Recall@10"), difference(of[one] - of[other]))
            for one, other in pairs
        ],
        "facts": FACTS,
        "judged": {"train": 5000, "test": 300},
    }
    if dev is not None:
        measured = {name: {"MRR@10": value} for name, value in dev.items()}
        results["development"] = {"dev": {"n": 99, "systems": measured}}
    return results | more


GOOD = (0.40, 0.42, 0.50, 0.55)


def situation(results, **logs):
    curve = "eval/dev/MRR@10"
    return report_advice.Situation(results, logs, "retriever", "bag_of_embeddings", curve)


def steps(results, **logs):
    return report_advice.next_steps(situation(results, **logs))


def has(found, *parts):
    return any(all(part in one for part in parts) for one in found)


def curve(*values, padding=0.1):
    lines = [{"step": 10 * i, "eval/dev/MRR@10": v} for i, v in enumerate(values, start=1)]
    return [*lines, {"step": 10, "train/padding_share": padding}]


def test_kinds_of_one_model_are_no_fusion():
    several = {"retriever": {"method": "weighted", "kinds": ["dense", "multi_vector"]}}
    assert situation(evaluation(GOOD, facts=several | FACTS)).fusion == "fusion"
    assert situation(evaluation(GOOD, facts=several)).fusion is None


def test_a_run_that_went_well_is_told_to_serve_the_fusion():
    found = steps(evaluation(GOOD), retriever=curve(0.2, 0.4, 0.5, 0.5, 0.5))
    assert len(found) == 2
    assert found[0].startswith("Layers pay here: `retriever` has MRR@10 0.500 on the test queries")
    assert found[0].endswith("Of the two, ship `retriever`.") and found[1].startswith(
        "Serve `fusion`"
    )


def test_a_retriever_below_the_bag_does_not_ship():
    found = steps(evaluation((0.40, 0.45, 0.42, 0.5)))
    assert has(found, "Layers do not pay here", "Of the two, ship `bag_of_embeddings`")


def test_development_queries_decide_where_both_were_measured_there():
    dev = {"bm25": 0.4, "retriever": 0.30, "bag_of_embeddings": 0.35}
    found = steps(evaluation(GOOD, dev=dev))
    assert has(found, "Layers do not pay here", "0.300 on the dev queries")
    del dev["bag_of_embeddings"]
    assert has(steps(evaluation(GOOD, dev=dev)), "Layers pay", "on the test queries")


def test_without_a_bag_nothing_is_said_of_layers():
    results = evaluation(GOOD)
    del results["systems"]["bag_of_embeddings"], results["against"]["systems"]["bag_of_embeddings"]
    results["compared"] = results["compared"][1:]
    assert not has(steps(results), "Layers")


def test_a_fusion_that_adds_nothing():
    found = steps(evaluation((0.40, 0.2, 0.3, 0.405)))
    assert has(
        found, "`fusion` adds nothing", "`bm25` alone is cheaper until `retriever` is better"
    )
    assert not has(found, "Serve")


def test_a_fusion_need_not_match_words():
    results = evaluation(GOOD, facts={"fusion": FACTS["fusion"]})
    assert has(steps(results), "Serve `fusion`")


def test_a_fusion_of_other_systems_is_not_judged():
    of = {"fusion": FACTS["fusion"] | {"of": ["another", "bm25"]}}
    assert not has(steps(evaluation(GOOD, facts=FACTS | of)), "`fusion`")


def test_few_training_queries():
    few = steps(evaluation(GOOD, judged={"train": 120, "test": 300}))
    assert has(few, "There are 120 training queries", "unsupervised pairs")
    assert has(steps(evaluation(GOOD, judged={"test": 300})), "no training queries")
    assert not has(steps(evaluation(GOOD)), "training queries")


def test_curves_that_rise_or_fall_at_the_end():
    rising = steps(evaluation(GOOD), retriever=curve(0.1, 0.2, 0.3, 0.4))
    assert has(rising, "`retriever` was still learning", "grew by 25%", "BUDGET")
    falling = steps(evaluation(GOOD), retriever=curve(0.1, 0.5, 0.45, 0.4))
    assert has(falling, "`retriever` was best at step 20 of 40", "0.500, 0.400 at the end")
    assert not has(falling, "still learning")
    flat = steps(evaluation(GOOD), retriever=curve(0.1, 0.4, 0.4, 0.401), bag=curve(0.1, 0.2))
    assert not has(flat, "learning") and not has(flat, "was best at")


def test_padding():
    found = steps(evaluation(GOOD), pretrain=curve(padding=0.42))
    assert has(found, "42% of the positions in the batches of `pretrain`", "ROW_LENGTH")


def test_few_queries_and_few_groups():
    found = steps(evaluation(GOOD, half=0.05, n=60, groups=12))
    assert has(found, "With 60 test queries, MRR@10 is known to about ±0.050")
    assert has(found, "from 12 groups only")


@pytest.mark.parametrize(
    "test,said",
    [
        (difference(0.05), "`a` is better than `b` (m +0.050, 95 % interval +0.040 to +0.060)."),
        (difference(-0.05), "`a` is worse than `b`"),
        (difference(0.001), "`a` is not worse than `b` by more than 0.02"),
        (difference(0.0, half=0.05), "These queries do not show which of `a` and `b` is better"),
        ({"difference": 0.1, "p": 0.01}, "`a` differs from `b` (m +0.100, p = 0.01)."),
        ({"difference": 0.1, "p": 0.2}, "`a` is not known to differ from `b`"),
    ],
)
def test_pairs_in_words(test, said):
    assert report_advice._pair("a", "b", "m", test).startswith(said)


def test_meaning_compares_what_was_tested():
    results = evaluation(GOOD)
    found = report_advice.meaning(situation(results))
    assert [one.split(" (")[0] for one in found[:4]] == [
        "`retriever` is better than `bm25`",
        "`retriever` is better than `bag_of_embeddings`",
        "`fusion` is better than `bm25`",
        "`fusion` is better than `retriever`",
    ]
    assert found[4].endswith("Of the relevant passages it lists 75% among the first 10.")
    turned = situation(results).test("bm25", "fusion")
    assert (turned["low"], turned["high"]) == pytest.approx((-0.16, -0.14))
    assert situation(results).test("bm25", "nothing") is None


def test_claims_are_all_pairs_once():
    results = evaluation(GOOD)
    results["compared"].append({"one": "fusion", "other": "bm25", "MRR@10": difference(0.1)})
    pairs = [(claim["one"], claim["other"]) for claim in report_advice.claims(results)]
    assert pairs == [
        ("bag_of_embeddings", "bm25"),
        ("retriever", "bm25"),
        ("fusion", "bm25"),
        ("retriever", "bag_of_embeddings"),
        ("fusion", "retriever"),
    ]


def test_the_page_and_the_screen_end_with_advice(tmp_path, capsys):
    model = trained(tmp_path / "run/retriever", log=curve(0.1, 0.2, 0.3, 0.4))
    metrics = evaluated(tmp_path / "run/evaluation", evaluation(GOOD), model)
    out = tmp_path / "report"
    report.report(
        metrics, {"retriever": str(model.folder)}, 0.5, "retriever", str(out),
        recipe="my.gin", run_dir="runs/mine", settings={"CORPUS": "my texts"}, searchable=True,
    )  # fmt: skip
    page, screen = (out / "summary.md").read_text(), capsys.readouterr().out
    summary = json.loads((out / "summary.json").read_text())
    for text in (page, screen):
        assert "## What this means" in text and "## What to try next" in text
        assert all(f"- {step}" in text for step in summary["advice"])
        assert 'kennel search --run=runs/mine "your question"' in text
        assert "kennel run my.gin RUN_DIR=runs/mine CORPUS='my texts' BUDGET=1.5" in text
    assert len(summary["claims"]) == 5 and summary["groups"] == 300
    with pytest.raises(ValueError, match="none of the trainings .'retriever'. logged 'eval/x'"):
        report.report(
            metrics, {"retriever": str(model.folder)}, 0.5, "retriever", str(out),
            development_metric="eval/x",
        )  # fmt: skip


def test_two_bags_are_compared_without_a_word_on_layers():
    bag = {"contract": {"pooling": "weighted_mean"}}
    results = evaluation(GOOD, facts=FACTS | {"retriever": bag})
    (step,) = (one for one in report_advice.next_steps(situation(results)) if " ship " in one)
    assert (
        step.startswith("Of the two dense systems, ship `retriever`")
        and "Both are bags of embeddings" in step
    )
