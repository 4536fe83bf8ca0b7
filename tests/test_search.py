"""Searching from the terminal: answers, snippets, and what is refused."""

import dataclasses
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from t5x_style import search
from t5x_style.contract import ContractError
from t5x_style.partitioning import Partitioner
from t5x_style.retrieval import exact
from t5x_style.retrieval.passages import Passages
from t5x_style.trained import Trained
from tests import retrieval_helpers as helpers

WORDS = ["csv", "json", "socket", "row", "queue"]  # word i asks for passage i


class Questions:
    """A 'tokenizer' that writes a question's words as numbers."""

    length, prefix, fingerprint = 8, "", "fingerprint"

    def __call__(self, questions):
        tokens = [[int(word in question) for word in WORDS] for question in questions]
        return {"tokens": np.asarray(tokens, np.int32)}


@jax.jit
def embed_query(group):
    """[B, 1, 16]"""
    return jnp.pad(group["tokens"], ((0, 0), (0, 11)))[:, None].astype(jnp.float32)


@pytest.fixture
def parts(tmp_path):
    passages = Passages(helpers.write_corpus(tmp_path / "corpus"))
    model = Trained({"embed_query": embed_query}, helpers.CONTRACT, Partitioner(), "fingerprint")
    table = np.eye(5, 16, dtype=np.float32)
    index = exact.ExactIndex(table, passages.ids, helpers.CONTRACT)
    return {"model": model, "index": index, "questions": Questions(), "passages": passages}


def test_answers_with_scores_and_sources(parts):
    hits = search.Searcher(**parts).search("what is a socket", 2)
    assert [hit.passage.id for hit in hits] == ["p2", "p0"]
    assert (hits[0].score, hits[0].passage.source) == (1.0, "python/socket")


def test_more_than_there_is(parts):
    assert len(search.Searcher(**parts).search("json", 50)) == 5


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(parts, question):
    with pytest.raises(search.SearchError, match="question is empty"):
        search.Searcher(**parts).search(question, 1)


def test_parts_that_do_not_belong_together_are_refused(parts):
    other = dataclasses.replace(helpers.CONTRACT, pooling="mean")
    model = dataclasses.replace(parts["model"], contract=other)
    with pytest.raises(ContractError, match="(?s)the index.*pooling"):
        search.Searcher(**{**parts, "model": model})
    for field, value, name in (
        ("fingerprint", "other", "tokenizer_fingerprint"),
        ("length", 9, "query_length"),
        ("prefix", "query: ", "query_prefix"),
    ):
        questions = Questions()
        setattr(questions, field, value)
        with pytest.raises(ContractError, match=f"(?s)tokenizer of questions.*{name}"):
            search.Searcher(**{**parts, "questions": questions})


def test_an_index_of_another_corpus_is_refused(parts):
    table = np.eye(1, 16, dtype=np.float32)
    index = exact.ExactIndex(table, ["old"], helpers.CONTRACT)
    with pytest.raises(search.SearchError, match="passage 'old'"):
        search.Searcher(**{**parts, "index": index})


def test_plain_lines_where_no_terminal_is(parts):
    hits = search.Searcher(**parts).search("csv row", 1)
    file = io.StringIO()
    search.show("csv", hits, Console(file=file))
    text = "Read and write tabular data in CSV files."
    assert file.getvalue() == f"1\t1.0000\tcsv\tpython/csv\t{text}\n"


def test_colours_on_a_terminal(parts):
    hits = search.Searcher(**parts).search("csv", 2)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    search.show("csv", hits, console)
    printed = console.file.getvalue()
    assert "\x1b[" in printed and "python/csv" in printed and "1.0000" in printed


def test_snippets_show_the_words_that_were_asked_for():
    text = "first words " * 60 + "here the needle lies " + "last words " * 60
    found = search.snippet(text, "where is the needle?")
    assert "needle" in found and found.startswith("…") and found.endswith("…")
    assert len(found) <= search.SNIPPET + 2
    assert search.snippet("short\n text", "nothing") == "short text"
    assert search.snippet(text, "") == text[: search.SNIPPET].rstrip() + "…"


def test_the_stage_writes_answers(parts, tmp_path):
    outputs = search.search(search.Searcher(**parts), ["json?"], 2, str(tmp_path))
    assert outputs == {"answers": "answers.md"}
    assert "1. **json** (1.0000, python/json)" in (tmp_path / "answers.md").read_text()


def test_the_search_stage_of_a_run_is_found(tmp_path):
    for name, entry in (("train", "t5x_style.train.train"), ("ask", search.JOB)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stage.json").write_text(json.dumps({"entry": entry}))
    assert search.find_config(str(tmp_path)) == tmp_path / "ask" / "config.gin"
    (tmp_path / "ask" / "stage.json").unlink()
    with pytest.raises(search.SearchError, match=r"no finished search stage.*\['train'\]"):
        search.find_config(str(tmp_path))


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--run=nowhere", "question"], "nowhere: not found"),
        (["question"], "pass --run=FOLDER"),
        (["--run=nowhere", " "], "the question is empty"),
    ],
)
def test_mistakes_on_the_command_line_are_told_in_a_line(arguments, message, capsys):
    assert search.main(arguments) == 1
    told = capsys.readouterr().err
    assert message in told and "Traceback" not in told


def test_piped_questions_are_answered_line_by_line(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n"))
    assert list(search.questions_from([])) == ["one", "two"]
    assert list(search.questions_from(["how", "now"])) == ["how now"]


def test_gin_files_may_be_named_in_two_words(capsys):
    every_stages, own = search.split_arguments(
        ["--gin_file", "a.gin", "--gin.X=1", "how", "--gin_file=b.gin", "--traceback", "now", "-k2"]
    )
    assert every_stages == ["--gin_file", "a.gin", "--gin.X=1", "--gin_file=b.gin", "--traceback"]
    assert own == ["how", "now", "-k2"]
    assert search.main(["--gin_file", "nowhere.gin", "question"]) == 1
    assert "nowhere.gin" in capsys.readouterr().err


def test_an_interrupt_at_the_prompt_ends_it(monkeypatch):
    def interrupted(prompt):
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    assert list(search.questions_from([])) == []
