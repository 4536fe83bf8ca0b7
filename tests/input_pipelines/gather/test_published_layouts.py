"""MIRACL, MLDR and NarrativeQA as published, by the shipped gin files, as BEIR folders."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from input_pipelines.gather.narrative_qa import Asked, Questions, Stories, story_of
from input_pipelines.sources.listed_positives import ListedPositives
from input_pipelines.sources.text_sources import BadRecords, SourceError
from t5x_style.retrieval import beir_collection

REPOSITORY = Path(__file__).resolve().parents[3]


def stage(name: str, folder: Path, **macros: Any) -> Path:
    """Runs a collection's stage as a user would; where the BEIR folder is."""
    command = [sys.executable, "-m", "t5x_style.stage", f"--gin.MODEL_DIR={folder}"]
    command += [f"--gin_file=gin_configs/runs/collections/{name}.gin"]
    command += [f"--gin.{macro}={value}" for macro, value in macros.items()]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "corpus"


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return path


def read(corpus: Path) -> tuple[list[dict], dict[str, str]]:
    passages = [json.loads(line) for line in (corpus / "corpus.jsonl").open(encoding="utf-8")]
    asked = [json.loads(line) for line in (corpus / "queries.jsonl").open(encoding="utf-8")]
    return passages, {row["_id"]: row["text"] for row in asked}


def qrels_of(corpus: Path, split: str) -> dict[str, dict[str, int]]:
    passages, queries = read(corpus)
    names = {row["_id"] for row in passages}
    return beir_collection.read_qrels(str(corpus), split, set(queries), names)


def test_miracl(tmp_path: Path) -> None:
    docs = [
        {"docid": f"{n}#{n % 2}", "title": f"Kichwa {n}", "text": f"maandishi {n}"}
        for n in range(4)
    ]
    for number in range(2):
        jsonl(tmp_path / f"docs/docs-{number}.jsonl.gz", docs[2 * number : 2 * number + 2])
    topics = tmp_path / "topics.tsv"
    topics.write_text("q1\tswali la kwanza\nq2\tswali la pili\n", encoding="utf-8")
    judged = tmp_path / "qrels.tsv"
    judged.write_text("q1\tQ0\t2#0\t1\nq1\tQ0\t1#1\t0\nq2\tQ0\t3#1\t1\n")
    corpus = stage(
        "miracl", tmp_path / "out", COLLECTION=tmp_path / "docs", TEST_QUERIES=topics,
        TEST_QRELS=judged,
    )  # fmt: skip
    passages, queries = read(corpus)
    assert [row["_id"] for row in passages] == ["0#0", "1#1", "2#0", "3#1"]
    assert (passages[2]["title"], passages[2]["text"]) == ("Kichwa 2", "maandishi 2")
    assert queries == {"q1": "swali la kwanza", "q2": "swali la pili"}
    qrels = qrels_of(corpus, "test")
    assert qrels["q1"] == {"2#0": 1, "1#1": 0} and qrels["q2"] == {"3#1": 1}


def mldr_row(number: int, *answers: str) -> dict:
    return {
        "query_id": f"q-{number}",
        "query": f"question {number}",
        "positive_passages": [{"docid": name, "text": "a long text"} for name in answers],
        "negative_passages": [{"docid": "doc-0", "text": "another"}],
    }


def test_mldr(tmp_path: Path) -> None:
    docs = [{"docid": f"doc-{n}", "text": f"long document {n} " * 400} for n in range(4)]
    macros = {
        "COLLECTION": jsonl(tmp_path / "corpus.jsonl.gz", docs),
        "DEVELOPMENT_QUERIES": jsonl(tmp_path / "dev.jsonl.gz", [mldr_row(1, "doc-1")]),
        "TEST_QUERIES": jsonl(
            tmp_path / "test.jsonl.gz", [mldr_row(2, "doc-2", "doc-3"), mldr_row(3, "doc-1")]
        ),
    }
    corpus = stage("mldr", tmp_path / "out", **macros)
    passages, queries = read(corpus)
    assert len(passages) == 4 and passages[3]["text"].strip() == docs[3]["text"].strip()
    assert queries == {f"q-{n}": f"question {n}" for n in (1, 2, 3)}
    assert qrels_of(corpus, "dev") == {"q-1": {"doc-1": 1}}
    expected = {"q-2": {"doc-2": 1, "doc-3": 1}, "q-3": {"doc-1": 1}}
    assert qrels_of(corpus, "test") == expected


def test_lines_without_passages_are_reported(tmp_path: Path) -> None:
    rows = [mldr_row(1, "a"), {"query_id": "q-2", "positive_passages": "a"}, {"query": "no id"}]
    bad = BadRecords(5)
    found = list(ListedPositives(str(jsonl(tmp_path / "dev.jsonl.gz", rows))).judgements(bad))
    assert [one[:3] for one in found] == [("q-1", "a", 1)]
    assert bad.counts == {"wrong_type": 1, "missing_field": 1}


@pytest.fixture
def narrative(tmp_path: Path) -> Path:
    folder = tmp_path / "narrative"
    (folder / "tmp").mkdir(parents=True)
    (folder / "documents.csv").write_text(
        "document_id,set,kind,story_url,story_file_size,wiki_url,wiki_title,story_word_count,"
        "story_start,story_end\n"
        "ab,test,gutenberg,http://x,9,http://y,Emma,5,Produced by Nick,new eBooks .\n"
        "cd,test,movie,http://x,9,http://y,Jaws,5,if ( window,FADE OUT .\n"
        'ef,train,movie,http://x,9,http://y,"One, Two",5,"Crouching Tiger ,",THE END\n'
    )
    (folder / "qaps.csv").write_text(
        "document_id,set,question,answer1,answer2\n"
        'ab,test,Who is Emma?,A woman,She\nab,test,"What, then?",Nothing,-\n'
        "cd,test,Who is eaten?,Some,Many\nef,train,Why?,So,-\n"
    )
    for name in ("ab", "ef"):
        (folder / f"tmp/{name}.content").write_text(f"The story of {name}.\n" * 50)
    return folder


def test_narrative_qa(narrative: Path, tmp_path: Path) -> None:
    (narrative / "tmp/cd.content").write_text("A shark.")
    corpus = stage("narrative_qa", tmp_path / "out", COLLECTION=narrative)
    passages, queries = read(corpus)
    assert [(row["_id"], row["title"]) for row in passages] == [("ab", "Emma"), ("cd", "Jaws")]
    assert queries["ab-2"] == "What, then?" and list(queries) == ["ab-1", "ab-2", "cd-1"]
    qrels = qrels_of(corpus, "test")
    assert qrels == {"ab-1": {"ab": 1}, "ab-2": {"ab": 1}, "cd-1": {"cd": 1}}


def test_a_story_is_what_is_between_its_marks(narrative: Path, tmp_path: Path) -> None:
    text = "Produced by Nick\nEmma & <her> friends.\nsubscribe to hear about new\n  eBooks."
    (narrative / "tmp/ab.content").write_text(f"A notice. new eBooks.\n***\n{text}\nEnd of it.")
    page = "<pre><!--\n</b>if (window!= top)\n// -->\n<b>JAWS</b> caf\xe9 &amp; A shark. FADE OUT."
    page += "\nA fin.<br><i>FADE</i> <b>OUT.</b></pre><script>x()</script>"
    (narrative / "tmp/cd.content").write_bytes(f"<html>{page}</html>".encode("cp1252"))
    corpus = stage("narrative_qa", tmp_path / "out", COLLECTION=narrative)
    passages, _ = read(corpus)
    emma, jaws = (row["text"] for row in passages)
    assert emma == text
    assert jaws.startswith("if (window!= top)") and jaws.endswith("A fin.\nFADE OUT.")
    assert "JAWS caf\xe9 & A shark. FADE OUT." in jaws and "<" not in jaws and "x()" not in jaws
    whole = [one.text for one in Stories(str(narrative), "test").records(BadRecords(0))]
    assert whole[0].startswith("A notice.") and whole[1].endswith("</html>")


def test_a_story_without_its_marks_is_whole(
    narrative: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = list(Stories(str(narrative), "train", between_marks=True).records(BadRecords(0)))
    assert found[0].text.startswith("The story of ef.") and len(found[0].text) > 800
    assert "1 stories of 'train' have no story_start or story_end" in caplog.text
    assert story_of("a b. c d. b . c", "b .", "d .") == "b. c d."
    assert story_of("a b", "b", "a") is None is story_of("a b", "c", "b")


def test_a_story_that_was_not_downloaded_is_reported(narrative: Path) -> None:
    bad = BadRecords(1)
    assert [one.id for one in Stories(str(narrative), "test").records(bad)] == ["ab"]
    assert bad.counts == {"no_story": 1} and "cd.content" in bad.examples[0]
    with pytest.raises(SourceError, match="no_story"):
        list(Stories(str(narrative), "test").records(BadRecords(0)))


def test_what_is_no_narrative_qa_is_refused(narrative: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected one of .*'valid'.*found 'dev'"):
        list(Questions(str(narrative), "dev").records(BadRecords(0)))
    with pytest.raises(SourceError, match=r"qaps\.csv: not found"):
        list(Asked(str(tmp_path / "nowhere"), "test").judgements(BadRecords(0)))
    (narrative / "qaps.csv").write_text("document_id,set\n")
    with pytest.raises(SourceError, match=r"no columns \['question'\]"):
        list(Asked(str(narrative), "test").judgements(BadRecords(0)))
