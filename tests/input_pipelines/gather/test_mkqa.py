"""MKQA as published, and its evaluation against English passages, by shipped gin files."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from input_pipelines.gather import mkqa
from input_pipelines.gather.mkqa import PassageAnswers
from input_pipelines.sources import answer_tokens
from input_pipelines.sources.text_sources import SourceError
from t5x_style.configuration import gin_checks

REPOSITORY = Path(__file__).resolve().parents[3]


def example(number: int, *answers: dict[str, Any], **changed: Any) -> dict[str, Any]:
    row = {
        "example_id": number,
        "query": f"question {number}",
        "queries": {"en": f"question {number}", "de": f"frage {number}", "zh_cn": f"问题 {number}"},
        "answers": {"en": list(answers), "de": [{"type": "entity", "text": "deutsch"}]},
    }
    return row | changed


def entity(text: str | None, *aliases: str, kind: str = "entity") -> dict[str, Any]:
    return {"type": kind, "entity": "Q1", "text": text, "aliases": list(aliases)}


EXAMPLES = [
    example(-7, entity("Dave Edmunds", "Edmunds, Dave")),
    example(8, entity(None, kind="unanswerable")),
    example(9, entity("yes", kind="binary")),
    example(10, entity(None, kind="long_answer")),
    example(11, {"type": "date", "text": "1970-11-20"}, entity("1970", "twentieth")),
    example(12, entity("kept"), entity(None, kind="long_answer")),
    example(13, entity(None, kind="long_answer"), entity("Spider-Man", kind="short_phrase")),
]


def published(folder: Path, rows: list[dict] = EXAMPLES) -> str:
    path = folder / "mkqa.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return str(path)


def job_runs() -> dict[str, dict[str, Any]]:
    """Arguments for `tests.job_outputs`, and the file that they name in the current folder."""
    path = Path("mkqa.jsonl")  # gzip writes the time
    path.write_text("".join(json.dumps(row) + "\n" for row in EXAMPLES))
    return {"": {"path": str(path), "languages": ["de", "zh_cn"], "max_bad_records": 0}}


def jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_english_answers_of_questions_in_other_languages(tmp_path: Path) -> None:
    made = mkqa.gather(str(tmp_path / "out"), published(tmp_path), ["de", "zh_cn"], 0)
    assert made == {"questions": "questions.jsonl", "report": "report.json"}
    rows = jsonl(tmp_path / "out/questions.jsonl")
    assert [row["_id"] for row in rows] == [
        "de/-7", "zh_cn/-7", "de/11", "zh_cn/11", "de/13", "zh_cn/13",
    ]  # fmt: skip
    assert rows[1] == {
        "_id": "zh_cn/-7", "text": "问题 -7", "set": "zh_cn",
        "answers": ["Edmunds, Dave", "Dave Edmunds"],
    }  # fmt: skip
    assert rows[2]["answers"] == ["1970-11-20", "twentieth", "1970"]
    assert rows[4]["answers"] == ["Spider-Man"]
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert (report["kept"], report["left_out"]) == (3, 4)


@pytest.mark.parametrize(
    ("passage", "answer", "held"),
    [
        ("He is Dave  EDMUNDS.", "dave edmunds", True),
        ("Dave Edmundson", "Dave Edmunds", False),
        ("in the sub-urban area", "urban area", True),
        ("Spider\u2013Man", "Spider-Man", True),
        ("Spider-Man", "Spider\u2013Man", False),  # as in the official code, answers stay
        ("Dave, Edmunds", "Dave Edmunds", False),  # punctuation counts
        ("The end of the film", "a film", False),  # articles count
        ("Café", "Cafe\u0301", True),
        ("Caf\u00e9", "cafe", False),
        ("it\u2019s \u201cit\u201d\u2026", 'it\'s "it"...', True),
        ("co\u00adop", "coop", True),
        ("naïve \u212bngström", "\u00c5ngström", True),
        ("हिन्दी भाषा", "हिन्दी", True),
        ("10 000", "10", True),
        ("", "x", False),
    ],
)
def test_an_answer_is_a_run_of_tokens(passage: str, answer: str, held: bool) -> None:
    assert answer_tokens.holds(passage, [answer_tokens.tokens_of(answer)]) == held


def test_the_key_is_that_of_an_evaluation_by_answers(tmp_path: Path) -> None:
    mkqa.gather(str(tmp_path), published(tmp_path), ["de", "en"], 0)
    key = PassageAnswers(str(tmp_path / "questions.jsonl"))
    assert key.questions()["de/-7"] == "frage -7" and key.sets()["en/11"] == "en"
    assert key.stands_in("de/11", "A day\nin 1970.") and not key.stands_in("de/11", "in 1971")
    assert key.exact("de/13", "spider-man") and key.f1("de/-7", "Dave") == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"queries": {"de": "x"}}, "no field 'zh_cn'"),
        ({"queries": None}, "field 'queries': expected texts by language"),
        ({"answers": {"de": []}}, "field 'answers': expected a list of answers for 'en'"),
        ({"answers": {"en": [entity(" ")]}}, "answers: expected texts with a word"),
        ({"answers": {"en": [entity("x", "\u200b")]}}, "answers: expected texts with a word"),
        ({"example_id": -7}, "id '-7' was already given in .*:1"),
        ({"example_id": None}, "field 'example_id': expected a string or a whole number"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    rows = [EXAMPLES[0], example(1, entity("x")) | row]
    path = published(tmp_path, rows)
    with pytest.raises(SourceError, match=f"mkqa.jsonl.gz:2.*{message}"):
        mkqa.gather(str(tmp_path / "out"), path, ["de", "zh_cn"], 0)
    mkqa.gather(str(tmp_path / "out"), path, ["de", "zh_cn"], 1)
    assert len(jsonl(tmp_path / "out/questions.jsonl")) == 2


def test_what_leaves_no_question_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no question is left: 1 have no answer"):
        mkqa.gather(str(tmp_path / "out"), published(tmp_path, EXAMPLES[1:2]), ["de"], 0)
    for languages in ([], ["de", "de"]):
        with pytest.raises(ValueError, match="languages: expected some, each once"):
            mkqa.check(languages, 0)
    (tmp_path / "questions.jsonl").write_text("")
    with pytest.raises(SourceError, match="expected questions, as mkqa.gather writes them"):
        PassageAnswers(str(tmp_path / "questions.jsonl"))
    (tmp_path / "questions.jsonl").write_text('{"_id": "a", "text": "b", "set": "c"}\n')
    with pytest.raises(SourceError, match="field 'answers': expected a list of texts"):
        PassageAnswers(str(tmp_path / "questions.jsonl"))


def test_from_the_published_file_to_a_table_of_languages(tmp_path: Path) -> None:
    """BM25 finds the passages of words that a question shares with them."""
    (tmp_path / "nq").mkdir()
    passages = {
        "p0": ("", "frage -7 frage 11 frage 13 holds nothing"),
        "p1": ("Dave Edmunds", "question -7 in its title alone"),
        "p2": ("", "frage frage 11 was in 1970"),
        "p3": ("", "question question question 13 of nobody"),
    }
    with (tmp_path / "nq/corpus.jsonl").open("w") as file:
        for name, (title, text) in passages.items():
            file.write(json.dumps({"_id": name, "title": title, "text": text}) + "\n")

    def run(name: str, **macros: Any) -> str:
        command = [sys.executable, "-m", "t5x_style.stage"]
        command += [f"--gin_file=gin_configs/runs/{name}.gin"]
        command += [f"--gin.{macro}={value}" for macro, value in macros.items()]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    run(
        "collections/mkqa", COLLECTION=published(tmp_path),
        MKQA_LANGUAGES="['de', 'en']", MODEL_DIR=tmp_path / "mkqa",
    )  # fmt: skip
    printed = run(
        "evaluation/answered_passages",
        CORPUS=tmp_path / "nq", ANSWER_FILE=tmp_path / "mkqa/questions.jsonl",
        SYSTEMS="{'bm25': 'bm25'}", ANSWER_DEPTHS="[1, 3]", MODEL_DIR=tmp_path / "out",
        PUBLISHED_FIGURES="{'M3': {'Recall@3': 0.75}}",
    )  # fmt: skip
    sets, of_the_mean = printed.split("mean of 2 sets")
    assert "0.7500" in of_the_mean and "0.7500" not in sets
    report = json.loads((tmp_path / "out/metrics.json").read_text())
    values = {
        language: {metric: found["value"] for metric, found in one["systems"]["bm25"].items()}
        for language, one in report["sets"].items()
    }
    runs = (tmp_path / "out/runs/bm25.trec").read_text().splitlines()
    found: dict[str, list[str]] = {}
    for line in runs:
        found.setdefault(line.split()[0], []).append(line.split()[2])
    right = {"-7": "p1", "11": "p2", "13": ""}
    for language in ("de", "en"):
        for depth in (1, 3):
            hits = [
                right[number] in found.get(f"{language}/{number}", [])[:depth] for number in right
            ]
            assert values[language][f"Recall@{depth}"] == pytest.approx(sum(hits) / 3)
    assert values["en"]["Recall@1"] < values["en"]["Recall@3"] and values["de"]["Recall@1"] > 0
    mean = (values["de"]["Recall@3"] + values["en"]["Recall@3"]) / 2
    assert report["mean_of_sets"]["bm25"]["Recall@3"] == pytest.approx(mean)
    assert report["n"] == 6 and report["passages"] == 4


def test_a_model_is_asked_all_questions_of_the_store() -> None:
    """Runs over judged queries hold those that a split judges; here nothing is judged."""
    file = f"{REPOSITORY}/gin_configs/runs/evaluation/answered_passages.gin"
    found = gin_checks.parse_flags([f"--gin_file={file}"]).read().bindings
    source = "input_pipelines.batches.packed_text.EncodeSource"
    assert found["", source, "sample"].value is None
    assert ("", source, "always_include") not in found
