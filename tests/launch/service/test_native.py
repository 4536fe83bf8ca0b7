"""Kennel's routes: what they answer, and what they refuse."""

import numpy as np
import pytest

from launch.service.native import column_places
from t5x_style.serving.service import Tokens
from tests.launch.service.fake_service import KINDS, PASSAGES, FakeService

LONG = " ".join("abcdefgh")  # two tokens more than are read


def refused(reply, status=422):
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == {"error", "error_type"}
    return reply.json()["error"]


def test_search_gives_hits_with_the_scores_of_each_kind(client, service):
    reply = client.post("/search", json={"query": "a cat", "k": 2}).json()
    assert (reply["mode"], reply["version"]) == ("hybrid", 1)
    assert reply["query"] == {"tokens": 4, "cut_off": 0}
    assert [(hit["rank"], hit["id"]) for hit in reply["hits"]] == [(1, "p1"), (2, "p2")]
    title, text, source = PASSAGES["p1"]
    assert reply["hits"][0] == {
        "rank": 1,
        "id": "p1",
        "title": title,
        "text": text,
        "source": source,
        "score": 1.0,
        "scores": dict.fromkeys(KINDS, 1.0),
    }
    assert set(reply["seconds"]) == {"tokenization", "encoding", "search"}
    assert min(reply["seconds"].values()) > 0
    assert service.submitted == [("query", 4, KINDS)]


def test_a_search_encodes_only_the_kinds_of_its_mode(client, service):
    reply = client.post("/search", json={"query": "a", "mode": "sparse", "source": "food"}).json()
    assert reply["mode"] == "sparse" and [hit["id"] for hit in reply["hits"]] == ["p3"]
    assert service.submitted == [("query", 3, ("sparse",))]


def test_bm25_asks_no_model(serve):
    service = FakeService(kinds=("dense",), modes=("dense", "bm25", "hybrid"))
    client = serve(service)
    for reply in (
        client.post("/search", json={"query": "a cat", "mode": "bm25", "k": 1}).json(),
        client.get("/search?q=a+cat&mode=bm25&k=1").json(),
    ):
        assert reply["mode"] == "bm25" and reply["query"] == {"tokens": 4, "cut_off": 0}
        assert [hit["scores"] for hit in reply["hits"]] == [{"bm25": 1.0}]
        assert reply["seconds"]["encoding"] == 0
    assert not service.submitted
    found = client.post("/compare", json={"query": "a cat"}).json()["modes"]
    assert list(found) == ["dense", "bm25", "hybrid"]
    assert service.submitted == [("query", 4, ("dense",))]


def test_a_source_may_be_the_beginning_of_one_and_the_list_may_be_short(serve):
    for sources, source in (((), "any"), (("fo",), "food"), (("food",), "fo")):
        client = serve(FakeService(sources=sources))
        assert client.post("/search", json={"query": "a", "source": source}).status_code == 200


def test_a_source_without_a_name_is_none(serve):
    service = FakeService(reads="answer")
    client = serve(service)
    for route in ("/search", "/answer"):
        assert client.post(route, json={"query": "a", "source": ""}).status_code == 200
        assert client.get(f"{route}?q=a&source=").status_code == 200
    assert service.sources == [None] * 4


def test_a_link_is_a_search(client):
    reply = client.get("/search?q=a%20cat&mode=&k=1&source=").json()
    assert reply["mode"] == "hybrid" and len(reply["hits"]) == 1
    assert client.get("/search", params={"q": "\x00 \u2028 a"}).status_code == 200
    assert "query.q: expected a value" in refused(client.get("/search"))
    assert "is no field" in refused(client.get("/search?q=a&top=3"))
    assert "query.k" in refused(client.get("/search?q=a&k=many"))


def test_a_model_of_one_kind_is_searched_by_it(serve):
    client = serve(FakeService(kinds=("sparse",)))
    assert client.post("/search", json={"query": "a"}).json()["mode"] == "sparse"
    found = client.post("/evidence", json={"query": "a", "id": "p1"}).json()
    assert found["max_sim"] is None and found["words"]


def test_compare_encodes_once_for_all_modes(client, service):
    reply = client.post("/compare", json={"query": "a cat", "k": 1}).json()
    assert list(reply["modes"]) == list(service.facts.modes)
    assert all([hit["id"] for hit in hits] == ["p1"] for hits in reply["modes"].values())
    assert service.submitted == [("query", 4, KINDS)]


def test_evidence_has_words_and_similarities_with_their_places(client):
    reply = client.post("/evidence", json={"query": "a cat", "id": "p1"}).json()
    assert reply["words"][0] == {
        "piece": "a",
        "query_weight": 0.5,
        "passage_weight": 0.25,
        "part": 0.125,
    }
    max_sim, content = reply["max_sim"], reply["content"]
    assert max_sim["rows"] == ["a", "cat", "[SEP]"]
    assert np.shape(max_sim["values"]) == (3, len(max_sim["columns"]))
    assert max_sim["values"][1][2] == pytest.approx(1)  # 'cat' of both
    placed = [one for one in max_sim["columns"] if one["place"]]
    assert [content[slice(*one["place"])] for one in placed] == content.split()
    assert max_sim["columns"][-1] == {"piece": "[SEP]", "place": None}
    assert reply["passage"]["pieces"][0] == "[CLS]" and reply["passage"]["cut_off"] == 0


def test_columns_are_found_where_vectors_of_some_tokens_are_left_out():
    pieces = ["[CLS]", "the", "cat", ".", "the", "[SEP]"]
    places = [None, (0, 3), (4, 7), (7, 8), (9, 12), None]
    passage = Tokens(np.arange(6), pieces, places, 0)
    assert column_places(passage, pieces[1:]) == places[1:]
    assert column_places(passage, ["the", "cat", "the"]) == [(0, 3), (4, 7), (9, 12)]
    assert column_places(passage, ["dog", "cat"]) == [None, (4, 7)]
    assert column_places(passage, []) == []


def test_encode_gives_all_kinds_of_one_pass(client, service):
    reply = client.post("/encode", json={"texts": ["cat dog", LONG]}).json()
    first, second = reply["items"]
    assert np.linalg.norm(first["dense"]) == pytest.approx(1)
    assert {one["piece"] for one in first["sparse"]} == {"cat", "dog"}
    assert np.shape(first["multi_vector"]) == (3, 4)
    assert (first["tokens"], first["cut_off"], second["cut_off"]) == (4, 0, 2)
    assert service.submitted == [("passage", 4, KINDS), ("passage", 8, KINDS)]


def test_encode_of_one_text_as_a_query_and_some_kinds(client, service):
    body = {"texts": "cat", "side": "query", "kinds": ["sparse", "sparse"]}
    (item,) = client.post("/encode", json=body).json()["items"]
    assert set(item) == {"tokens", "cut_off", "sparse"}
    assert service.submitted == [("query", 3, ("sparse",))]


@pytest.mark.parametrize("k", [0, -1, 10**9, 10**400, True, "3", 2.5, None, [1]])
@pytest.mark.parametrize("route", ["/search", "/compare"])
def test_a_wrong_k_is_refused(client, route, k):
    assert "k: " in refused(client.post(route, json={"query": "a", "k": k}))


@pytest.mark.parametrize(
    ("route", "body", "message"),
    [
        ("/search", {"query": ""}, "query: expected a text, found an empty one"),
        ("/search", {}, "body.query: expected a value, found none"),
        ("/search", {"query": 3}, "body.query: Input should be a valid string; found 3"),
        ("/search", {"query": ["a"]}, "found an array of 1"),
        (
            "/search",
            {"query": "a", "mode": "best"},
            "mode: expected one of dense, sparse, multi_vector, hybrid, found 'best'",
        ),
        (
            "/search",
            {"query": "a", "source": "x"},
            "source: expected the beginning of one of food, pets",
        ),
        ("/search", {"query": "a", "top": 3}, "body.top: is no field of this route"),
        ("/search", {"query": "a", "\x00/tmp": 3}, "is no field of this route"),
        ("/compare", {"query": "a", "mode": "dense"}, "body.mode: is no field"),
        ("/evidence", {"query": "a"}, "body.id: expected a value"),
        ("/evidence", {"query": "a", "id": "p9"}, "id: expected that of a passage"),
        ("/encode", {"texts": []}, "texts: expected 1 to 2,048 texts, found 0"),
        ("/encode", {"texts": ["a", ""]}, "texts[1]: expected a text, found an empty one"),
        ("/encode", {"texts": ["a"] * 2049}, "found 2,049; send them in several requests"),
        ("/encode", {"texts": ["a", 3]}, "check_embedding_ctx_length=False"),
        ("/encode", {"texts": ["a", None]}, "item 1: expected a text, found None"),
        ("/encode", {"texts": {"a": 1}}, "found an object of 1"),
        ("/encode", {"texts": "a" * 200_001}, "expected at most 200,000 characters"),
        ("/encode", {"texts": "a", "kinds": []}, "kinds: expected some of dense, sparse"),
        ("/encode", {"texts": "a", "kinds": ["x"]}, "found 'x'"),
        ("/encode", {"texts": "a", "side": "both"}, "'query' or 'passage'; found 'both'"),
    ],
)
def test_what_is_wrong_is_said(client, service, route, body, message):
    assert message in refused(client.post(route, json=body))
    assert service.submitted == [] or route == "/evidence"


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 422, "expected a JSON object"),
        (b"{", 400, "expected JSON, found an error at character"),
        (b'{"query": "\xff"}', 400, "expected JSON in UTF-8"),
        (b'{"query": "\\ud800"}', 422, "half of a surrogate pair at character 0"),
        (b'{"query": "a", "mode": "\\ud800"}', 422, "mode: expected one of"),
        (b'{"query": "a", "source": "\\ud800"}', 422, "source: expected the beginning"),
        (b'{"query": "a", "\\ud800": 1}', 422, "names of fields in Unicode"),
        (b'{"query": "a", "k": NaN}', 422, "body.k"),
        (b'{"query": "a", "k": ' + b"9" * 5000 + b"}", 400, "cannot be decoded"),
        (b"[" * 100_000, 400, "JSON"),
        (b"[]", 422, "found a list"),
        (b"null", 422, "expected a JSON object"),
        (b'"text"', 422, "found a str"),
    ],
)
def test_bodies_that_are_no_json_object(client, content, status, message):
    reply = client.post("/search", content=content, headers={"Content-Type": "application/json"})
    assert message in refused(reply, status)


def test_a_body_of_another_type_is_refused(client):
    for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
        reply = client.post("/search", content=b'{"query": "a"}', headers=headers)
        assert "Content-Type: application/json" in refused(reply)


@pytest.mark.parametrize("text", ["\x00", "a\x00b", "\x1b[31m", "\u202e", "😀" * 9, " ", "\ufffd"])
def test_any_unicode_is_a_text(client, text):
    for route, body in (
        ("/search", {"query": text}),
        ("/encode", {"texts": text}),
        ("/embed", {"inputs": text, "truncate": True}),
        ("/v1/embeddings", {"input": text}),
    ):
        assert client.post(route, json=body).status_code == 200
