"""Answers in a corpus as tokens, and questions with them as batches."""

import json

import numpy as np
import pytest

from input_pipelines.batches import corpus_table, open_qa_batches
from input_pipelines.sources import answers
from input_pipelines.sources.text_sources import Record, SourceError
from input_pipelines.store import answer_token_forms, block_layout, prepare
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers import tokenization

LENGTH = 10
TEXTS = {
    "a": "The Denver Broncos won. Denver was glad, and the BRONCOS sang.",
    "b": "Nobody in Paris saw the Denver broncos. It was 1998.",
    "c": "Paris, Texas. In 1999 it was quiet; the Broncos of Denver slept.",
}
ASKED = {
    "who": (["Denver Broncos"], "text"),
    "which": (["broncos"], "text"),
    "where": (["the Paris", "Rome"], "text"),
    "when": ([r"199\d"], "regex"),
    "nobody": (["Zanzibar"], "text"),
}


class Passages:
    """Three documents, of which the titles say the answers, too."""

    def records(self, bad):
        for name, text in TEXTS.items():
            yield Record(name, "Denver Broncos in Paris 1998", text, "")


class Questions:
    """One after another."""

    def records(self, bad):
        for name in ASKED:
            yield Record(name, "", f"{name} is it that won?", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Stores of both, the file of questions, and the forms that were found."""
    path = tmp_path_factory.mktemp("qa")
    tokenization.train_tokenizer(
        str(path), Passages(), 200, 150, 1, True, True, sample=0, seed=0, max_bad_records=0
    )
    for name, source, kind, layout in (
        ("corpus", Passages(), "passage", block_layout.Blocks(None)),
        ("asked", Questions(), "query", prepare.WHOLE_TEXTS),
    ):
        prepare.prepare(
            str(path / name), source, str(path / "tokenizer"), kind, "all", kind, 40, "", 8, 1, 0,
            layout,
        )  # fmt: skip
    rows = [{"_id": name, "answers": a, "answer_type": kind} for name, (a, kind) in ASKED.items()]
    (path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    find(path)
    return path


def find(path, folder=None, **changes):
    arguments = {
        "corpus": str(path / "corpus/store"),
        "questions": str(path / "asked/store"),
        "answers": str(path),
        "tokenizer": str(path / "tokenizer"),
        "max_forms": 4,
        "max_form_length": 12,
        "workers": 1,
        "max_bad_records": 0,
        "model_dir": str(folder or path / "found"),
    }
    return answer_token_forms.find_forms(**arguments | changes)


def pipeline(path, **changes):
    settings = {"rows": 2, "length": LENGTH, "forms": 4, "max_form_length": 12, "seed": 1}
    settings["corpus"] = corpus_table.StoreCorpus(str(path / "corpus/store"))
    return open_qa_batches.Questions(
        str(path / "asked/store"), str(path / "found/answers"), **settings | changes
    )


def spoken(path, form):
    """The text of a form, lower case and without spaces, as this tokenizer has it."""
    tokenizer = tokenization.Tokenizer(str(path / "tokenizer"))
    return tokenizer._backend.decode([t for t in form.tolist() if t >= 0]).replace(" ", "")


def test_the_forms_are_those_of_the_corpus_the_most_frequent_first(made):
    store = TokenStore.open(str(made / "asked/store"))
    found = answer_token_forms.Forms(str(made / "found/answers"), store)
    said = {
        name: [spoken(made, form) for form in found.of(np.array([row]), 4)[0] if form[0] >= 0]
        for name, row in store.row_of.items()
    }
    assert said == {
        "who": ["denverbroncos"],
        "which": ["broncos"],
        "where": ["paris"],  # not "paris," of "Paris, Texas": punctuation is no part of an answer
        "when": ["1998", "1999"],
        "nobody": [],
    }
    report = json.loads((made / "found/report.json").read_text())
    assert report["questions_with_an_answer"] == 4 and report["rows_tokenized_otherwise"] == 0


@pytest.mark.slow
def test_the_forms_do_not_depend_on_the_number_of_workers(made, tmp_path, monkeypatch):
    monkeypatch.setattr(answer_token_forms, "_ROWS_AT_ONCE", 2)
    found = []
    for workers in (1, 2):
        find(made, tmp_path / str(workers), workers=workers)
        files = sorted(path for path in (tmp_path / str(workers)).rglob("*") if path.is_file())
        found.append({path.name: path.read_bytes() for path in files})
    assert found[0].keys() == {"forms.npy", "first.npy", "manifest.json", "report.json"}
    assert found[0] == found[1]


def test_a_form_stands_in_a_row_exactly_where_its_answer_stands_in_the_text(made):
    corpus = TokenStore.open(str(made / "corpus/store"))
    store = TokenStore.open(str(made / "asked/store"))
    found = answer_token_forms.Forms(str(made / "found/answers"), store)
    given = answer_token_forms._given(
        str(made / "queries.jsonl"), store, answer_token_forms.BadRecords(0)
    )
    for row in range(len(corpus)):
        tokens = corpus.read(np.array([row])).tokens.tolist()
        body = tokens[tokens.index(3) + 1 : -1]
        for question in range(len(store)):
            forms = [f[f >= 0].tolist() for f in found.of(np.array([question]), 4)[0] if f[0] >= 0]
            stands = any(
                body[i : i + len(form)] == form for form in forms for i in range(len(body))
            )
            assert stands == bool(answers.Finder([given[question]]).find(corpus.text(row).text))


def test_most_and_longest_are_kept_to_and_counted(made, tmp_path):
    find(made, tmp_path, max_forms=1, max_form_length=1)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["forms_too_long"] >= 1
    find(made, tmp_path, max_forms=1)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["forms"] == 4 and report["forms_beyond_most"] == 1  # 1999


def test_batches_hold_questions_that_have_an_answer(made):
    batches = pipeline(made)
    assert batches.plan.steps == 2
    store = TokenStore.open(str(made / "asked/store"))
    shown = np.concatenate([batches.batch(s)["query"]["example_id"][:, 0] for s in range(2)])
    assert sorted(shown.tolist()) == [0, 1, 2, 3]
    group = batches.batch(1)["query"]
    assert group["answers"].shape == (2, 4, 12) and group["answers"].dtype == np.int32
    for row, question in enumerate(group["example_id"][:, 0]):
        length = min(LENGTH, int(store.lengths[question]))
        expected = store.read(np.array([question])).tokens
        assert group["tokens"][row, : length - 1].tolist() == expected[: length - 1].tolist()
        assert group["tokens"][row, length - 1] == 3  # a question that is cut keeps its [SEP]
    every = pipeline(made, only_answered=False, rows=5).batch(0)["query"]
    assert (every["answers"][every["example_id"][:, 0] == 4] == answer_token_forms.NO_TOKEN).all()


def test_rows_and_steps_stand_alone(made):
    batches = pipeline(made)
    whole, part = batches.batch(3)["query"], batches.batch(3, np.array([1]))["query"]
    for name, array in whole.items():
        np.testing.assert_array_equal(array[1:], part[name])
    assert batches.fingerprint != pipeline(made, seed=2).fingerprint


def test_answers_found_nowhere_are_refused(made, tmp_path):
    row = {"_id": "who", "answers": ["Zanzibar"]}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(StoreError, match="no question has an answer"):
        find(made, tmp_path, answers=str(tmp_path / "q.jsonl"), max_bad_records=4)
    with pytest.raises(SourceError, match="question_without_answers"):
        find(made, tmp_path, answers=str(tmp_path / "q.jsonl"))


def test_forms_of_another_corpus_question_or_length_are_refused(made, tmp_path):
    with pytest.raises(StoreError, match="another corpus"):
        pipeline(made, corpus=corpus_table.StoreCorpus(str(made / "asked/store")))
    with pytest.raises(StoreError, match="expected forms of up to 9"):
        pipeline(made, max_form_length=9)
    with pytest.raises(StoreError, match="questions of another store"):
        answer_token_forms.Forms(
            str(made / "found/answers"), TokenStore.open(str(made / "corpus/store"))
        )
    with pytest.raises(StoreError, match=r"no manifest\.json"):
        answer_token_forms.Forms(str(tmp_path), TokenStore.open(str(made / "asked/store")))


def test_forms_that_were_changed_are_refused(made, tmp_path):
    find(made, tmp_path)
    forms = np.load(tmp_path / "answers/forms.npy")
    forms[0, 0] += 1
    np.save(tmp_path / "answers/forms.npy", forms)
    with pytest.raises(StoreError, match="damaged"):
        answer_token_forms.Forms(
            str(tmp_path / "answers"), TokenStore.open(str(made / "asked/store"))
        )
