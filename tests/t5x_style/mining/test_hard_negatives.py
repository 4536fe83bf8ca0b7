"""Mined negatives, and the readers of BEIR collections that mining and evaluation share."""

import dataclasses
import json
from pathlib import Path

import pytest

from t5x_style.mine import mine
from t5x_style.mining import candidates, hard_negatives, provenance
from t5x_style.retrieval.beir_collection import (
    CollectionError,
    Passages,
    read_qrels,
    read_queries,
)
from tests.kits import retrieval_helpers as helpers

KEEP_ALL = hard_negatives.MiningSettings(
    depth=10, negatives=5, skip_top=0, max_overlap=1.0, max_score_ratio=0.0
)
TEXTS = [
    "read a csv file with the reader",  # the answer
    "read a csv file with the reader!",  # the same words
    "csv csv csv read read file reader",  # scores above the answer
    "read the file",
    "csv dialects",
    "networking",
]
QUERIES = {"q": "read csv file", "none": "the", "other": "networking"}


def settings(**changes) -> hard_negatives.MiningSettings:
    return dataclasses.replace(KEEP_ALL, **changes)


@pytest.fixture
def bm25(tmp_path) -> candidates.Bm25:
    lines = [json.dumps({"_id": f"p{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS)]
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    return candidates.Bm25(Passages(tmp_path), QUERIES)


def mine_one(bm25, query="q", positives=(0,), **changes) -> hard_negatives.Mined:
    (found,) = hard_negatives.mine_negatives(bm25, [(query, list(positives))], settings(**changes))
    return found


def test_positives_are_never_negatives(bm25):
    found = mine_one(bm25)
    assert found.positive_ids == ["p0"]
    assert set(found.negative_ids) == {"p1", "p2", "p3", "p4"}
    assert found.negative_scores == sorted(found.negative_scores, reverse=True)
    assert found.passed_over == {"positive": 1}
    both = mine_one(bm25, positives=(0, 1))
    assert set(both.negative_ids) == {"p2", "p3", "p4"} and both.passed_over == {"positive": 2}


def test_chinese_passages_are_found_by_pairs_of_characters(tmp_path):
    """They have no spaces: as words of English, no clause of a passage is in a question."""
    texts = [
        "北京是中国的首都，常住人口有两千多万。",
        "上海的常住人口有两千四百多万。",
        "猫喜欢吃鱼。",
    ]
    lines = [json.dumps({"_id": f"p{i}", "text": text}) + "\n" for i, text in enumerate(texts)]
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    asked = Passages(tmp_path), {"q": "北京的常住人口有多少？"}
    chinese = candidates.Bm25(*asked, language="zh")
    assert mine_one(chinese).negative_ids == ["p1"]
    assert mine_one(chinese).positive_scores[0] > 0
    english = candidates.Bm25(*asked)
    assert mine_one(english).negative_ids == [] and english.version != chinese.version
    with pytest.raises(ValueError, match="expected one of .*'zh'.*found 'chinese'"):
        candidates.Bm25(*asked, language="chinese")


def test_scores_of_positives_are_told_even_where_they_are_not_found(bm25):
    found = mine_one(bm25, positives=(0, 5), depth=2, negatives=1)
    assert found.positive_ids == ["p0", "p5"] and found.positive_scores[1] == 0
    hits = dict(zip(found.negative_ids, found.negative_scores, strict=True))
    assert hits == {"p2": pytest.approx(max(hits.values()))}
    assert 0 < found.positive_scores[0] < hits["p2"]


def test_near_duplicates_of_an_answer_are_passed_over(bm25):
    found = mine_one(bm25, max_overlap=0.9)
    assert "p1" not in found.negative_ids and found.passed_over["near_duplicate"] >= 1


def test_only_as_many_texts_are_looked_at_as_are_needed(bm25, monkeypatch):
    looked = []
    stems = bm25.stems
    monkeypatch.setattr(bm25, "stems", lambda rows: looked.extend(rows) or stems(rows))
    found = mine_one(bm25, negatives=1, max_overlap=0.5)
    hits = next(iter(bm25.search(["q"], [[0]], 10))).rows.tolist()
    last = hits.index(int(found.negative_ids[0][1:]))
    assert {row for row in looked if row != 0} == set(hits[: last + 1]) - {0}
    assert sum(found.passed_over.values()) == last


def test_hits_far_above_the_answer_are_passed_over(bm25):
    found = mine_one(bm25, max_score_ratio=0.9)
    assert {"p1", "p2"}.isdisjoint(found.negative_ids) and "p4" in found.negative_ids
    assert found.passed_over["score"] == 2
    # the answer shares no word with the query: whatever does scores above it
    assert mine_one(bm25, positives=(5,), max_score_ratio=0.9).negative_ids == []


def test_what_answers_no_query_of_the_split_can_be_passed_over(bm25):
    only = settings(only_answers=True)
    (found,) = hard_negatives.mine_negatives(bm25, [("q", [0])], only, answers={0, 3, 4})
    assert set(found.negative_ids) == {"p3", "p4"} and found.passed_over["no_answer"] == 2
    (everything,) = hard_negatives.mine_negatives(bm25, [("q", [0])], settings(), answers={0})
    assert len(everything.negative_ids) == 4


def test_a_ratio_of_a_score_that_is_not_above_zero_is_the_score_itself():
    assert settings(max_score_ratio=0.5).limit(2.0) == 1.0
    assert settings(max_score_ratio=0.5).limit(-2.0) == -2.0
    assert settings(max_score_ratio=0.5).limit(0.0) == 0.0
    assert settings(max_score_ratio=0.0).limit(-2.0) == float("inf")


def test_given_negatives_come_first_and_once(bm25):
    everything = mine_one(bm25)
    (found,) = hard_negatives.mine_negatives(bm25, [("q", [0])], settings(), given={"q": [5, 4]})
    assert found.negative_ids[:2] == ["p5", "p4"] and found.positive_ids == ["p0"]
    rest = [name for name in everything.negative_ids if name not in ("p4", "p5")]
    assert found.negative_ids[2:] == rest
    scores = dict(zip(everything.negative_ids, everything.negative_scores, strict=True))
    assert found.negative_scores[:2] == [0.0, scores["p4"]]
    assert found.positive_scores == everything.positive_scores
    few = settings(negatives=1)
    (found,) = hard_negatives.mine_negatives(bm25, [("q", [0])], few, given={"q": [5, 4]})
    assert found.negative_ids == ["p5"]
    (other,) = hard_negatives.mine_negatives(bm25, [("q", [0])], settings(), given={"x": [5]})
    assert other == everything


def test_a_file_of_negatives_is_taken_over(tmp_path, bm25):
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "read csv file"}\n')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp0\t1\n")
    line = {"query_id": "q", "positive_ids": ["p0"], "negative_ids": ["p0", "p5"]}
    (tmp_path / "given.jsonl").write_text(json.dumps(line) + "\n")
    scores = {"p0": 3.5, "p5": -1.0, "elsewhere": 0.0}
    taught = json.dumps(line | {"teacher_scores": scores}) + "\n"
    (tmp_path / "taught.jsonl").write_text(taught)

    def mined(folder, given, teacher=None):
        mine(str(tmp_path), "train", candidates.Bm25, KEEP_ALL, 10, str(tmp_path / folder),
             given=given, teacher=teacher)  # fmt: skip
        return json.loads((tmp_path / folder / "negatives.jsonl").read_text())

    with_it = mined("with", str(tmp_path / "given.jsonl"))
    assert with_it["negative_ids"] == ["p5", *mined("without", None)["negative_ids"]]
    assert mined("dropped", str(tmp_path / "taught.jsonl")) == with_it
    kept = mined("kept", str(tmp_path / "taught.jsonl"), "kl")
    assert kept == with_it | {"teacher_scores": {"p0": 3.5, "p5": -1.0}}
    with pytest.raises(hard_negatives.MiningError, match="teacher's scores .* found none"):
        mined("none", str(tmp_path / "given.jsonl"), "kl")
    with pytest.raises(ValueError, match="TEACHER: .*found 'kl' without them"):
        mined("alone", None, "kl")


def test_the_first_hits_can_be_skipped(bm25):
    everything, rest = mine_one(bm25), mine_one(bm25, skip_top=3)
    assert len(rest.negative_ids) <= 2
    assert rest.negative_ids == [n for n in everything.negative_ids if n in rest.negative_ids]
    assert mine_one(bm25, negatives=1).negative_ids == everything.negative_ids[:1]


def test_settings_out_of_range_are_refused():
    for change in (
        {"negatives": 0},
        {"negatives": 11},
        {"skip_top": -1},
        {"skip_top": 6},
        {"max_overlap": 0.0},
        {"max_overlap": 1.1},
        {"max_score_ratio": -1.0},
        {"max_score_ratio": float("nan")},
    ):
        with pytest.raises(ValueError, match="expected"):
            settings(**change)


def run(corpus: str, folder: Path, split: str = "test", part_size: int = 1, **changes) -> None:
    assert mine(corpus, split, candidates.Bm25, settings(**changes), part_size, str(folder)) == {
        "negatives": "negatives.jsonl"
    }


def test_the_stage_writes_one_line_a_query(tmp_path, capsys):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    run(corpus, tmp_path / "out")
    text = (tmp_path / "out" / "negatives.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["query_id"] for line in lines] == ["q0", "q1"]
    assert set(lines[0]) == {field.name for field in dataclasses.fields(hard_negatives.Mined)}
    assert lines[0]["negative_ids"] == ["p3"] and lines[1]["negative_ids"] == []
    told = capsys.readouterr().err
    assert "mine: 2 queries, 0.50 negatives each of 5, 1 without any; hits passed over" in told
    assert "positive 2" in told
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "negatives.jsonl",
        "negatives.origin.json",
    ]


def test_some_of_the_queries_spread_over_the_split():
    from t5x_style.mine import _sample

    queries = {f"q{n}": "" for n in range(10)}
    assert list(_sample(queries, 4)) == ["q0", "q2", "q5", "q7"]
    assert _sample(queries, 0) == _sample(queries, 10) == queries
    with pytest.raises(ValueError, match="most_queries: expected 0, for all, or more, found -1"):
        _sample(queries, -1)


def test_the_origin_says_what_was_mined_from(tmp_path):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    run(corpus, tmp_path / "out")
    found = provenance.read(tmp_path / "out" / "negatives.jsonl")
    assert found.made_by == "bm25"
    assert found.settings == {"split": "test", **dataclasses.asdict(KEEP_ALL)}
    assert list(found.passages) == [row[0] for row in helpers.PASSAGES]
    assert list(found.queries) == ["q0", "q1"]
    # sha256 of the UTF-8 text '["csv", "Read and write tabular data in CSV files."]'
    assert found.passages["p0"] == "f90ebb1e32ff7190"
    assert found.queries["q0"] == "aa253038cc6e3922"
    assert provenance.digest("Süß", "ß") == "8b349f85b9e2e918"


def test_a_large_corpus_is_sampled_from_end_to_end(tmp_path):
    lines = [json.dumps({"_id": str(i), "text": f"text {i}"}) + "\n" for i in range(1000)]
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    queries = {f"q{i}": str(i) for i in range(65)}
    provenance.write(tmp_path / "all.jsonl", "bm25", {}, Passages(tmp_path), queries)
    found = provenance.read(tmp_path / "all.jsonl")
    assert len(found.passages) == len(found.queries) == 64
    assert {"0", "999"} < set(found.passages) and {"q0", "q64"} < set(found.queries)


def test_an_origin_that_is_damaged_or_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"negatives\.origin\.json"):
        provenance.read(tmp_path / "negatives.jsonl")
    for text in ("{", "[]", '{"made_by": "bm25"}'):
        (tmp_path / "negatives.origin.json").write_text(text)
        with pytest.raises(ValueError, match=r"negatives\.origin\.json: expected made_by"):
            provenance.read(tmp_path / "negatives.jsonl")


def test_a_stopped_run_continues_and_ends_with_the_same_bytes(tmp_path, monkeypatch, capsys):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    names = ("negatives.jsonl", "negatives.origin.json")
    run(corpus, tmp_path / "whole")
    searched = []
    search = candidates.Bm25.search

    def stopped(self, queries, positives, depth):
        if searched and not resumed:
            raise KeyboardInterrupt
        searched.extend(queries)
        return search(self, queries, positives, depth)

    resumed = False
    monkeypatch.setattr(candidates.Bm25, "search", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(corpus, tmp_path / "stopped")
    assert [path.name for path in (tmp_path / "stopped").iterdir()] == ["parts"]
    resumed = True
    capsys.readouterr()
    run(corpus, tmp_path / "stopped")
    assert searched == ["q0", "q1"] and "1 of 2 parts are there" in capsys.readouterr().err
    for name in names:
        assert (tmp_path / "stopped" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes()


@pytest.mark.parametrize(
    "change",
    [{"skip_top": 1}, {"max_score_ratio": 2.0}, {"corpus": "csv files"}, {"queries": "csv?"}],
)
def test_parts_of_other_settings_or_texts_are_not_mixed_in(tmp_path, monkeypatch, capsys, change):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    with monkeypatch.context() as patch:
        patch.setattr("t5x_style.retrieval.resumable_parts.ResumableParts.join", lambda *_: None)
        run(corpus, tmp_path / "out")
    for name in {"corpus", "queries"} & set(change):
        path = tmp_path / "corpus" / f"{name}.jsonl"
        old = {"corpus": "CSV files", "queries": "how to"}[name]
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, change.pop(name)))
    run(corpus, tmp_path / "out", **change)
    assert "removed: of other settings or other inputs" in capsys.readouterr().err
    run(corpus, tmp_path / "anew", **change)
    found, expected = (tmp_path / name / "negatives.jsonl" for name in ("out", "anew"))
    assert found.read_bytes() == expected.read_bytes()


def test_a_split_in_which_no_query_keeps_a_negative_is_an_error(tmp_path):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    with pytest.raises(
        hard_negatives.MiningError, match="not one of 2 queries.*loosen the filter.*skip_to"
    ):
        run(corpus, tmp_path / "out", skip_top=5)
    assert not (tmp_path / "out" / "negatives.jsonl").exists()


def test_passages_are_read_by_row_and_id(tmp_path):
    passages = Passages(helpers.write_corpus(tmp_path / "corpus"))
    assert passages.ids == ["p0", "p1", "p2", "p3", "p4"] and len(passages) == 5
    found = passages.passage(passages.row("p3"))
    assert (found.id, found.title, found.source) == ("p3", "csv reader", "python/csv")
    assert found.content == "csv reader\nReading CSV rows one after the other."
    assert [one.id for one in passages] == passages.ids
    with pytest.raises(KeyError, match="'p9'"):
        passages.row("p9")


@pytest.mark.parametrize(
    "line,message",
    [
        (b'{"_id": "p9", "text": \n', r"corpus\.jsonl:6: not JSON"),
        (b'\xff\xfe{"_id": "p9"}\n', r"corpus\.jsonl:6: not JSON in UTF-8"),
        (b'["p9"]\n', r"corpus\.jsonl:6: expected an object, found list"),
        (b'{"_id": 9, "text": "x"}\n', r"corpus\.jsonl:6: expected a string in '_id', found 9"),
        (b'{"_id": "p9"}\n', r"corpus\.jsonl:6: expected a string in 'text', found None"),
        (b'{"_id": "p0", "text": "x"}\n', r"the id 'p0' occurs more than once"),
    ],
)
def test_bad_passages_are_named(tmp_path, line, message):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    with open(tmp_path / "corpus" / "corpus.jsonl", "ab") as file:
        file.write(line)
    with pytest.raises(CollectionError, match=message):
        Passages(corpus)


def test_an_empty_or_missing_corpus_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="corpus.jsonl"):
        Passages(tmp_path)
    (tmp_path / "corpus.jsonl").write_text("\n")
    with pytest.raises(CollectionError, match="holds no passages"):
        Passages(tmp_path)


@pytest.mark.parametrize(
    "line,message",
    [
        ("q0\tp99\t1\n", r"test\.tsv:4: no passage has the id 'p99'"),
        ("q99\tp0\t1\n", r"test\.tsv:4: no query has the id 'q99'"),
        ("q0 p0 1\n", r"test\.tsv:4: expected 'query-id<tab>"),
        ("q0\tp1\thigh\n", r"test\.tsv:4: expected"),
        ("q0\tp0\t1\n", r"test\.tsv:4: 'q0', 'p0' are judged twice"),
        ("q2\tp0\t0\n", "'q2' has no relevant passage"),
    ],
)
def test_bad_judgements_are_named(tmp_path, line, message):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    with open(tmp_path / "corpus" / "qrels" / "test.tsv", "a") as file:
        file.write(line)
    with pytest.raises(CollectionError, match=message):
        read_qrels(corpus, "test", read_queries(corpus), Passages(corpus))


def test_a_first_line_that_is_no_header_is_read(tmp_path):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    path = tmp_path / "corpus" / "qrels" / "test.tsv"
    queries, passages = read_queries(corpus), Passages(corpus)
    expected = read_qrels(corpus, "test", queries, passages)
    path.write_text(path.read_text().split("\n", 1)[1])
    assert read_qrels(corpus, "test", queries, passages) == expected
    path.write_text("query\tpassage\tscore\n" + path.read_text())
    with pytest.raises(CollectionError, match=r"test\.tsv:1: expected"):
        read_qrels(corpus, "test", queries, passages)


def test_judgements_of_a_split_that_is_not_there(tmp_path):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    with pytest.raises(FileNotFoundError, match=r"'qrels/dev.tsv', 'qrels/test.tsv'"):
        read_qrels(corpus, "train", {}, {})
    (tmp_path / "corpus" / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(CollectionError, match="no judgements"):
        read_qrels(corpus, "train", {}, {})
