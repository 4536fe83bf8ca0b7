"""Routes of OpenAI, TEI and Cohere: what their clients send and read."""

import base64

import numpy as np
import pytest

from launch.service.tei_routes import unit_score
from tests.launch.service.fake_service import FakeService, encoded

LONG = " ".join("abcdefgh")


def vector(service, text):
    return encoded(service.tokenize("passage", text), ("dense",)).dense


def test_openai_gives_floats_or_base64(client, service):
    body = {"model": "text-embedding-3-small", "input": ["cat", "dog"], "user": "me", "new": 1}
    reply = client.post("/v1/embeddings", json={**body, "dimensions": 4}).json()
    assert (reply["object"], reply["model"]) == ("list", "fake")
    assert [(one["object"], one["index"]) for one in reply["data"]] == [
        ("embedding", 0),
        ("embedding", 1),
    ]
    assert reply["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    packed = client.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()
    for one, other, text in zip(reply["data"], packed["data"], body["input"], strict=True):
        decoded = np.frombuffer(base64.b64decode(other["embedding"]), "<f4")
        np.testing.assert_array_equal(decoded, np.float32(one["embedding"]))
        np.testing.assert_array_equal(decoded, vector(service, text))


def test_openai_takes_null_for_what_is_absent(client):
    body = {"model": None, "input": "cat", "encoding_format": None, "dimensions": None}
    reply = client.post("/v1/embeddings", json=body)
    assert reply.status_code == 200 and reply.json()["model"] == "fake"
    assert isinstance(reply.json()["data"][0]["embedding"], list)


def test_as_many_texts_as_openai_takes_and_a_thousand_long_ones(client):
    assert client.post("/v1/embeddings", json={"input": ["a"] * 2048}).status_code == 200
    assert client.post("/v1/embeddings", json={"input": ["word " * 800] * 1000}).status_code == 200


def test_openai_encodes_queries_where_the_name_says_so(client, service):
    reply = client.post("/v1/embeddings", json={"model": "fake:query", "input": "cat"}).json()
    assert reply["model"] == "fake:query" and service.submitted[-1][0] == "query"
    client.post("/v1/embeddings", json={"model": "fake", "input": "cat"})
    assert service.submitted[-1][0] == "passage"
    names = [one["id"] for one in client.get("/v1/models").json()["data"]]
    assert names == ["fake", "fake:query"]


def test_openai_reports_texts_that_were_cut(client):
    reply = client.post("/v1/embeddings", json={"input": [LONG, "cat", LONG]})
    assert reply.headers["X-Truncated"] == "0,2"
    assert "X-Truncated" not in client.post("/v1/embeddings", json={"input": "cat"}).headers


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": [1, 2, 3]}, "check_embedding_ctx_length=False"),
        ({"input": [[1, 2], [3]]}, "check_embedding_ctx_length=False"),
        ({"input": []}, "input: expected 1 to 2,048 texts, found 0"),
        ({"input": ""}, "input: expected a text, found an empty one"),
        ({"input": ["cat", ""]}, "input[1]: expected a text"),
        ({}, "body.input: expected a value"),
        ({"input": None}, "expected a text or an array of texts, found None"),
        ({"input": "a", "dimensions": 3}, "dimensions: expected 4"),
        ({"input": "a", "encoding_format": "int8"}, "'float' or 'base64'; found 'int8'"),
    ],
)
def test_openai_errors_are_in_the_shape_of_its_client_and_of_tei(client, body, message):
    reply = client.post("/v1/embeddings", json=body)
    assert reply.status_code == 422
    found = reply.json()
    assert message in found["message"]
    assert found["error"]["message"] == found["message"]
    assert found["error"]["type"] == "invalid_request_error"
    assert (found["code"], found["error_type"]) == (422, "Validation")


def test_tei_embeds_by_each_kind(client, service):
    found = client.post("/embed", json={"inputs": ["cat", "dog"], "truncate": True}).json()
    np.testing.assert_array_equal(np.float32(found[0]), vector(service, "cat"))
    assert len(client.post("/embed", json={"inputs": "cat", "model": "x"}).json()) == 1
    (sparse,) = client.post("/embed_sparse", json={"inputs": "cat cat"}).json()
    assert [set(one) for one in sparse] == [{"index", "value"}]
    (vectors,) = client.post("/embed_all", json={"inputs": ["cat"]}).json()
    assert np.shape(vectors) == (2, 4)
    assert [kinds for _, _, kinds in service.submitted[-2:]] == [("sparse",), ("multi_vector",)]


def test_tei_encodes_queries_where_it_is_asked(client, service):
    client.post("/embed", json={"inputs": "cat", "prompt_name": "query"})
    assert service.submitted == [("query", 3, ("dense",))]
    reply = client.post("/embed", json={"inputs": "cat", "prompt_name": "other"})
    assert reply.status_code == 422 and "'query' or 'passage'" in reply.json()["error"]


@pytest.mark.parametrize("route", ["/embed", "/embed_sparse", "/embed_all", "/rerank"])
def test_tei_cuts_texts_at_their_end_alone(client, route):
    body = {"query": "a", "texts": [LONG]} if route == "/rerank" else {"inputs": LONG}
    for direction in ("Right", "right", None):
        reply = client.post(route, json={**body, "truncation_direction": direction})
        assert reply.status_code == 200 and reply.headers["X-Truncated"] == "0"
    reply = client.post(route, json={**body, "truncation_direction": "Left"})
    assert reply.status_code == 422
    assert "expected 'Right', as texts are cut at their end" in reply.json()["error"]


def test_tei_normalizes_where_it_is_asked(serve):
    service = FakeService(similarity="dot")
    service.tokenize("passage", "cat")
    client = serve(service)
    for normalize in (None, True, False):
        (found,) = client.post("/embed", json={"inputs": "cat", "normalize": normalize}).json()
        assert np.linalg.norm(found) == pytest.approx(1)


@pytest.mark.parametrize("route", ["/embed", "/embed_sparse", "/embed_all"])
def test_tei_refuses_a_text_that_is_too_long_or_reports_it(client, route):
    reply = client.post(route, json={"inputs": ["cat", LONG], "truncate": False})
    assert reply.status_code == 422
    assert reply.json() == {
        "error": "inputs[1]: expected at most 8 tokens, found 10; shorten the text, or leave "
        "out truncate, and it is cut",
        "error_type": "Validation",
    }
    for more in ({}, {"truncate": True}):
        reply = client.post(route, json={"inputs": ["cat", LONG]} | more)
        assert reply.status_code == 200 and reply.headers["X-Truncated"] == "1"


def test_reranking_says_what_it_cut(client):
    for route, field, more in (
        ("/rerank", "texts", {}),
        ("/v2/rerank", "documents", {"model": "m"}),
    ):
        reply = client.post(route, json={"query": LONG, field: ["cat", LONG], **more})
        assert reply.status_code == 200
        assert reply.headers["X-Truncated"] == "1"
        assert reply.headers["X-Truncated-Query"] == "true"


@pytest.mark.parametrize(
    ("kinds", "route", "body"),
    [
        (("sparse",), "/embed", {"inputs": "a"}),
        (("sparse",), "/v1/embeddings", {"input": "a"}),
        (("dense",), "/embed_sparse", {"inputs": "a"}),
        (("dense",), "/embed_all", {"inputs": "a"}),
    ],
)
def test_a_kind_that_the_model_lacks(serve, kinds, route, body):
    reply = serve(FakeService(kinds=kinds)).post(route, json=body)
    assert reply.status_code == 424 and reply.json()["error_type"] == "Backend"
    assert f"the model makes only {kinds[0]}" in reply.text


def test_tei_reranks(client, service):
    texts = ["dog", "cat", "cat dog"]
    body = {"query": "cat", "texts": texts, "return_text": True, "raw_scores": True}
    reply = client.post("/rerank", json=body).json()
    expected = sorted(range(3), key=lambda n: -float(vector(service, "cat") @ vector(
        service, texts[n]
    )))  # fmt: skip
    assert [one["index"] for one in reply] == expected and expected[0] == 1
    assert reply[0]["text"] == "cat" and reply[0]["score"] == pytest.approx(1)
    assert [side for side, _, _ in service.submitted] == ["query", *["passage"] * 3]
    plain = client.post("/rerank", json={"query": "cat", "texts": texts}).json()
    assert [one["index"] for one in plain] == expected and set(plain[0]) == {"index", "score"}
    assert all(0 <= one["score"] <= 1 for one in plain)
    reply = client.post("/rerank", json={"query": LONG, "texts": ["a"], "truncate": False})
    assert reply.status_code == 422 and reply.json()["error"].startswith("query: expected at most")
    reply = client.post("/rerank", json={"query": "a", "texts": []})
    assert reply.status_code == 422 and "texts: expected 1 to" in reply.json()["error"]


def test_a_model_without_vectors_reranks_by_what_it_has(serve):
    service = FakeService(kinds=("sparse",))
    reply = serve(service).post("/rerank", json={"query": "a", "texts": ["a", "b"]}).json()
    assert [one["index"] for one in reply] == [0, 1]
    assert service.submitted[0][2] == ("sparse",)


def test_scores_between_0_and_1_keep_the_order():
    for similarity, scores in (("cosine", [-1, -0.5, 0, 1]), ("dot", [-1000, -3, 0, 2, 1000])):
        found = [unit_score(similarity)(score) for score in scores]
        assert found == sorted(found) and found[0] >= 0 and found[-1] <= 1
    assert unit_score("dot")(0) == 0.5 and unit_score("cosine")(1.0000001) == 1


def test_a_reranker_scores_pairs(serve):
    service = FakeService(kinds=(), modes=("bm25", "reranked"), reranks=True, similarity="score")
    client, texts = serve(service), ["a dog", "the cat", LONG, "a cat"]
    body = {"query": "a cat", "texts": texts}
    reply = client.post("/rerank", json={**body, "raw_scores": True})
    assert [(one["index"], one["score"]) for one in reply.json()] == [
        (3, 2),
        (0, 1),
        (1, 1),
        (2, 1),
    ]
    assert reply.headers["X-Truncated"] == "2" and not service.submitted
    plain = client.post("/rerank", json=body).json()
    assert plain[0]["score"] == pytest.approx(1 / (1 + np.exp(-2)))
    ranked = {"query": "a cat", "documents": texts, "top_n": 1}
    (first,) = client.post("/v2/rerank", json=ranked).json()["results"]
    assert first == {"index": 3, "relevance_score": pytest.approx(plain[0]["score"])}
    assert client.get("/info").json()["model_type"].keys() == {"reranker"}
    for route, of_one in (("/embed", {"inputs": "a"}), ("/encode", {"texts": ["a"]})):
        refused = client.post(route, json=of_one)
        assert refused.status_code == 424 and "scores pairs" in refused.json()["error"]


@pytest.mark.parametrize("version", ["1", "2"])
def test_cohere_reranks(client, version):
    body = {
        "model": "rerank-v3.5",
        "query": "cat",
        "documents": ["dog", {"text": "cat", "id": 3}, LONG],
        "top_n": 2,
        "max_tokens_per_doc": 4096,
        "return_documents": True,
    }
    reply = client.post(f"/v{version}/rerank", json=body).json()
    assert len(reply["results"]) == 2 and reply["results"][0]["index"] == 1
    assert reply["results"][0]["relevance_score"] == pytest.approx(1)
    assert reply["meta"]["api_version"] == {"version": version}
    assert reply["meta"]["billed_units"] == {"search_units": 1} and reply["id"]
    assert ("document" in reply["results"][0]) == (version == "1")


def test_cohere_cuts_documents_where_it_is_asked(client, service):
    body = {"query": "cat", "documents": ["cat dog mouse", "cat"], "max_tokens_per_doc": 3}
    reply = client.post("/v2/rerank", json=body)
    assert [count for _, count, _ in service.submitted] == [3, 3, 3]
    assert reply.headers["X-Truncated"] == "0"
    scores = [one["relevance_score"] for one in reply.json()["results"]]
    assert scores == pytest.approx([1, 1])


@pytest.mark.parametrize("longest", [1, 2])
def test_cohere_cuts_no_special_tokens(client, service, longest):
    body = {"query": "cat", "documents": ["cat dog"], "max_tokens_per_doc": longest}
    assert client.post("/v2/rerank", json=body).status_code == 200
    assert service.submitted[-1][1] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"documents": []},
        {"documents": [3]},
        {"documents": [{"body": "a"}]},
        {"documents": [""]},
        {"query": ""},
        {"top_n": 0},
        {"max_tokens_per_doc": 0},
    ],
)
def test_cohere_errors(client, change):
    reply = client.post("/v2/rerank", json={"query": "a", "documents": ["a"], **change})
    assert reply.status_code == 422
    assert set(reply.json()) == {"message", "error_type"}
    assert next(iter(change)) in reply.json()["message"]
