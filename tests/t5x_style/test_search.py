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
from t5x_style.checkpoints.restored_model import Trained
from t5x_style.configuration import command_flags
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.evaluation import fusion as evaluated
from t5x_style.interfaces.contract import ContractError
from t5x_style.interfaces.objective import FunctionError, ModelFunction
from t5x_style.retrieval import encoding, exact_index, published_index, sharded_index
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.retrieval.bm25 import Bm25Index
from t5x_style.retrieval.lexical.bm25_fusion import SUMMED, Fusion, FusionError
from t5x_style.serving import searcher
from tests.kits import retrieval_helpers as helpers
from tests.kits import store_kit
from tests.kits.toys import int8_index

WORDS = ["csv", "json", "socket", "row", "queue"]  # word i asks for passage i


class Questions:
    """A 'tokenizer' that writes a question's words as numbers."""

    length, prefix, fingerprint = 8, "", "fingerprint"

    def tokens(self, question):
        return len(question.split()) + 2

    def __call__(self, questions):
        tokens = [[int(word in question) for word in WORDS] for question in questions]
        numbers = np.arange(len(questions), dtype=np.int32)[:, None]
        return {
            "tokens": np.asarray(tokens, np.int32),
            "segment_valid": np.ones(numbers.shape, bool),
            "example_id": numbers,
        }


@jax.jit
def embed_query(group):
    """[B, 1, 16]"""
    return jnp.pad(group["tokens"], ((0, 0), (0, 11)))[:, None].astype(jnp.float32)


@pytest.fixture
def parts(tmp_path):
    passages = Passages(helpers.write_corpus(tmp_path / "corpus"))
    model = Trained(
        helpers.embedding_functions(query=embed_query),
        helpers.CONTRACT,
        Partitioner(),
        "fingerprint",
    )
    table = np.eye(5, 16, dtype=np.float32)
    index = exact_index.ExactIndex(table, passages.ids, helpers.CONTRACT)
    return {"model": model, "index": index, "questions": Questions(), "passages": passages}


def test_answers_with_scores_and_sources(parts):
    hits = searcher.Searcher(**parts).search("what is a socket", 2)
    assert [hit.passage.id for hit in hits] == ["p2", "p0"]
    assert (hits[0].score, hits[0].passage.source) == (1.0, "python/socket")


@pytest.mark.parametrize("index", [sharded_index.Sharded(), int8_index.Int8()])
def test_an_index_of_any_type_is_opened_and_searched(parts, tmp_path, index):
    vectors, ids = np.eye(5, 16, dtype=np.float32), parts["passages"].ids
    embeddings = encoding.Embeddings(vectors, ids, helpers.CONTRACT, "fingerprint")
    published_index.publish(tmp_path / "index", embeddings, index, keep=1)
    opened = published_index.load(tmp_path / "index")
    hits = searcher.Searcher(**parts | {"index": opened}).search("what is a socket", 2)
    assert [(hit.passage.id, hit.score) for hit in hits] == [("p2", 1.0), ("p0", 0.0)]


def test_scores_of_bm25_are_added(parts):
    texts = [one.content for one in parts["passages"]]
    fusion = Fusion(0.25, 1000)
    hits = searcher.Searcher(**parts, fusion=fusion).search("how do I read a csv row", 5)
    ids = parts["passages"].ids
    words = Bm25Index(texts, ids).score("how do I read a csv row")
    model = [(ids[row], float(row in (0, 3))) for row in (0, 3, 1, 2, 4)]
    lexical = [(ids[row], float(words[row])) for row in np.argsort(-words) if words[row]]
    assert lexical
    expected = evaluated.linear({"q": model}, {"q": lexical}, 0.25, 5)["q"]
    assert {hit.passage.id: hit.score for hit in hits} == pytest.approx(dict(expected), abs=1e-6)


def test_scores_of_a_reranker_are_none_of_an_index(parts):
    with pytest.raises(FusionError, match="found those of a re-ranker of BM25's hits"):
        searcher.Searcher(**parts, fusion=Fusion(0.25, 10, reranked=SUMMED))


def test_more_than_there_is(parts):
    assert len(searcher.Searcher(**parts).search("json", 50)) == 5


def test_a_question_that_is_cut_is_told(parts, capsys):
    searcher.Searcher(**parts).search("json " * 6, 1)
    assert not capsys.readouterr().err
    searcher.Searcher(**parts).search("json " * 7, 1)
    assert "has 9 tokens, of which the model reads the first 8" in capsys.readouterr().err


class Reading:
    """Texts of a reader: one token a row, which says how long the passage is."""

    query_length = passage_length = 8
    fingerprint = "fingerprint"

    def pairs(self, questions, passages):
        return Pairs(passages)


class Pairs:
    def __init__(self, passages):
        self.ids = [str(number) for number in range(len(passages))]
        self._passages = passages

    def batches(self):
        count = len(self._passages)
        yield {
            "tokens": np.array([[len(text)] for text in self._passages], np.int32),
            "segment_ids": np.ones((count, 1), np.int32),
            "segment_valid": np.ones((count, 1), bool),
            "example_id": np.arange(count, dtype=np.int32)[:, None],
        }

    def characters(self, number, start, end):
        return start, end


@jax.jit
def four_letters(group):
    """The second to the fifth letter; nothing in passages of 40 letters and more."""
    size = group["tokens"].astype(jnp.float32)
    score = jnp.where(size < 40, 1.0, -jnp.inf)
    return {
        "start": jnp.ones_like(size),
        "end": jnp.full_like(size, 5),
        "score": score,
        "log_probability": score - 2,
    }


@pytest.fixture
def answering(parts):
    answer = ModelFunction(four_letters, {}, "[R, S] each", "answer")
    functions = {**helpers.embedding_functions(query=embed_query), "answer": answer}
    alone = Partitioner(devices=jax.devices()[:1])
    model = Trained(functions, helpers.CONTRACT, alone, "fingerprint")
    return searcher.Searcher(**{**parts, "model": model, "reading": Reading()})


def test_answers_are_spans_with_their_probabilities(answering):
    answers = answering.answer("parse json and csv", 2)
    assert [answer.hit.passage.id for answer in answers] == ["p1", "p0"]
    first, second = answers
    assert first.text == "ncod" and first.span_probability == pytest.approx(np.exp(-1))
    assert second.span is None and second.text == ""
    assert first.passage_probability == second.passage_probability == pytest.approx(0.5)


def test_answers_are_shown_with_the_span_marked(answering):
    answers = answering.answer("json", 2)
    console = Console(file=io.StringIO())
    search.show_answers(answers, console)
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith("1\tncod\t0.7311\t0.3679\tjson\tpython/json\tE«ncod»e and decode")
    assert lines[1].startswith("2\t(nothing)\t")
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    search.show_answers(answers, console)
    assert "p(y|z,x) 0.3679" in console.file.getvalue()


def test_without_a_reader_there_is_no_answer(parts):
    with pytest.raises(searcher.SearchError, match="bind searcher.Searcher.reading"):
        searcher.Searcher(**parts).answer("json", 2)
    with pytest.raises(FunctionError, match="kind 'answer'"):
        searcher.Searcher(**{**parts, "reading": Reading()})


def test_what_stands_around_a_span():
    text = "first " * 60 + "here  the\nneedle lies" + " last" * 60
    at = text.index("the")
    before, span, after = search.around(text, (at, at + 10))
    assert span == "the needle" and before.endswith("here ") and after.startswith(" lies")
    assert before.startswith("…") and after.endswith("…")
    assert search.around("short text", (0, 5)) == ("", "short", " text")


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(parts, question):
    with pytest.raises(searcher.SearchError, match="question is empty"):
        searcher.Searcher(**parts).search(question, 1)


def test_parts_that_do_not_belong_together_are_refused(parts):
    other = dataclasses.replace(helpers.CONTRACT, pooling="mean")
    model = dataclasses.replace(parts["model"], contract=other)
    with pytest.raises(ContractError, match="(?s)the index.*pooling"):
        searcher.Searcher(**{**parts, "model": model})
    for field, value, name in (
        ("fingerprint", "other", "tokenizer_fingerprint"),
        ("length", 9, "query_length"),
        ("prefix", "query: ", "query_prefix"),
    ):
        questions = Questions()
        setattr(questions, field, value)
        with pytest.raises(ContractError, match=f"(?s)tokenizer of questions.*{name}"):
            searcher.Searcher(**{**parts, "questions": questions})


def test_an_index_of_another_corpus_is_refused(parts):
    table = np.eye(1, 16, dtype=np.float32)
    index = exact_index.ExactIndex(table, ["old"], helpers.CONTRACT)
    with pytest.raises(searcher.SearchError, match="passage 'old'"):
        searcher.Searcher(**{**parts, "index": index})


def test_plain_lines_where_no_terminal_is(parts):
    hits = searcher.Searcher(**parts).search("csv row", 1)
    file = io.StringIO()
    search.show("csv", hits, Console(file=file))
    text = "Read and write tabular data in CSV files."
    assert file.getvalue() == f"1\t1.0000\tcsv\tpython/csv\t{text}\n"


def test_colours_on_a_terminal(parts):
    hits = searcher.Searcher(**parts).search("csv", 2)
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
    outputs = search.search(searcher.Searcher(**parts), ["json?"], 2, str(tmp_path))
    assert outputs == {"answers": "answers.md"}
    assert "1. **json** (1.0000, python/json)" in (tmp_path / "answers.md").read_text()


def test_the_stage_writes_answers_of_a_reader(answering, tmp_path):
    search.search(answering, ["json"], 2, str(tmp_path))
    first, text, second, *_ = (tmp_path / "answers.md").read_text().splitlines()[2:]
    assert first.startswith("1. **ncod** (p(z|x) 0.7311, p(y|z,x) 0.3679, json, python/json)")
    assert text.startswith("   E**ncod**e and decode")
    assert second.startswith("2. **(nothing)** (")


def searched(link, **settings):
    """A finished search stage, with its configuration."""
    planned = store_kit.plan(link, "search", entry=searcher.JOB, **settings)
    return store_kit.finished(planned, {"config.gin": f"# {settings}"}, {"answers": "config.gin"})


def test_the_search_stage_of_a_run_is_found_through_its_link(tmp_path):
    run = tmp_path / "run"
    store_kit.finished(store_kit.plan(run / "ahead", "train"), {"config.gin": ""}, {})
    old, new = searched(run / "ask", k=5), searched(run / "ask", k=10)
    assert old.folder != new.folder
    for folder in (run, run / "ask", new.folder):
        assert searcher.find_config(str(folder)).read_text() == "# {'k': 10}"
    searched(run / "ask", k=5)  # the link points back to the first one
    assert searcher.find_config(str(run)).read_text() == "# {'k': 5}"


def test_a_search_stage_that_has_not_finished_is_not_opened(tmp_path):
    run = tmp_path / "run"
    store_kit.finished(store_kit.plan(run / "train", "train"), {}, {})
    searched(run / "ask", k=5)
    store_kit.started(store_kit.plan(run / "ask", "search", entry=searcher.JOB, k=10))
    (run / ".ask.123.link").symlink_to(searched(tmp_path / "other/ask", k=5).folder)  # of a kill
    (run / "gone").symlink_to(tmp_path / "nowhere")
    message = r"no finished search stage; finished are \['train'\]\. Let the recipe run"
    with pytest.raises(searcher.SearchError, match=message):
        searcher.find_config(str(run))
    with pytest.raises(searcher.SearchError, match="gone: not found"):
        searcher.find_config(str(run / "gone"))


def test_the_search_stage_of_a_run_without_a_store_is_found(tmp_path):
    for name, entry in (("train", "t5x_style.train.train"), ("ask", searcher.JOB)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stage.json").write_text(json.dumps({"entry": entry}))
    assert searcher.find_config(str(tmp_path)) == tmp_path / "ask" / "config.gin"


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--run=nowhere", "question"], "nowhere: not found"),
        (["question"], "pass --run=FOLDER"),
        (["--run=nowhere", " "], "the question is empty"),
        (["--run=nowhere", "-k0", "question"], "-k: expected at least 1, found 0"),
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
    every_stages, own = command_flags.split_arguments(
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
