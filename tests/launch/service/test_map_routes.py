"""The map of the corpus: the reply, a bundle without vectors, and the limits of a server."""

import threading
import time

import pytest

from tests.launch.service.fake_service import PASSAGES, FakeService

LISTS = ("ids", "x", "y", "titles", "texts", "groups")


def test_the_reply_has_one_entry_of_each_list_for_a_passage(client):
    reply = client.get("/map")
    found = reply.json()
    assert reply.status_code == 200
    assert (found["version"], found["passages"]) == (1, 3)
    assert {len(found[name]) for name in LISTS} == {3}
    assert found["ids"] == list(PASSAGES) and found["x"] == [-1, 0.5, 0.5]
    assert found["sources"] == ["food", "pets"] and found["groups"] == [1, 1, 0]
    assert found["explained"] == [0.5, 0.25]
    assert b"-0.1234," in reply.content  # as short as it was rounded


def test_it_is_compressed_for_clients_that_take_it(client):
    plain = client.get("/map", headers={"Accept-Encoding": "identity"})
    packed = client.get("/map", headers={"Accept-Encoding": "deflate, gzip"})
    assert "Content-Encoding" not in plain.headers and packed.headers["Content-Encoding"] == "gzip"
    assert plain.json() == packed.json()  # the client unpacks it
    assert int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"])


def test_a_bundle_without_dense_vectors_has_no_map(serve):
    client = serve(FakeService(kinds=("sparse",)))
    reply = client.get("/map")
    assert reply.status_code == 422
    assert set(reply.json()) == {"error", "error_type"}
    assert "a map is drawn of dense vectors" in reply.json()["error"]


def test_it_needs_the_key_and_is_counted(serve, service):
    client = serve(service, api_key="secret")
    assert client.get("/map").status_code == 401 and service.maps == []
    key = {"Authorization": "Bearer secret"}
    assert client.get("/map", headers=key).status_code == 200
    text = client.get("/metrics", headers=key).text
    assert 'kennel_requests_total{method="GET",route="/map",status="200"} 1.0' in text


def test_who_waits_for_it_counts_as_a_request_and_takes_no_thread(serve, service):
    client = serve(service, max_requests=2, threads=1)
    service.hanging = True
    replies = []
    waiting = threading.Thread(target=lambda: replies.append(client.get("/map")))
    waiting.start()
    while not service.maps:
        time.sleep(0.01)
    service.hanging = False
    assert client.post("/search", json={"query": "a cat"}).status_code == 200
    blocked = threading.Thread(target=lambda: replies.append(client.get("/map")))
    service.hanging = True
    blocked.start()
    while len(service.maps) < 2:
        time.sleep(0.01)
    assert client.get("/map").status_code == 429
    service.hanging = False
    made = service.map().result(0)
    for future in service.maps[:2]:
        future.set_result(made)
    for thread in (waiting, blocked):
        thread.join(10)
    assert [reply.status_code for reply in replies] == [200, 200]


def test_a_map_that_takes_too_long_is_answered_and_goes_on(serve, service):
    client = serve(service, timeout=0.2)
    service.hanging = True
    assert client.get("/map").status_code == 504
    assert service.maps[0].running()  # for the next request
    service.hanging = False
    assert client.get("/map").status_code == 200


@pytest.mark.parametrize("path", ["map/map_view.js", "map/map.css"])
def test_files_of_the_map_are_served(client, path):
    assert client.get(f"/page/{path}").status_code == 200
