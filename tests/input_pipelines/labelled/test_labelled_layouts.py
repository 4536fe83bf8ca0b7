"""Every layout is read from files as its library writes them, and the same content is the same."""

import csv
import json
from pathlib import Path

import pytest

from input_pipelines.labelled import understanding
from input_pipelines.labelled.understanding import Read
from input_pipelines.sources.text_sources import BadRecords, Record
from tests.input_pipelines.labelled import layout_files as files


def read(path: Path, **settings: object) -> tuple[Read, list[Record]]:
    """What is read, and the passages."""
    passages: list[Record] = []
    found = understanding.read(str(path), BadRecords(0), passages.append, **settings)
    return found, passages


def content(path: Path, **settings: object) -> dict[str, tuple[set[str], set[str]]]:
    """Text of a query -> texts of its positives and of its negatives."""
    found, passages = read(path, **settings)
    texts = {one.id: one.text for one in passages}
    assert len(texts) == len(passages)
    return {
        found.labelled.queries[query]: (
            {texts[name] for name in judged},
            {texts[name] for name in found.relevance.negatives[query]},
        )
        for query, judged in found.relevance.relevant.items()
    }


EXPECTED = {q: ({p}, set(ns)) for q, p, ns in files.ITEMS}


@pytest.mark.parametrize("name", files.WRITERS)
def test_the_same_content_is_the_same_in_all_layouts(name: str, tmp_path: Path) -> None:
    path = files.WRITERS[name](tmp_path)
    assert content(path) == EXPECTED
    found, passages = read(path)
    assert {one.text for one in passages} == {t for _, p, ns in files.ITEMS for t in (p, *ns)}
    assert len(passages) == found.understood.passages == 8  # of 12 in the rows
    assert (found.understood.queries, found.understood.relevant, found.understood.negatives) == (
        4,
        4,
        8,
    )


def test_ids_are_those_of_the_data_or_hashes_of_the_texts(tmp_path: Path) -> None:
    by_hash, hashed = read(files.lines(tmp_path / "a.jsonl", files.tuples()))
    again, others = read(files.table(tmp_path / "b.csv", files.triplets()))
    assert {one.id for one in hashed} == {one.id for one in others}
    assert list(by_hash.labelled.queries) == list(again.labelled.queries)
    given, passages = read(files.lines(tmp_path / "c.jsonl", files.tevatron()))
    assert list(given.labelled.queries) == ["0", "1", "2", "3"]
    assert {one.id for one in passages} == {f"d{number}" for number in range(8)}
    rows = [
        {"qid": f"x{i}", "pid": f"y{i}", "query": f"q{i}", "passage": f"p{i}"} for i in range(3)
    ]
    found, passages = read(files.table(tmp_path / "d.csv", rows))
    assert list(found.labelled.queries) == ["x0", "x1", "x2"]
    assert [one.id for one in passages] == ["y0", "y1", "y2"]


@pytest.mark.parametrize(
    "names",
    [
        ("train.csv", "dev.csv", "test.csv"),
        ("train-00000-of-00001.csv", "validation-00000-of-00001.csv", "test-00000-of-00001.csv"),
    ],
)
def test_a_folder_with_a_file_a_split(names: tuple[str, ...], tmp_path: Path) -> None:
    for name, item in zip(names, files.ITEMS, strict=False):
        files.table(tmp_path / name, files.tuples([item]))
    (tmp_path / "README.md").write_text("about the data")
    found, _ = read(tmp_path)
    splits = found.labelled.splits
    assert {text: list(splits[name]) for name, text in found.labelled.queries.items()} == {
        "who wrote it?": ["train"],
        "where is the sea?": ["dev"],
        "wie groß?": ["test"],
    }


def test_a_dataset_dict_and_a_folder_of_the_hub(tmp_path: Path) -> None:
    splits = {"train": files.tuples(files.ITEMS[:2]), "validation": files.tuples(files.ITEMS[2:])}
    saved, _ = read(files.dataset_dict(tmp_path / "saved", splits))
    (tmp_path / "hub/data").mkdir(parents=True)
    for name, rows in splits.items():
        files.parquet(tmp_path / f"hub/data/{name}-00000-of-00001.parquet", rows)
    fetched, _ = read(tmp_path / "hub")
    assert saved.understood.rows == fetched.understood.rows == {"train": 2, "dev": 2}
    assert saved.labelled.labels == fetched.labelled.labels


def test_a_corpus_adds_passages_and_gives_ids(tmp_path: Path) -> None:
    corpus = [
        {"_id": "c1", "title": "Sea", "text": "The sea is in the west."},
        {"_id": "c2", "text": "Nobody asks for this."},
        {"_id": "c3", "text": "Nobody asks for this."},
    ]
    files.lines(tmp_path / "in/train.jsonl", files.tuples())
    files.lines(tmp_path / "in/corpus.jsonl", corpus)
    found, passages = read(tmp_path / "in")
    assert [one.id for one in passages[:3]] == ["c1", "c2", "c3"]
    assert len(passages) == 8 + 2 and passages[0].title == "Sea"
    assert {"c1"} == set(found.relevance.relevant[list(found.labelled.queries)[1]])
    (tmp_path / "in/corpus.jsonl").rename(tmp_path / "elsewhere.jsonl")
    beside, others = read(tmp_path / "in", corpus=str(tmp_path / "elsewhere.jsonl"))
    assert others == passages and beside.labelled == found.labelled


def test_a_teachers_scores(tmp_path: Path) -> None:
    rows = [{**row, "pos_scores": [9], "neg_scores": [1.5, -2]} for row in files.flag_embedding()]
    found, _ = read(files.lines(tmp_path / "a.jsonl", rows))
    first = next(iter(found.labelled.queries))
    assert list(found.labelled.teacher[first].values()) == [9.0, 1.5, -2.0]
    assert found.understood.taught == 4
    same = [{**row, "scores": [9, 1.5, -2]} for row in files.tuples()]
    assert read(files.parquet(tmp_path / "b.parquet", same))[0].labelled.teacher == (
        found.labelled.teacher
    )
    margins = [{**row, "label": 7.5} for row in files.triplets()]
    found, _ = read(files.table(tmp_path / "c.csv", margins))
    assert list(found.labelled.teacher[first].values()) == [0.0, -7.5, -7.5]


def test_tuples_may_lack_their_last_negatives(tmp_path: Path) -> None:
    rows = files.tuples()
    rows[0]["negative_2"] = None
    found = content(files.parquet(tmp_path / "a.parquet", rows))
    assert found == content(files.table(tmp_path / "a.csv", rows))
    assert found["who wrote it?"] == ({"She wrote it, they say."}, {'It rained, "all" day'})


@pytest.mark.parametrize(
    ("scores", "setting", "relevant", "rule"),
    [
        ([1, 0, 2], None, {"p0": 1, "p2": 2}, "labels above 0"),
        ([0.9, 0.2, 0.5], None, {"p0": 1, "p2": 1}, "scores from 0.5"),
        ([0.9, 0.2, 0.5], 0.6, {"p0": 1}, "scores from 0.6"),
        ([-3.5, 8.25, 4.0], 4.0, {"p1": 1, "p2": 1}, "scores from 4"),
        ([True, False, True], None, {"p0": 1, "p2": 1}, "labels above 0"),
    ],
)
def test_scores_of_pairs(
    scores: list[float], setting: float | None, relevant: dict[str, int], rule: str, tmp_path: Path
) -> None:
    rows = [{"score": s, "query": f"q{i % 2}", "doc": f"p{i}"} for i, s in enumerate(scores)]
    found, passages = read(files.lines(tmp_path / "a.jsonl", rows), positive_from=setting)
    texts = {one.id: one.text for one in passages}
    degrees = {
        texts[name]: degree
        for judged in found.relevance.relevant.values()
        for name, degree in judged.items()
    }
    assert (degrees, found.understood.rule) == (relevant, rule)
    assert found.understood.unanswered == 2 - len(found.relevance.relevant)


def test_an_example_calls_positive_what_counts_as_relevant(tmp_path: Path) -> None:
    scores = [("q1", "p1", 0.2), ("q2", "p2", 0.9), ("q3", "p3", 1.0), ("q2", "p4", 0.1)]
    rows = [{"query": q, "doc": p, "score": s} for q, p, s in scores]
    found, _ = read(files.lines(tmp_path / "a.jsonl", rows))
    lines = found.understood.text().splitlines()
    first = lines.index("1. query     q1")
    assert lines[first:] == [
        "1. query     q1", "   negative  p1 (score 0.2)",
        "2. query     q2", "   positive  p2 (score 0.9)",
        "3. query     q3", "   positive  p3",
    ]  # fmt: skip


def test_order_decides_and_a_mapping_overrides_it(tmp_path: Path) -> None:
    rows = [{"a": f"short {i}", "b": f"a longer text {i}", "c": f"x{i}"} for i in range(3)]
    path = files.table(tmp_path / "two.csv", [{k: row[k] for k in "ab"} for row in rows])
    assert content(path)["short 1"] == ({"a longer text 1"}, set())
    path = files.table(tmp_path / "three.csv", rows)
    columns = {"query": "c", "positive": "a", "negative": "b"}
    assert content(path, columns=columns)["x1"] == ({"short 1"}, {"a longer text 1"})


def test_a_csv_file_with_line_breaks_quotes_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([("query", "passage"), ("q 1", 'a\nb "c", d'), ("q 2", "e")])
    assert content(path) == {"q 1": ({'a\nb "c", d'}, set()), "q 2": ({"e"}, set())}


def test_the_summary_shows_three_examples_a_line_each(tmp_path: Path) -> None:
    long = [(q, p + " and more" * 40, [*ns, "x", "y"]) for q, p, ns in files.ITEMS]
    found, _ = read(files.lines(tmp_path / "a.jsonl", files.flag_embedding(long)))
    text = found.understood.text().splitlines()
    assert text[0].endswith("FlagEmbedding's lines (query = query, positive = pos, negative = neg)")
    assert text[1] == (
        "rows: undivided 4; 4 queries, 11 passages, 4 relevant pairs (labels above 0), 16 negatives"
    )
    assert sum(line[:2] in ("1.", "2.", "3.") for line in text) == 3
    assert all(len(line) <= 120 for line in text[2:])
    assert text[2:7] == [
        "1. query     who wrote it?",
        f"   positive  {long[0][1][:99]}…",
        '   negative  It rained, "all" day',
        "   negative  No one knows.",
        "             and 2 more",
    ]
    json.dumps(found.understood.as_dict())


def test_examples_of_a_beir_folder_have_texts(tmp_path: Path) -> None:
    found, _ = read(files.beir(tmp_path / "in"))
    assert [(one.query, one.positive) for one in found.understood.examples] == [
        (q, p) for q, p, _ in files.ITEMS[:3]
    ]
