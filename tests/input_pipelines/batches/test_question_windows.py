"""Questions with their passages: files, windows in stores, batches."""

import numpy as np
import pytest

from input_pipelines.batches.question_windows import QuestionWindows, QuestionWindowsPipeline
from input_pipelines.sources import text_sources
from input_pipelines.sources.languages import LanguageError
from input_pipelines.sources.squad_questions import AskedPassages
from input_pipelines.sources.text_sources import BadRecords, SourceError
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers import tokenization
from tests.kits import question_texts
from tests.kits.question_texts import LANGUAGES, pipeline, write
from tests.kits.tiny_stores import write_store


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return question_texts.make(tmp_path_factory.mktemp("questions"))


# --- files ----------------------------------------------------------------------------------------

ASKED = {"id": "1", "question": "What?", "answers": [{"text": "b c", "answer_start": 2}]}


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ({"answers": [{"text": "b", "answer_start": 3}]}, "answer_not_there", "is ' '"),
        ({"answers": [{"text": "a", "answer_start": -5}]}, "answer_not_there", "but at -5"),
        ({"answers": [{"text": "b"}]}, "bad_answer", "'answer_start', a whole number"),
        ({"answers": []}, "no_answers", "a list of objects, one or more"),
        ({"question": " "}, "empty_question", "expected words"),
        ({"id": "0"}, "duplicate_id", "id '0' was already given"),
        (
            {"id": "2", "answers": []},
            "no_answers",
            "a list of objects",
        ),  # takes no id from the next
    ],
)
def test_a_malformed_question_is_counted_and_quoted(tmp_path, change, reason, message):
    asked = [ASKED | {"id": "0"}, ASKED | change, ASKED | {"id": "2"}]
    write(tmp_path / "q.jsonl", [{"context": "a b c", "qas": [*asked, {"is_impossible": True}]}])
    files, bad = AskedPassages(str(tmp_path), "q.jsonl"), BadRecords(1, quiet=True)
    found = list(files.records(bad))
    assert found[0] == text_sources.Record("0", "What?", "a b c", "2:5")
    assert [one.id for one in found] == ["0", "2"] and bad.counts == {reason: 1}
    with pytest.raises(SourceError, match=message):
        list(files.records(BadRecords(0)))


def test_files_that_do_not_fit_are_refused(tmp_path):
    write(tmp_path / "q.jsonl", [{"context": "a", "qas": []}])
    with pytest.raises(SourceError, match="expected questions with answers, found none"):
        list(AskedPassages(str(tmp_path), "q.jsonl").asked(BadRecords(0)))
    for name, languages in (("q.jsonl", ["de"]), ("{language}.jsonl", [])):
        with pytest.raises(ValueError, match="expected '{language}' in name where languages"):
            AskedPassages(str(tmp_path), name, languages)
    with pytest.raises(LanguageError, match="AskedPassages.*once, found 'de' and 'de'"):
        AskedPassages(str(tmp_path), "{language}.jsonl", ["de", "en", "de"])


# --- windows --------------------------------------------------------------------------------------


class Letters:
    """A tokenizer of words, each of which is a letter."""

    vocabulary = {"cls": 2, "sep": 3}

    def pieces(self, texts):
        return [
            tokenization.Pieces(
                np.array([ord(w) for w in text.split()], np.int32),
                np.ones(len(text.split()), bool),
                np.array([[2 * n, 2 * n + 1] for n in range(len(text.split()))]).reshape(-1, 2),
            )
            for text in texts
        ]


def test_windows_of_the_worked_case():
    a, b, c, d, e, f, q = map(ord, "abcdefq")
    layout = QuestionWindows(question_length=4, stride=2)
    made = layout.rows([text_sources.Record("x", "q q", "a b c d e f", "6:9")], Letters(), 8, "")
    assert [row.tokens.tolist() for row in made.records] == [
        [2, q, q, 3, a, b, c, 3],
        [2, q, q, 3, c, d, e, 3],
        [2, q, q, 3, e, f, 3],
    ]
    assert made.tables["span"].tolist() == [[0, 0], [5, 6], [0, 0]]
    assert [row.id for row in made.records] == ["x#0", "x#1", "x#2"] and made.truncated == 0


def test_questions_are_cut_and_answers_without_tokens_left_out():
    layout = QuestionWindows(question_length=3, stride=2)
    records = [
        text_sources.Record("x", "q r", "a b", "0:1"),
        text_sources.Record("y", "q", "a b", "1:2"),
    ]
    made = layout.rows(records, Letters(), 8, "")
    assert [row.tokens.tolist() for row in made.records] == [[2, ord("q"), 3, 97, 98, 3]]
    assert made.truncated == 2
    with pytest.raises(ValueError, match="together at most 7, .* found 3 and 5"):
        QuestionWindows(3, 5).rows(records, Letters(), 8, "")
    with pytest.raises(ValueError, match="as '12:17', among 3; found 'file:7'"):
        layout.rows([text_sources.Record("x", "q", "a b", "file:7")], Letters(), 8, "")


def test_every_answer_is_in_a_window_and_is_what_the_file_says(folder):
    store = TokenStore.open(str(folder / "store"))
    files = AskedPassages(str(folder), "{language}.jsonl", LANGUAGES)
    asked = {one.id: one for one in files.asked(BadRecords(0))}
    assert {name.rpartition("#")[0] for name in store.ids} == set(asked)
    tokenizer = tokenization.Tokenizer(str(folder / "tokenizer"))
    held = set()
    for row, (start, end) in enumerate(np.asarray(store.table("span")).tolist()):
        if start:
            one = asked[store.ids[row].rpartition("#")[0]]
            own = store.read(np.array([row])).tokens[start : end + 1].tolist()
            told = tokenizer.pieces([one.passage[slice(*one.span)]])[0].tokens.tolist()
            assert own == told
            held.add(one.id)
    assert len(store) > 1.5 * len(asked) and len(held) > 0.9 * len(asked)


def test_batches_hold_the_windows_with_their_answers(folder):
    """Of two stores."""
    path = str(folder / "store")
    store, made = TokenStore.open(path), pipeline(folder, stores=[path, path])
    spans, seen = np.asarray(store.table("span")), set()
    for step in range(30):
        group = made.batch(step)["text"]
        for row, slot in zip(*np.nonzero(group["segment_valid"]), strict=True):
            number = int(group["example_id"][row, slot])
            own = group["tokens"][row][group["segment_ids"][row] == slot + 1]
            assert own.tolist() == store.read(np.array([number % len(store)])).tokens.tolist()
            place = (group["start"][row, slot], group["end"][row, slot])
            assert place == tuple(spans[number % len(store)])
            seen.add(number)
    assert seen == set(range(2 * len(store)))


def test_an_answer_in_two_windows_is_right_in_both():
    """Windows of 4 words, every 2: words 2 and 3 are in two of them."""
    text = "a b c d e f"
    record = text_sources.Record("r", "q", text, f"{text.index('c')}:{text.index('d') + 1}")
    made = QuestionWindows(3, 2).rows([record], Letters(), 8, "")
    read = [[chr(token) for token in row.tokens[3:-1]] for row in made.records]
    assert read == [list("abcd"), list("cdef")]
    assert made.tables["span"].tolist() == [[5, 6], [3, 4]]


def test_a_batch_is_a_function_of_its_step(folder):
    made = pipeline(folder)
    spec = {name: (array.shape, array.dtype) for name, array in made.batch(4)["text"].items()}
    assert spec == made.specs()["text"]
    whole, ahead = made.batch(4)["text"], pipeline(folder).batches(4, rows=np.array([2, 5]))
    for name, array in next(ahead)["text"].items():
        np.testing.assert_array_equal(array, whole[name][[2, 5]], err_msg=name)
    ahead.close()
    assert ((whole["start"] == -1) == ~whole["segment_valid"]).all() and (whole["end"] > 3).any()
    with pytest.raises(StoreError, match="expected questions cut at 8 tokens, found 7"):
        pipeline(folder, question_length=8)


def test_stores_that_do_not_fit_are_refused(folder, tmp_path):
    plain = str(write_store(tmp_path, [5, 6]))
    with pytest.raises(StoreError, match="windows of at most 19 tokens, found 20: bind WINDOW"):
        pipeline(folder, window=19)
    with pytest.raises(ValueError, match="QuestionWindows: expected no prefix, found 'q: '"):
        QuestionWindows(7, 6).rows([], None, 20, "q: ")
    settings = {"question_length": 7, "window": 20, "seed": 0, "rows": 2}
    settings |= {"length": 20, "segments": 1}
    with pytest.raises(StoreError, match="prepared with runs/stores/question_windows.gin"):
        QuestionWindowsPipeline([plain], **settings)
