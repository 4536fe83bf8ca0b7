"""Mined negatives, and the readers of BEIR collections that mining and evaluation share."""

import json

import pytest

from t5x_style.mine import mine
from t5x_style.retrieval import bm25, mining
from t5x_style.retrieval.passages import (
    CollectionError,
    Passages,
    read_qrels,
    read_queries,
)
from tests import retrieval_helpers as helpers

KEEP_ALL = mining.MiningSettings(
    depth=10, negatives=5, skip_top=0, max_overlap=1.0, max_score_ratio=0.0
)


def settings(**changes) -> mining.MiningSettings:
    import dataclasses

    return dataclasses.replace(KEEP_ALL, **changes)


@pytest.fixture
def index():
    texts = [
        "read a csv file with the reader",  # the answer
        "read a csv file with the reader!",  # the same words
        "csv csv csv read read file reader",  # scores above the answer
        "read the file",
        "csv dialects",
        "networking",
    ]
    return bm25.Bm25Index(texts, [f"p{i}" for i in range(len(texts))])


def mine_one(index, **changes) -> mining.Mined:
    (found,) = mining.mine_negatives(
        index, {"q": "read csv file"}, {"q": {"p0": 1, "p5": 0}}, settings(**changes)
    )
    return found


def test_positives_are_never_negatives(index):
    found = mine_one(index)
    assert found.positive_ids == ["p0"]
    assert set(found.negative_ids) == {"p1", "p2", "p3", "p4"}
    assert found.negative_scores == sorted(found.negative_scores, reverse=True)
    assert found.skipped["positive"] == 1


def test_near_duplicates_of_an_answer_are_passed_over(index):
    found = mine_one(index, max_overlap=0.9)
    assert "p1" not in found.negative_ids and found.skipped["near_duplicate"] >= 1


def test_hits_far_above_the_answer_are_passed_over(index):
    found = mine_one(index, max_score_ratio=0.9)
    assert {"p1", "p2"}.isdisjoint(found.negative_ids) and "p4" in found.negative_ids


def test_the_first_hits_can_be_skipped(index):
    everything, rest = mine_one(index), mine_one(index, skip_top=3)
    assert len(rest.negative_ids) <= 2
    assert rest.negative_ids == [n for n in everything.negative_ids if n in rest.negative_ids]
    assert mine_one(index, negatives=1).negative_ids == everything.negative_ids[:1]


def test_settings_out_of_range_are_refused():
    for change in (
        {"negatives": 0},
        {"skip_top": 10},
        {"max_overlap": 0.0},
        {"max_score_ratio": -1.0},
    ):
        with pytest.raises(ValueError, match="expected"):
            settings(**change)


def test_the_stage_writes_one_line_a_query(tmp_path):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    assert mine(corpus, "test", KEEP_ALL, str(tmp_path / "out")) == {"negatives": "negatives.jsonl"}
    path = tmp_path / "out" / "negatives.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["query_id"] for line in lines] == ["q0", "q1"]
    assert set(lines[0]) == {"query_id", "positive_ids", "negative_ids", "negative_scores"}
    assert lines[0]["negative_ids"] == ["p3"]
    assert mining.read_negatives(path) == {"q0": ["p3"], "q1": []}
    path.write_text(path.read_text() + '{"query_id": 3\n')
    with pytest.raises(ValueError, match=r"negatives\.jsonl:3"):
        mining.read_negatives(path)


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
