"""Search within each source: the reply, sources that begin alike, and what is refused."""

import pytest

from t5x_style.serving.service import Hit
from tests.launch.service.fake_service import KINDS, PASSAGES, FakeService


def test_each_source_has_its_best_passages_and_the_query_is_encoded_once(client, service):
    found = client.post("/sources", json={"query": "a cat"}).json()
    assert (found["mode"], found["version"]) == ("hybrid", 1)
    assert found["query"] == {"tokens": 4, "cut_off": 0}
    ids = {one["source"]: [hit["id"] for hit in one["hits"]] for one in found["sources"]}
    assert ids == {"pets": ["p1", "p2"], "food": ["p3"]}
    title, text, source = PASSAGES["p3"]
    expected = {"rank": 1, "id": "p3", "title": title, "text": text, "source": source}
    hit = next(one for one in found["sources"] if one["source"] == "food")["hits"][0]
    assert hit == {**expected, "score": hit["score"], "scores": dict.fromkeys(KINDS, hit["score"])}
    assert service.submitted == [("query", 4, KINDS)]
    assert set(found["seconds"]) == {"tokenization", "encoding", "search"}


def test_k_and_mode(client, service):
    found = client.post("/sources", json={"query": "a", "k": 1, "mode": "dense"}).json()
    assert found["mode"] == "dense" and service.submitted == [("query", 3, ("dense",))]
    assert [len(one["hits"]) for one in found["sources"]] == [1, 1]


class Scored(FakeService):
    """Passages (id, source, score) of which a search takes those whose source begins so."""

    def __init__(self, rows):
        super().__init__(sources=tuple(sorted({source for _, source, _ in rows})))
        self.rows, self.asked = rows, []

    def search(self, query, mode, k, source=None):
        self.asked.append((source, k))
        rows = [row for row in self.rows if row[1].startswith(source)]
        rows.sort(key=lambda row: -row[2])
        return [Hit(score, {}, name, "", "text", where) for name, where, score in rows[:k]]


def test_sources_are_in_the_order_of_their_best_scores(serve):
    rows = [("a", "de", 0.1), ("b", "fr", 0.9), ("c", "fr", 0.2), ("d", "nl", 0.5)]
    found = serve(Scored(rows)).post("/sources", json={"query": "a"}).json()["sources"]
    assert [one["source"] for one in found] == ["fr", "nl", "de"]
    assert [[hit["rank"] for hit in one["hits"]] for one in found] == [[1, 2], [1], [1]]


def test_a_source_has_no_passages_of_one_that_begins_so(serve):
    taiwan = [(f"t{n}", "zh-Hant", 1 - n / 100) for n in range(30)]
    service = Scored([*taiwan, ("a", "zh", 0.2), ("b", "zh", 0.3), ("c", "zh", 0.1)])
    found = serve(service).post("/sources", json={"query": "a", "k": 2}).json()["sources"]
    ids = {one["source"]: [hit["id"] for hit in one["hits"]] for one in found}
    assert ids == {"zh-Hant": ["t0", "t1"], "zh": ["b", "a"]}
    assert ("zh", 128) in service.asked and ("zh-Hant", 2) in service.asked


def test_a_source_without_hits_is_last(serve, monkeypatch):
    service = FakeService()
    search = service.search
    monkeypatch.setattr(
        service, "search", lambda *given: [] if given[-1] == "pets" else search(*given)
    )
    found = serve(service).post("/sources", json={"query": "a"}).json()["sources"]
    assert [(one["source"], len(one["hits"])) for one in found] == [("food", 1), ("pets", 0)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": ""}, "query: expected a text, found an empty one"),
        ({"query": "a", "k": 0}, "k: expected 1 to 500, for each of 2 sources, found 0"),
        ({"query": "a", "k": 501}, "k: expected 1 to 500, for each of 2 sources, found 501"),
        ({"query": "a", "mode": "magic"}, "mode: expected one of"),
        ({"query": "a", "source": "pets"}, "is no field"),
        ({}, "query: expected a value"),
    ],
)
def test_what_is_refused(client, body, message):
    reply = client.post("/sources", json=body)
    assert reply.status_code == 422 and set(reply.json()) == {"error", "error_type"}
    assert message in reply.json()["error"]


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ((), "name their source, found one that lists none"),
        (tuple(f"s{n}" for n in range(25)), "expected at most 24, found 25"),
    ],
)
def test_a_bundle_without_sources_or_with_too_many(serve, sources, message):
    service = FakeService(sources=sources)
    reply = serve(service).post("/sources", json={"query": "a"})
    assert reply.status_code == 422 and message in reply.json()["error"]
    assert service.submitted == []


def test_it_needs_the_key(serve, service):
    client = serve(service, api_key="secret")
    assert client.post("/sources", json={"query": "a"}).status_code == 401
