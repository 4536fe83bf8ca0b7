"""Answers to questions and words for [MASK]s: replies, and what is refused."""

import numpy as np
import pytest

from t5x_style.serving.service import Span
from tests.launch.service.fake_service import PASSAGES, FakeService, done

SENTENCE = "bread is made of [MASK] ."


@pytest.fixture
def answering(serve):
    return serve(FakeService(reads="answer"))


@pytest.fixture
def filling(serve):
    return serve(FakeService(kinds=("dense",), reads="fill"))


def test_each_passage_that_is_read_gives_an_answer_the_best_first(answering):
    found = answering.post("/answer", json={"query": "who barks", "k": 3}).json()
    assert found["version"] == 1 and found["query"] == {"tokens": 4, "cut_off": 0}
    best = found["answers"][0]
    assert (best["rank"], best["answer"], best["hit"]["id"]) == (1, "cat", "p1")
    assert best["place"] == [2, 5] and best["span_probability"] == 0.5
    assert best["score"] == pytest.approx(1 - 0.1 * 5)
    scores = [one["score"] for one in found["answers"]]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    chances = [one["passage_probability"] for one in found["answers"]]
    assert sum(chances) == pytest.approx(1)
    expected = np.exp([one["hit"]["score"] for one in found["answers"]])
    assert chances == pytest.approx(expected / expected.sum())
    assert set(found["seconds"]) == {"tokenization", "encoding", "search"}


def test_a_link_answers_the_same(answering):
    body = {"query": "who barks", "k": 2, "source": "pets"}
    link = {"q": "who barks", "k": 2, "source": "pets"}
    found = answering.post("/answer", json=body).json()
    assert answering.get("/answer", params=link).json()["answers"] == found["answers"]
    assert {one["hit"]["source"] for one in found["answers"]} == {"pets"}


def test_a_passage_with_nothing_to_point_at_has_an_empty_answer(serve, monkeypatch):
    service = FakeService(reads="answer")
    monkeypatch.setattr(service.reader, "span", lambda joint: done(Span(None, float("-inf"), 0.0)))
    (one,) = serve(service).post("/answer", json={"query": "who", "k": 1}).json()["answers"]
    assert one["answer"] == "" and one["place"] is None and one["score"] is None


def test_words_come_with_and_without_each_passage(filling):
    found = filling.post("/fill", json={"text": SENTENCE, "k": 3, "words": 3}).json()
    documents, (mask,) = found["documents"], found["masks"]
    assert [one["hit"] and one["hit"]["id"] for one in documents] == [None, *PASSAGES]
    assert sum(one["probability"] for one in documents) == pytest.approx(1)
    assert SENTENCE[slice(*mask["place"])] == "[MASK]"
    assert len(mask["words"]) == 3
    for word in mask["words"]:
        mixed = sum(
            one["probability"] * chance
            for one, chance in zip(documents, word["by_document"], strict=True)
        )
        assert word["probability"] == pytest.approx(mixed)
    (flour,) = [one["by_document"][3] for one in mask["words"] if one["piece"] == "flour"]
    assert flour == pytest.approx(9 / 11)
    chances = [one["probability"] for one in mask["words"]]
    assert chances == sorted(chances, reverse=True)
    assert found["seconds"]["tokenization"] > 0


def test_fewer_words_may_be_listed(filling):
    found = filling.post("/fill", json={"text": SENTENCE, "words": 1}).json()
    assert [len(one["words"]) for one in found["masks"]] == [1]


def test_a_source_bounds_what_is_read(filling):
    body = {"text": SENTENCE, "source": "food", "words": 3}
    found = filling.post("/fill", json=body).json()
    assert [one["hit"] and one["hit"]["id"] for one in found["documents"]] == [None, "p3"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/answer", {"query": "who"}, "needs a model that answers questions"),
        ("/fill", {"text": SENTENCE}, "needs a model that fills in"),
    ],
)
def test_a_model_without_a_reader_is_said(client, path, body, message):
    reply = client.post(path, json=body)
    assert reply.status_code == 424 and message in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": "who", "k": 0}, "k: expected 1 to 50, found 0"),
        ({"query": "who", "k": 51}, "k: expected 1 to 50, found 51"),
        ({"query": ""}, "query: expected a text, found an empty one"),
        ({"query": "who", "source": "cars"}, "source: expected the beginning of one of"),
        ({"query": "who", "words": 3}, "words"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(answering, body, message):
    reply = answering.post("/answer", json=body)
    assert reply.status_code == 422 and message in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": "bread is made of flour"}, "expected [MASK], found none"),
        ({"text": SENTENCE, "words": 0}, "words: expected 1 to 100, found 0"),
        ({"text": SENTENCE, "k": 51}, "k: expected 1 to 50, found 51"),
        ({"text": ""}, "text: expected a text, found an empty one"),
        ({"text": SENTENCE, "source": "cars"}, "source: expected the beginning of one of"),
    ],
)
def test_a_sentence_that_cannot_be_filled_in_is_refused(filling, body, message):
    reply = filling.post("/fill", json=body)
    assert reply.status_code == 422 and message in reply.json()["error"]


def test_no_more_is_read_than_a_search_returns(serve):
    client = serve(FakeService(reads="answer"), max_k=2)
    reply = client.post("/answer", json={"query": "who", "k": 3})
    assert reply.status_code == 422 and "k: expected 1 to 2, found 3" in reply.json()["error"]


def test_both_need_the_key(serve):
    client = serve(FakeService(reads="answer"), api_key="secret")
    assert client.post("/answer", json={"query": "who"}).status_code == 401
    assert client.post("/fill", json={"text": SENTENCE}).status_code == 401


def test_what_is_read_is_among_the_facts(answering, client):
    assert answering.get("/info").json()["reads"] == "answer"
    assert client.get("/info").json()["reads"] is None
    assert client.get("/info").json()["max_read"] == 50
