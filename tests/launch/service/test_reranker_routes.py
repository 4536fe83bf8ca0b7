"""All routes over the bundle of a re-ranker, which makes no representations."""

import contextlib

import pytest

from t5x_style.serving.opened.bundle_service import BundleService
from t5x_style.serving.service import Overloaded
from tests.t5x_style.serving import bundle_kit
from tests.t5x_style.serving.reranking import reranker_kit

QUESTION = "where does the river go"
TEXTS = [one.content for one in bundle_kit.PASSAGES]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder, _ = reranker_kit.publish(tmp_path_factory.mktemp("reranker"))
    with contextlib.closing(BundleService(folder / "versions/1")) as opened:
        yield opened


def test_a_search_is_reranked_unless_it_names_a_mode(client, service):
    found = client.post("/search", json={"query": QUESTION, "k": 4}).json()
    expected = reranker_kit.reranked(service, QUESTION, 4)
    assert found["mode"] == "reranked"
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in expected]
    scores = [hit["score"] for hit in found["hits"]]
    assert scores == pytest.approx([hit.score for hit in expected], abs=1e-5)
    assert found["seconds"]["encoding"] > 0
    (first,) = client.get("/search", params={"q": QUESTION, "k": 1, "mode": "bm25"}).json()["hits"]
    assert first["scores"].keys() == {"bm25"}
    one = client.post("/search", json={"query": QUESTION, "source": "water/"}).json()["hits"]
    assert {hit["id"] for hit in one} == {"a", "b"}
    assert client.post("/search", json={"query": "zebra"}).json()["hits"] == []
    wrong = client.post("/search", json={"query": QUESTION, "mode": "dense"})
    assert wrong.status_code == 422 and "one of bm25, reranked" in wrong.json()["error"]


def test_modes_side_by_side(client):
    found = client.post("/compare", json={"query": QUESTION, "k": 3}).json()["modes"]
    assert list(found) == ["bm25", "reranked"]
    assert {hit["id"] for hit in found["bm25"]} == {hit["id"] for hit in found["reranked"]}


def test_each_source(client):
    found = client.post("/sources", json={"query": "sea river salt", "k": 2}).json()
    assert found["mode"] == "bm25"  # each source would be read otherwise
    found = client.post("/sources", json={"query": "sea river salt", "mode": "reranked"}).json()
    best = [max(hit["scores"]["reranked"] for hit in one["hits"]) for one in found["sources"][:3]]
    assert best == sorted(best, reverse=True) and len(best) == 3


def test_why_a_passage_was_found(client):
    found = client.post("/evidence", json={"query": QUESTION, "id": "a"}).json()
    assert {word["piece"] for word in found["words"]} == {"river"} and found["max_sim"] is None


def test_given_texts(client, service):
    reranker, asked = service.reranker, service.tokenize("query", QUESTION)
    expected = [
        reranker.score(reranker.pair(asked, service.tokenize("passage", text))).result()
        for text in TEXTS
    ]
    body = {"query": QUESTION, "texts": TEXTS, "raw_scores": True}
    reply = client.post("/rerank", json=body).json()
    assert [one["score"] for one in reply] == sorted((one["score"] for one in reply), reverse=True)
    found = {one["index"]: one["score"] for one in reply}
    assert [found[n] for n in range(len(TEXTS))] == pytest.approx(expected, abs=1e-5)
    refused = client.post("/rerank", json={**body, "query": "sea", "truncate": False})
    assert refused.status_code == 422 and "texts[4]: expected at most 24" in refused.json()["error"]
    cut = {"query": QUESTION, "documents": TEXTS[:1], "max_tokens_per_doc": 5}
    (short,) = client.post("/v2/rerank", json=cut).json()["results"]
    (whole,) = client.post("/v2/rerank", json={**cut, "max_tokens_per_doc": None}).json()["results"]
    assert 0 < short["relevance_score"] < 1
    assert short["relevance_score"] != pytest.approx(whole["relevance_score"], abs=1e-6)


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("/encode", {"texts": ["a"]}, 424),
        ("/embed", {"inputs": "a", "dimensions": 384}, 424),
        ("/embed_sparse", {"inputs": "a"}, 424),
        ("/embed_all", {"inputs": "a"}, 424),
        ("/v1/embeddings", {"input": "a", "dimensions": 384}, 424),
        ("/answer", {"query": "a"}, 424),
        ("/fill", {"text": "a [MASK]"}, 424),
        ("/map", None, 422),
        ("/curves", None, 422),
    ],
)
def test_what_it_does_not_make(client, route, body, status):
    reply = client.get(route) if body is None else client.post(route, json=body)
    assert reply.status_code == status, reply.text


def test_what_it_says_of_itself(client):
    found = client.get("/info").json()
    assert found["kinds"] == [] and found["modes"] == ["bm25", "reranked"] and found["reranks"]
    assert found["model_type"].keys() == {"reranker"}
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["reranker"]
    assert client.get("/health").status_code == 200 and "kennel" in client.get("/metrics").text


def test_a_queue_that_others_fill_is_429_and_its_own_pairs_wait_for_room(
    client, service, monkeypatch
):
    submit, taken = service.batches.submit, []

    def with_room_for_one(*arguments):
        if len(taken) % 2:
            taken.append(None)
            raise Overloaded(1.0)
        taken.append(submit(*arguments))
        return taken[-1]

    monkeypatch.setattr(service.batches, "submit", with_room_for_one)
    assert client.post("/search", json={"query": QUESTION}).status_code == 200
    assert len(taken) > 2  # a pair that found no room was submitted again later

    def full(*arguments):
        raise Overloaded(1.0)

    monkeypatch.setattr(service.batches, "submit", full)
    assert client.post("/search", json={"query": QUESTION}).status_code == 429
    assert client.post("/search", json={"query": QUESTION, "mode": "bm25"}).status_code == 200
