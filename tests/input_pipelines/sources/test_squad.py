"""SQuAD's files as a retrieval collection."""

import gzip
import json
from pathlib import Path

import pytest

from input_pipelines.gather import question_collection
from input_pipelines.sources import beir, question_sets, squad
from input_pipelines.sources.text_sources import BadRecords, SourceError


def paragraph(title, para, questions=2):
    qas = [{"id": f"{title}-{para}-{q}", "question": f"What is {q}?"} for q in range(questions)]
    return {"title": title, "para": para, "context": f"{title} says {para}.", "qas": qas}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def files(tmp_path):
    train = [paragraph(f"Article_{a}", p) for a in range(10) for p in range(3)]
    test = [paragraph("Test_article", p) for p in range(2)]
    return (
        write_lines(tmp_path / "train.jsonl", train),
        write_lines(tmp_path / "test.jsonl", test),
    )


def make(tmp_path, train, test, dev_share=0.2, bad=0, share=1.0):
    files = {"train": [train], "test": [test]}
    gold = question_sets.GoldSet(
        "squad", squad.paragraphs, **files, share=share, dev_share=dev_share, seed=0
    )
    question_collection.make_collection([gold], None, bad, str(tmp_path / "out"))
    return str(tmp_path / "out/corpus")


def test_every_paragraph_is_a_passage_and_articles_are_held_out_whole(tmp_path, files):
    folder = make(tmp_path, *files)
    records = list(beir.BeirCorpus(folder, 1000).records(BadRecords(0)))
    assert len(records) == 32
    assert records[0].id == "Article_0/0" and records[0].title == "Article 0"
    qrels = {s: beir.read_qrels(folder, s, BadRecords(0)) for s in question_sets.SPLITS}
    assert {s: len(rows) for s, rows in qrels.items()} == {"train": 48, "dev": 12, "test": 4}
    articles = {s: {row.passage.split("/")[0] for row in rows} for s, rows in qrels.items()}
    assert len(articles["dev"]) == 2
    assert not articles["dev"] & articles["train"]
    beir.check_qrels(folder, question_sets.SPLITS, 1000, BadRecords(0))


def test_a_share_of_the_articles_is_read_whole(tmp_path, files):
    folder = make(tmp_path, *files, share=0.5)
    records = list(beir.BeirCorpus(folder, 1000).records(BadRecords(0)))
    articles = [record.id.split("/")[0] for record in records]
    assert len(articles) == 5 * 3 + 2 and len(set(articles)) == 6
    qrels = {s: beir.read_qrels(folder, s, BadRecords(0)) for s in question_sets.SPLITS}
    assert {s: len(rows) for s, rows in qrels.items()} == {"train": 24, "dev": 6, "test": 4}
    beir.check_qrels(folder, question_sets.SPLITS, 1000, BadRecords(0))


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_outside_its_bounds_is_refused(tmp_path, files, share):
    with pytest.raises(ValueError, match="share: expected above 0 and at most 1"):
        make(tmp_path, *files, share=share)


def test_the_official_form_gives_the_same_collection(tmp_path, files):
    articles: dict = {}
    for line in Path(files[0]).read_text().splitlines():
        row = json.loads(line)
        articles.setdefault(row["title"], []).append({k: row[k] for k in ("context", "qas")})
    data = [{"title": t, "paragraphs": p} for t, p in articles.items()]
    with gzip.open(tmp_path / "train.json.gz", "wt") as file:
        json.dump({"version": "1.1", "data": data}, file)
    (tmp_path / "a").mkdir()
    one = make(tmp_path / "a", *files)
    other = make(tmp_path, str(tmp_path / "train.json.gz"), files[1])
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/dev.tsv"):
        assert Path(one, name).read_text() == Path(other, name).read_text()


def test_an_article_in_both_files_is_refused(tmp_path, files):
    with pytest.raises(SourceError, match="Article_0"):
        make(tmp_path, files[0], files[0])


def test_malformed_paragraphs_and_questions_are_counted(tmp_path, files):
    broken = paragraph("Broken", 0)
    broken["qas"][0]["question"] = "  "
    broken["qas"].append({"id": "Broken-0-1", "question": "Again?"})
    rows = [json.loads(line) for line in Path(files[0]).read_text().splitlines()] + [
        broken,
        {"title": "No", "para": 1},
    ]
    path = write_lines(tmp_path / "more.jsonl", rows)
    with pytest.raises(SourceError, match="more.jsonl:31.*question"):
        make(tmp_path, path, files[1])
    folder = make(tmp_path, path, files[1], bad=3)
    asked = Path(folder, "queries.jsonl").read_text().splitlines()
    assert len(asked) == 60 + 4 + 1


@pytest.mark.parametrize("share", [-0.1, 1.0, 0.99])
def test_a_share_that_leaves_nothing_is_refused(tmp_path, files, share):
    with pytest.raises(ValueError, match="dev_share"):
        make(tmp_path, *files, dev_share=share)


def test_another_form_of_json_is_named(tmp_path, files):
    (tmp_path / "wrong.json").write_text('{"rows": []}')
    with pytest.raises(SourceError, match="SQuAD's own form"):
        make(tmp_path, str(tmp_path / "wrong.json"), files[1])


def test_questions_that_no_paragraph_answers_are_left_out(tmp_path, files):
    row = paragraph("Test_article", 9, questions=3)
    row["qas"][1]["is_impossible"] = True
    folder = make(tmp_path, files[0], write_lines(tmp_path / "two.jsonl", [row]))
    judged = Path(folder, "qrels/test.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[0] for line in judged] == ["Test_article-9-0", "Test_article-9-2"]
