"""Collections for open question answering: paragraphs among articles, questions of many sets."""

import dataclasses
import json
from pathlib import Path

import pytest

from input_pipelines.gather import question_collection
from input_pipelines.sources import beir, qed, question_sets, squad
from input_pipelines.sources.text_sources import BadRecords, Jsonl, SourceError, UniqueIds

SPLITS = question_sets.SPLITS


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def seen():
    return question_sets.Seen(UniqueIds(), UniqueIds())


def squad_row(title, para):
    question = {"id": f"{title}-{para}", "question": f"Who is {title} {para}?"}
    qas = [question | {"answers": [{"text": f"{title} says"}]}]
    return {"title": title, "para": para, "context": f"{title} says {para}.", "qas": qas}


def qed_row(number, paragraph, answers, title="A title"):
    row = {"id": str(number), "title": title, "question": f"what is {number}", "url": ""}
    return row | {"paragraph": paragraph, "answers": answers}


@pytest.fixture
def sets(tmp_path):
    """SQuAD of four articles and QED of three titles, of which one is in the test, too."""
    squads = [squad_row(f"S{a}", p) for a in range(4) for p in range(2)]
    train = [
        qed_row(1, "One and two .", [["One", "two"], ["One"]]),
        qed_row(2, "One and two .", [["two"]]),
        qed_row(3, "Three .", [[""]], title="Other"),
        qed_row(4, "Four .", [["Four"]], title="Third"),
    ]
    test = [qed_row(5, "Five .", [["Five"]])]
    shared = {"share": 1.0, "dev_share": 0.25, "seed": 0}
    return [
        question_sets.GoldSet(
            "squad",
            squad.paragraphs,
            [write(tmp_path / "squad.jsonl", squads)],
            [write(tmp_path / "squad_test.jsonl", [squad_row("T", 0)])],
            **shared,
        ),
        question_sets.GoldSet(
            "qed_nq",
            qed.paragraphs,
            [write(tmp_path / "qed.jsonl", train)],
            [write(tmp_path / "qed_test.jsonl", test)],
            **shared,
            disjoint=False,
        ),
    ]


@pytest.fixture
def articles(tmp_path):
    rows = [{"id": n, "title": f"Article {n}", "text": f"Text {n}."} for n in range(40)]
    path = write(tmp_path / "articles.jsonl", rows)
    return Jsonl([path], ["id"], "title", "text", "", 1000)


def make(tmp_path, sets, articles, **changes):
    made = question_collection.make_collection(sets, articles, 0, str(tmp_path / "out"), **changes)
    return str(tmp_path / "out" / made["corpus"])


def test_paragraphs_stand_among_articles(tmp_path, sets, articles):
    folder = make(tmp_path, sets, articles)
    passages = read(f"{folder}/corpus.jsonl")
    assert len(passages) == 9 + 4 + 40, "rows of QED with one paragraph share it"
    names = [row["_id"] for row in passages]
    assert names[0] == "squad/S0/0" and names[-1] == "articles/39"
    beir.check_qrels(folder, question_sets.SPLITS, 1000, BadRecords(0))
    queries = {row["_id"]: row for row in read(f"{folder}/queries.jsonl")}
    assert queries["qed_nq/1"]["answers"] == ["One", "two"]
    assert "answers" not in queries["qed_nq/3"], "an empty answer is none"
    test = beir.read_qrels(folder, "test", BadRecords(0))
    assert {row.query for row in test} == {"squad/T-0", "qed_nq/5"}
    dev = {row.query for row in beir.read_qrels(folder, "dev", BadRecords(0))}
    assert any(q.startswith("squad/") for q in dev) and any(q.startswith("qed_nq/") for q in dev)


def test_a_share_of_the_articles_is_read(tmp_path, sets, articles):
    folder = make(tmp_path, sets, articles, share=0.5)
    kept = [row["_id"] for row in read(f"{folder}/corpus.jsonl") if row["_id"][:8] == "articles"]
    assert 8 < len(kept) < 32
    with pytest.raises(ValueError, match="share: expected 0 to 1, found 2"):
        make(tmp_path, sets, articles, share=2)


def test_sets_have_names_of_their_own(tmp_path, sets, articles):
    for wrong in ([], [sets[0], sets[0]]):
        with pytest.raises(ValueError, match="sets: expected one or more, of distinct names"):
            make(tmp_path, wrong, None)
    named = dataclasses.replace(sets[0], name="articles")
    with pytest.raises(ValueError, match="distinct names, found .'articles', 'articles'."):
        make(tmp_path, [named], articles)
    with pytest.raises(ValueError, match="names of letters, digits and _, found 'a/b'"):
        make(tmp_path, [dataclasses.replace(sets[0], name="a/b"), sets[1]], None)


@pytest.mark.parametrize("official", [False, True])
def test_an_id_that_is_given_twice_is_malformed_in_whichever_file(tmp_path, sets, official):
    """Neither of a paragraph, whose text would be lost, nor of a question."""
    one, again = squad_row("T", 0), squad_row("T", 0)
    other = squad_row("U", 7)
    other["qas"][0]["id"] = "S0-0"  # of the training file
    rows = [one, again | {"context": "Another text."}, other]
    if official:
        data = [
            {"title": row["title"], "paragraphs": [{k: row[k] for k in ("context", "qas")}]}
            for row in rows
        ]
        path = str(tmp_path / "twice.json")
        Path(path).write_text(json.dumps({"data": data}))
    else:
        path = write(tmp_path / "twice.jsonl", rows)
    bad = BadRecords(2)
    read = dataclasses.replace(sets[0], test=[path]).read(bad)
    assert dict(bad.counts) == {"duplicate_id": 2}
    assert "'T/0' was given in" in bad.examples[0] and "'S0-0' was already" in bad.examples[1]
    tested = [paragraph for split, paragraph in read if split == "test"]
    assert [len(paragraph.questions) for paragraph in tested] == [1, 0]
    assert tested[0].passage.text == "T says 0."


def test_a_question_that_two_paragraphs_of_an_official_file_have_is_malformed(tmp_path):
    question = squad_row("T", 0)["qas"]
    data = [{"title": "T", "paragraphs": [{"context": c, "qas": question} for c in "ab"]}]
    (tmp_path / "two.json").write_text(json.dumps({"data": data}))
    bad = BadRecords(1)
    found = list(squad.paragraphs([str(tmp_path / "two.json")], seen(), bad))
    assert [len(one.questions) for one in found] == [1, 0]
    assert dict(bad.counts) == {"duplicate_id": 1}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (qed_row(9, "Nine .", ["Nine"]), "bad_answer"),
        (qed_row(9, "Nine .", [[9]]), "bad_answer"),
        (qed_row(9, "Nine .", [["the"]]), "empty_answer"),
        (qed_row(1, "Again .", [["Again"]]), "duplicate_id"),
        ({"id": "9", "title": "t", "question": "q", "answers": [["a"]]}, "missing_field"),
        (qed_row(9, "Nine .", [["Nine"]]) | {"question": " "}, "empty_question"),
    ],
)
def test_malformed_rows_of_qed_are_counted(tmp_path, row, reason):
    path = write(tmp_path / "bad.jsonl", [qed_row(1, "One .", [["One"]]), row])
    bad = BadRecords(1)
    assert len(list(qed.paragraphs([path], seen(), bad))) == 1
    assert dict(bad.counts) == {reason: 1} and "bad.jsonl:2" in bad.examples[0]
    with pytest.raises(SourceError, match=r"bad.jsonl:2"):
        list(qed.paragraphs([path], seen(), BadRecords(0)))


# --- questions of many sets -----------------------------------------------------------------------


def asked_set(tmp_path, **changes):
    train = [{"id": f"a{n}", "question": f"how many {n}", "answers": [str(n)]} for n in range(9)]
    train.append({"id": "same", "question": "How many is it ?", "answers": ["1"]})
    train += [
        {"id": f"S{n}", "question": f"who is S{n} 1", "answers": ["1"]} for n in range(4)
    ]  # one article of SQuAD develops
    test = [
        {"_id": "t0", "text": "How many is it?", "answers": [r"\d+"], "answer_type": "regex"},
        {"_id": "t1", "text": "How?", "answers": ["so"]},
    ]
    files = {
        "train": [write(tmp_path / "asked.jsonl", train)],
        "test": [write(tmp_path / "asked_test.jsonl", test)],
    }
    return question_sets.AskedSet("asked", **files | changes)


def gather(tmp_path, sets, asked, bad=0):
    folder = make(tmp_path, sets, None)
    made = question_collection.gather_questions(folder, [asked], bad, str(tmp_path))
    return {name: read(tmp_path / path) for name, path in made.items()}


def test_questions_of_the_test_do_not_train(tmp_path, sets):
    found = gather(tmp_path, sets, asked_set(tmp_path))
    (report,) = found["report"]
    assert report["test"] == {"squad": 1, "qed_nq": 1, "asked": 2}
    assert report["train"]["asked"] == 12 and report["train_asked_elsewhere"] == {"asked": 2}
    assert "asked/same" not in {row["_id"] for row in found["train"]}
    assert report["dev"] == {"squad": 2, "qed_nq": 1} and not report["test_asked_elsewhere"]
    asked = {split: {row["text"].lower().rstrip("?") for row in found[split]} for split in SPLITS}
    assert not asked["train"] & (asked["dev"] | asked["test"])
    rows = {row["_id"]: row for row in found["test"]}
    assert rows["asked/t0"] == {
        "_id": "asked/t0",
        "text": "How many is it?",
        "answers": [r"\d+"],
        "answer_type": "regex",
        "set": "asked",
    }
    assert rows["squad/T-0"]["set"] == "squad" and rows["squad/T-0"]["answers"] == ["T says"]
    assert all(row["_id"] != "qed_nq/3" for row in found["train"]), "nothing to learn from"


def test_questions_are_told_apart_by_their_sets(tmp_path, sets):
    for name in ("squad", "two words"):
        with pytest.raises(ValueError, match="sets: expected"):
            gather(tmp_path, sets, dataclasses.replace(asked_set(tmp_path), name=name))
    with pytest.raises(SourceError, match="expected ids with the name of a set and a slash"):
        gather(tmp_path, sets[:1], asked_set(tmp_path))


def test_a_set_may_be_cut(tmp_path):
    whole = asked_set(tmp_path).read(BadRecords(0))
    cut = asked_set(tmp_path, max_questions=3).read(BadRecords(0))
    assert [split for split, _ in whole].count("train") == 14
    assert [split for split, _ in cut] == ["train"] * 3 + ["test"] * 2
    assert cut == asked_set(tmp_path, max_questions=3).read(BadRecords(0))
    assert set(q.id for _, q in cut) < set(q.id for _, q in whole)
    with pytest.raises(ValueError, match="max_questions of at least 0"):
        asked_set(tmp_path, max_questions=-1).read(BadRecords(0))


def test_malformed_questions_are_counted(tmp_path, sets):
    rows = [
        {"id": "x", "question": "one?", "answers": ["1"]},
        {"id": "x", "question": "two?", "answers": ["2"]},
        {"id": "y", "question": "three?", "answers": ["("], "answer_type": "regex"},
    ]
    asked = asked_set(tmp_path, train=[write(tmp_path / "bad.jsonl", rows)])
    with pytest.raises(SourceError, match=r"bad.jsonl:2.*already given in .*bad.jsonl:1"):
        gather(tmp_path, sets, asked)
    found = gather(tmp_path, sets, asked, bad=2)
    assert found["report"][0]["bad_records"] == {"duplicate_id": 1, "bad_regex": 1}
    nothing = asked_set(tmp_path, test=[write(tmp_path / "empty.jsonl", [])])
    with pytest.raises(SourceError, match=r"empty.jsonl: expected questions, found none"):
        gather(tmp_path, sets, nothing)
