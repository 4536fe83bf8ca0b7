"""The verdict follows from paired intervals, and the page begins with it."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_style.evaluation import comparison, ranking
from t5x_style.fine_tuning import verdict, verdict_page
from t5x_style.interfaces import verdict_record

QUERIES = 400


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content))
    return str(folder / name)


def scores(values):
    names = tuple(f"q{n:03}" for n in range(len(values)))
    return ranking.Scores(names, {"nDCG@10": np.array(values, float)})


def inputs(folder, tuned, untouched, dev=300, overlap=0, per_passage=2):
    """Files of an evaluation of two systems, of the values of each query."""
    found = {"untouched": scores(untouched), "finetuned": scores(tuned)}
    numbers = np.arange(len(tuned)) // per_passage
    report = comparison.compare(found, "untouched", (), 1000, 0, numbers)
    report |= {"split": "test", "passages": 99, "facts": {}}
    comparison.write(folder, report, found, numbers)
    names = list(found["untouched"].queries)
    collection = {
        "path": "my.csv", "sha256": "ab" * 32, "notes": ["a note"],
        "splits": {"train": 2000, "dev": dev, "test": len(names)},
        "overlap": {"test": {"shared": names[:overlap], "apart": names[overlap:]}},
    }  # fmt: skip
    return {
        "evaluation": str(folder / "metrics.json"),
        "per_query": str(folder / "per_query.json"),
        "collection": write(folder, "report.json", collection),
        "tuned": "finetuned", "original": "untouched", "metric": "nDCG@10",
        "model_dir": str(folder), "samples": 500,
    }  # fmt: skip


def judged(folder, *values, **more):
    """verdict.json and the page."""
    folder.mkdir(exist_ok=True)
    given = inputs(folder, *values[:2], **{k: more.pop(k) for k in INPUTS if k in more})
    outputs = verdict.verdict(**given | more)
    return json.loads((folder / outputs["verdict"]).read_text()), (
        folder / outputs["page"]
    ).read_text()


INPUTS = ("dev", "overlap", "per_passage")
LOW, HIGH = [0.2, 0.4] * (QUERIES // 2), [0.4, 0.5] * (QUERIES // 2)
MIXED = [0.5, 0.1] * (QUERIES // 2)  # on average as LOW


@pytest.mark.parametrize(
    ("tuned", "untouched", "expected"),
    [
        (HIGH, LOW, "better"), (LOW, HIGH, "worse"), (MIXED, LOW, "no difference"),
        (LOW, LOW, "no difference"),
    ],
)  # fmt: skip
def test_each_verdict(tmp_path, tuned, untouched, expected, capsys):
    found, page = judged(tmp_path, tuned, untouched)
    assert found["verdict"] == expected and verdict_record.Verdict.load(
        str(tmp_path / "verdict.json")
    )
    assert page.splitlines()[0] == found["line"] == capsys.readouterr().out.splitlines()[-1]
    assert found["line"].startswith(f"VERDICT {expected}: nDCG@10 of `finetuned` minus `untouched`")
    assert found["low"] - 1e-9 <= found["difference"] <= found["high"] + 1e-9
    assert "- a note" in page and "| untouched | " in page


def test_what_a_sum_of_two_scores_adds_is_on_the_page(tmp_path):
    given = inputs(tmp_path, HIGH, LOW)
    report = json.loads((tmp_path / "metrics.json").read_text())
    facts = {"of": ["reranker", "untouched"], "weight_of_first": 0.5909, "reranked": 10}
    facts |= {"method": "linear", "queries": 250, "tuned_on": "dev"}
    report["facts"] = {"finetuned": facts}
    report["systems"]["reranker"] = report["systems"]["untouched"]
    write(tmp_path, "metrics.json", report)
    outputs = verdict.verdict(**given)
    found = verdict_record.Verdict.load(tmp_path / outputs["verdict"])
    assert found.weighed == verdict_record.Weighed("reranker", "untouched", 0.5909, 10)
    page = (tmp_path / outputs["page"]).read_text()
    assert (
        "`finetuned` puts the 10 best hits of `untouched` in order by the scores of `reranker` and "
        "`untouched`, each scaled to 0 to 1 over these hits: 59% is the share of `reranker`, the "
        "best one on 250 development queries" in page
    )
    assert "Alone" not in page
    report["systems"]["reranker"] = {"nDCG@10": {"value": 0.1, "low": 0.0, "high": 0.2}}
    write(tmp_path, "metrics.json", report)
    page = (tmp_path / verdict.verdict(**given)["page"]).read_text()
    assert "**Alone, `reranker` is below `untouched` (nDCG@10 0.1000, 0.3000)" in page
    _, plain = judged(tmp_path / "plain", HIGH, LOW)
    assert "in order by" not in plain
    assert verdict_record.Verdict.load(tmp_path / "plain/verdict.json").weighed is None


def test_the_page_says_where_words_alone_are_better_than_the_vector(tmp_path):
    given = inputs(tmp_path, HIGH, LOW)  # .45 and .3
    report = json.loads((tmp_path / "metrics.json").read_text())

    def page(bm25):
        systems = {**report["systems"], "bm25": {"nDCG@10": {"value": bm25, "low": 0, "high": 1}}}
        write(tmp_path, "metrics.json", report | {"systems": systems})
        return (tmp_path / verdict.verdict(**given)["page"]).read_text()

    assert "alone finds more" not in page(0.4)
    assert "**`bm25` alone finds more than `finetuned`** (nDCG@10 0.8000, 0.4500)" in page(0.8)
    found = json.loads((tmp_path / "verdict.json").read_text())
    assert "Use `bm25`, or train" in verdict_page.page(found, {})
    found["systems"]["fusion"] = {"nDCG@10": {"value": 0.85, "low": 0, "high": 1}}
    assert "Use both together (`fusion`, 0.8500), or train" in verdict_page.page(found, {})
    found["systems"]["m3_all"] = found["systems"]["finetuned"]
    assert "alone finds more" not in verdict_page.page(found | {"system": "m3_all"}, {})


def test_few_queries_give_intervals_and_no_verdict(tmp_path):
    found, page = judged(tmp_path / "dev", HIGH, LOW, dev=199)
    assert found["verdict"] == "no verdict" and found["low"] > 0
    assert "199 development queries: at least 200 are needed" in page.splitlines()[0]
    found, page = judged(tmp_path / "test", HIGH[:150], LOW[:150])
    assert found["verdict"] == "no verdict" and "150 test queries" in page.splitlines()[0]
    assert judged(tmp_path / "enough", HIGH[:200], LOW[:200], dev=200)[0]["verdict"] == "better"


def test_queries_of_few_passages_give_no_verdict(tmp_path):
    """400 queries for 40 passages say as little as 40."""
    found, page = judged(tmp_path / "few", HIGH, LOW, per_passage=10)
    assert found["verdict"] == "no verdict"
    assert "The test queries ask for 40 passages: at least 50 are needed." in page.splitlines()[0]
    assert judged(tmp_path / "enough", HIGH, LOW, per_passage=8)[0]["verdict"] == "better"


def test_parts_are_resampled_by_passage(tmp_path):
    """Queries of a passage gain or lose together: the interval is that of passages."""
    noise = np.repeat(np.random.default_rng(0).normal(0, 0.1, 40), 10)
    wide = judged(tmp_path / "w", noise + 0.5, [0.5] * QUERIES, overlap=200, per_passage=10)[0]
    narrow = judged(tmp_path / "n", noise + 0.5, [0.5] * QUERIES, overlap=200, per_passage=1)[0]
    sizes = [
        one["parts"]["shared"]["high"] - one["parts"]["shared"]["low"] for one in (wide, narrow)
    ]
    assert sizes[0] > 2 * sizes[1]


def test_queries_whose_passage_was_trained_on_are_shown_apart(tmp_path):
    gained = [0.8] * 100 + LOW[100:]  # only where training saw the passage
    found, page = judged(tmp_path, gained, LOW, overlap=100)
    parts = found["parts"]
    assert parts["shared"]["n"] == 100 and parts["apart"]["n"] == QUERIES - 100
    assert parts["shared"]["difference"] == pytest.approx(0.5)
    assert parts["apart"]["difference"] == 0 and parts["apart"]["high"] == 0
    assert "| is also that of a training query (100) | 0.3000 | 0.8000 | +0.5000" in page
    assert judged(tmp_path / "none", gained, LOW)[0]["parts"] == {}


@dataclasses.dataclass
class Long:
    """Passages with so many tokens or more."""

    length: int
    ids: frozenset


def asked(folder, per_passage=2):
    """A collection whose test query n asks for passage n // per_passage."""
    (folder / "qrels").mkdir(parents=True)
    count = QUERIES // per_passage
    lines = [json.dumps({"_id": f"p{n}", "title": "", "text": "words"}) for n in range(count)]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    lines = [json.dumps({"_id": f"q{n:03}", "text": "words?"}) for n in range(QUERIES)]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
    judged = [f"q{n:03}\tp{n // per_passage}\t1" for n in range(QUERIES)]
    head = "query-id\tcorpus-id\tscore"
    (folder / "qrels/test.tsv").write_text("\n".join([head, *judged]) + "\n")
    return str(folder)


def test_queries_for_passages_that_are_not_read_whole_are_shown_apart(tmp_path):
    lost = [0.1] * 100 + HIGH[100:]  # of the first 50 passages
    long = Long(256, frozenset(f"p{n}" for n in range(50)))
    given = {"long_passages": long, "corpus": asked(tmp_path / "corpus")}
    found, page = judged(tmp_path / "long", lost, LOW, **given)
    assert (found["long"]["tokens"], found["long"]["passages"]) == (256, 50)
    parts = found["long"]["parts"]
    assert (parts["long"]["n"], parts["whole"]["n"]) == (100, QUERIES - 100)
    assert parts["long"]["systems"]["finetuned"] == pytest.approx(0.1)
    assert parts["whole"]["difference"] == pytest.approx(0.15)
    assert "| has 256 tokens or more (100) | 0.3000 | 0.1000 | -0.2000 (" in page
    assert "| has fewer (300) | 0.3000 | 0.4500 | +0.1500 (" in page
    assert "50 passages, 50.5%, have 256 tokens or more" in page  # of the 99 of the evaluation
    assert "Of longer ones the encoder reads the first 256" in page
    given["long_passages"] = Long(256, frozenset())
    found, page = judged(tmp_path / "short", lost, LOW, **given)
    assert "long" not in found and "tokens or more" not in page


def test_passages_that_are_all_long_are_shown(tmp_path):
    long = Long(128, frozenset(f"p{n}" for n in range(QUERIES)))
    given = {"long_passages": long, "corpus": asked(tmp_path / "corpus")}
    found, page = judged(tmp_path / "long", HIGH, LOW, **given)
    assert found["long"]["parts"].keys() == {"long"}
    assert "| has 128 tokens or more (400) | 0.3000 | 0.4500 |" in page
    assert "| has fewer" not in page and "try a longer `PASSAGE_LENGTH`" in page


def test_long_passages_need_the_judgements(tmp_path):
    with pytest.raises(ValueError, match="verdict.corpus: expected a folder"):
        judged(tmp_path, HIGH, LOW, long_passages=Long(256, frozenset()))


def elsewhere(folder, name, values):
    """A file of `forgetting`: one system's values on two other collections."""
    one = {
        "passages": 7, "queries": [str(n) for n in range(len(values))],
        "groups": [n // 2 for n in range(len(values))], "metrics": {"nDCG@10": list(values)},
    }  # fmt: skip
    return write(folder, name, {"cacm": one, "cisi": one | {"groups": None}})


def test_other_collections_and_the_share_are_on_the_page(tmp_path):
    others = {
        "untouched": elsewhere(tmp_path, "untouched.json", HIGH),
        "finetuned": elsewhere(tmp_path, "finetuned.json", LOW),
    }
    share = write(tmp_path, "interpolation.json", {"share": 0.25})
    found, page = judged(tmp_path, HIGH, LOW, others=others, interpolation=share)
    assert list(found["others"]) == ["cacm", "cisi"]
    assert found["others"]["cacm"]["difference"] == pytest.approx(-0.15)
    assert found["others"]["cacm"]["high"] == pytest.approx(-0.15)  # of pairs of queries: no spread
    assert found["others"]["cisi"]["high"] > -0.149
    assert "| cacm (400 queries) | 0.4500 | 0.3000 | -0.1500" in page
    assert found["interpolation"] == 0.25 and "25% those of the training and 75% those" in page


def test_the_page_says_that_nobody_measured_other_collections(tmp_path):
    none = write(tmp_path, "none.json", {})
    found, page = judged(tmp_path, HIGH, LOW, others={"untouched": none, "finetuned": none})
    assert found["others"] == {} and "**Nothing was measured on other collections**" in page
    _, page = judged(tmp_path / "reranker", HIGH, LOW)  # which nothing can be measured of elsewhere
    assert "other collections" not in page


def test_a_metric_or_system_that_is_not_measured_is_refused_early():
    verdict.check("nDCG@20", None, "finetuned")
    verdict.check("nDCG@20", None, "reranker", ["reranker"])
    with pytest.raises(ValueError, match=r"tuned: expected one of \['reranker'\], found 'fusion'"):
        verdict.check("nDCG@20", None, "fusion", ["reranker"])
    with pytest.raises(
        ValueError, match=r"found 'nDCG@20'. Add it .* METRICS=.\['MRR@10', 'nDCG@20"
    ):
        verdict.check("nDCG@20", ["MRR@10"], "finetuned")


def test_shorter_vectors_are_on_the_page(tmp_path):
    def measured(name, values):
        one = {
            "passages": 7, "queries": [str(n) for n in range(len(values))], "groups": None,
            "metrics": {"nDCG@10": list(values)},
        }  # fmt: skip
        return write(tmp_path, name, {"384": one, "64": one})

    short = {"untouched": measured("a.json", LOW), "finetuned": measured("b.json", HIGH)}
    found, page = judged(tmp_path, HIGH, LOW, short=short)
    assert list(found["short"]) == ["384", "64"]
    assert found["short"]["64"]["difference"] == pytest.approx(0.15)
    assert "| nDCG@10 by number of dimensions kept | untouched | finetuned |" in page
    assert "| 64 (400 queries) | 0.3000 | 0.4500 | +0.1500" in page
    assert "short" not in judged(tmp_path / "none", HIGH, LOW)[0]


def test_collections_measured_for_other_systems_or_by_another_metric_are_refused(tmp_path):
    given = inputs(tmp_path, HIGH, LOW)
    one = elsewhere(tmp_path, "one.json", HIGH)
    with pytest.raises(ValueError, match=r"verdict.others: expected files of .*\['finetuned'\]"):
        verdict.verdict(**given, others={"finetuned": one})
    rr = {"metrics": {"MRR@10": [1.0]}}
    other = write(tmp_path, "other.json", {"cacm": rr, "cisi": rr})
    with pytest.raises(ValueError, match=r"cacm, .*: expected 'nDCG@10' .* found \['MRR@10'\]"):
        verdict.verdict(**given, others={"finetuned": other, "untouched": one})
    few = write(tmp_path, "few.json", {"cacm": rr})
    with pytest.raises(
        ValueError, match="expected both systems measured on the same, found .*cisi"
    ):
        verdict.verdict(**given, others={"finetuned": one, "untouched": few})


@pytest.mark.parametrize(("count", "much"), [(0, False), (50, False), (500, True)])
def test_suspect_pairs_are_on_the_page(tmp_path, count, much):
    one = {"query": "who *is* it?", "passage": "word " * 90, "query_id": "q", "passage_id": "p"}
    report = {"pairs": 2000, "suspect": count, "depth": 100, "examples": [one] * min(count, 5)}
    path = write(tmp_path, "suspects.json", report)
    found, page = judged(tmp_path / "run", HIGH, LOW, suspects=path)
    assert found["suspects"] == report
    assert (f"{count:,} of 2,000 training pairs are suspect" in page) == (count > 0)
    assert ("That is much" in page) == much
    assert page.count(r"- who \*is\* it? → word word") == (3 if count else 0)
    assert judged(tmp_path / "none", HIGH, LOW)[0]["suspects"] is None


def test_an_evaluation_of_other_systems_is_refused(tmp_path):
    given = inputs(tmp_path, HIGH, LOW)
    for change, message in (
        ({"tuned": "mine"}, "expected 'mine' tested against the baseline 'untouched'"),
        ({"original": "bm25"}, "against the baseline 'bm25'"),
        ({"metric": "MRR@10"}, r"expected the metric 'MRR@10', found \['nDCG@10'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            verdict.verdict(**given | change)
