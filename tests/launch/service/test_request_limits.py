"""Limits: the key, bytes, requests at a time, seconds; what leaves the queue, and hot swaps."""

import asyncio
import json
import threading

import httpx
import pytest

from launch.service.app import create_app
from launch.service.request_limits import CLIENT_GONE
from launch.service.settings import Settings
from t5x_style.serving.service import Overloaded
from tests.launch.service.fake_service import FakeCurrent, FakeService

SEARCH = {"query": "a cat"}


def app_of(service, **settings):
    current = FakeCurrent(service)
    return create_app(current, Settings(**{"threads": 2, **settings})), current


def client_of(app):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def until(condition):
    """Waits for something that other tasks do."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def counted(app, status):
    """Requests that the metrics have with a status."""
    lines = app.state.metrics.text(0, 0, 1).decode().splitlines()
    found = (line for line in lines if line.startswith("kennel_requests_total"))
    return sum(float(line.split()[-1]) for line in found if f'status="{status}"' in line)


def test_a_body_that_is_too_large(serve, service):
    client = serve(service, max_body=100)
    body = json.dumps({"query": "a " * 100}).encode()
    headers = {"Content-Type": "application/json"}
    for content in (body, (body[at : at + 10] for at in range(0, len(body), 10))):
        reply = client.post("/search", content=content, headers=headers)
        assert reply.status_code == 413 and reply.json()["error_type"] == "Validation"
        assert "at most 100 bytes" in reply.json()["error"]
        assert reply.headers["Connection"] == "close"
    reply = client.post("/v1/embeddings", content=body, headers=headers)
    assert reply.status_code == 413 and "100 bytes" in reply.json()["error"]["message"]
    for length in ("9" * 30, "1000"):
        reply = client.post("/search", content=b"{}", headers={**headers, "Content-Length": length})
        assert reply.status_code == 413
    chunks = (body for body in (b'{"query"', b': "a"}'))
    assert client.post("/search", content=chunks, headers=headers).status_code == 200


def test_bodies_of_all_requests_have_a_limit():
    async def run():
        service = FakeService()
        service.hanging = True
        app, _ = app_of(service, max_body=100, max_bodies=100)
        async with client_of(app) as client:
            running = asyncio.create_task(client.post("/search", json={"query": "a" * 60}))
            await until(lambda: service.submitted)
            reply = await client.post("/embed", json={"inputs": "a" * 60})
            assert reply.status_code == 429 and reply.headers["Retry-After"] == "1"
            assert reply.headers["Connection"] == "close"
            service.hanging = False
            service.release()
            assert (await running).status_code == 200
            assert (await client.post("/embed", json={"inputs": "a" * 60})).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent", ["", "Bearer", "Bearer ", "Bearer secre", "Basic secret", "sécret"]
)
def test_a_wrong_key_is_refused(serve, service, sent):
    client = serve(service, api_key="secret")
    reply = client.post("/search", json=SEARCH, headers={"Authorization": sent.encode()})
    assert reply.status_code == 401 and reply.headers["WWW-Authenticate"] == "Bearer"
    assert "Authorization: Bearer KEY" in reply.json()["error"] and "secret" not in reply.text
    assert client.get("/metrics").status_code == client.get("/info").status_code == 401
    assert client.get("/health").status_code == client.get("/docs").status_code == 200


def test_the_key_lets_pass(serve, service):
    client = serve(service, api_key="secret")
    for scheme in ("Bearer", "bearer"):
        headers = {"Authorization": f"{scheme} secret"}
        assert client.post("/search", json=SEARCH, headers=headers).status_code == 200
    assert "secret" not in repr(client.app.state.settings)


@pytest.mark.parametrize(
    "change",
    [
        {"max_k": 0},
        {"timeout": float("nan")},
        {"api_key": ""},
        {"api_key": "a b"},
        {"api_key": "ü"},
        {"threads": -1},
    ],
)
def test_limits_that_let_nothing_pass(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Settings(**change)


@pytest.mark.parametrize("host", ["localhost:8000", "LocalHost", "127.0.0.1:1", "[::1]:8000"])
def test_a_known_host_is_answered(serve, service, host):
    client = serve(service, hosts=("localhost", "127.0.0.1", "::1"))
    assert client.post("/search", json=SEARCH, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", ""]
)
@pytest.mark.parametrize("path", ["/", "/search", "/health"])
def test_another_host_is_refused_before_anything_is_answered(serve, service, host, path):
    client = serve(service, hosts=("localhost", "127.0.0.1", "::1"))
    reply = client.get(path, headers={"Host": host})
    assert reply.status_code == 421
    assert "expected one of localhost, 127.0.0.1, ::1" in reply.json()["error"]
    assert "--allow_host=NAME" in reply.json()["error"]


def test_more_requests_than_allowed_are_refused_until_one_ends():
    async def run():
        service = FakeService()
        app, _ = app_of(service, max_requests=2)
        service.hanging = True
        async with client_of(app) as client:
            running = [asyncio.create_task(client.post("/search", json=SEARCH)) for _ in range(2)]
            await until(lambda: len(service.submitted) == 2)
            reply = await client.post("/embed", json={"inputs": "a"})
            assert reply.status_code == 429 and reply.headers["Retry-After"] == "1"
            assert reply.json()["error_type"] == "Overloaded"
            assert (await client.get("/health")).status_code == 200
            assert "kennel_requests_active 2.0" in (await client.get("/metrics")).text
            assert "kennel_waiting_tokens 8.0" in (await client.get("/metrics")).text
            service.hanging = False
            service.release()
            assert [(await one).status_code for one in running] == [200, 200]
            assert (await client.post("/search", json=SEARCH)).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    ("retry_after", "header"),
    [(0.2, "1"), (2.3, "3"), (1e9, "3600"), (float("inf"), "60"), (float("nan"), "60")],
)
def test_a_full_queue_names_whole_seconds(serve, service, monkeypatch, retry_after, header):
    def submit(*_):
        raise Overloaded(retry_after)

    monkeypatch.setattr(service, "submit", submit)
    client = serve(service)
    for route, body in (("/search", SEARCH), ("/v1/embeddings", {"input": ["a", "b"]})):
        reply = client.post(route, json=body)
        assert reply.status_code == 429 and reply.headers["Retry-After"] == header


def test_a_request_that_fills_the_queue_by_itself_is_answered(serve, service):
    service.room = 3
    client = serve(service)
    reply = client.post("/embed", json={"inputs": [f"text {n}" for n in range(50)]})
    assert reply.status_code == 200 and len(reply.json()) == 50
    expected = client.post("/embed", json={"inputs": "text 49"}).json()
    assert reply.json()[49] == expected[0]


def test_a_large_request_is_split(serve, service):
    client = serve(service, texts_in_queue=16)
    texts = [f"text {n}" for n in range(1024)]
    reply = client.post("/encode", json={"texts": texts, "kinds": ["dense"]})
    assert reply.status_code == 200 and len(reply.json()["items"]) == len(service.submitted) == 1024


@pytest.mark.parametrize("route", ["/search", "/v1/embeddings"])
def test_what_takes_too_long_is_answered_and_leaves_the_queue(route):
    async def run():
        service = FakeService()
        service.hanging = True
        app, current = app_of(service, timeout=1)
        async with client_of(app) as client:
            body = SEARCH if route == "/search" else {"input": ["a", "b", "c"]}
            reply = await client.post(route, json=body)
            assert reply.status_code == 504 and "no answer in 1 s" in reply.text
            assert service.cancelled == len(service.submitted) > 0 and current.users == 0
            service.hanging = False
            assert (await client.post("/search", json=SEARCH)).status_code == 200

    asyncio.run(run())


class Connection:
    """A request as a server passes it to an app; the client is gone when `gone` is set."""

    def __init__(self, app, path, body):
        self.gone, self.sent = asyncio.Event(), []
        self._messages = [{"type": "http.request", "body": json.dumps(body).encode()}]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
        scope["headers"] = [(b"content-type", b"application/json")]
        self.task = asyncio.create_task(app(scope, self._receive, lambda one: self._send(one)))

    async def _receive(self):
        if self._messages:
            return self._messages.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]


def test_texts_of_a_client_that_is_gone_leave_the_queue():
    async def run():
        service = FakeService()
        service.hanging = True
        app, current = app_of(service)
        request = Connection(app, "/embed", {"inputs": ["a"] * 5})
        await until(lambda: len(service.submitted) == 5)
        request.gone.set()
        await request.task
        assert (request.sent, service.cancelled, current.users) == ([], 5, 0)
        assert counted(app, CLIENT_GONE) == 1

    asyncio.run(run())


def test_a_client_that_leaves_with_its_reply_is_not_gone():
    """uvicorn reports a disconnection as soon as the reply is sent."""

    async def run():
        app, current = app_of(FakeService())
        request = Connection(app, "/search", SEARCH)
        send, sent = request._send, request.sent

        async def and_leave(message):
            await send(message)
            if message["type"] == "http.response.body":
                request.gone.set()

        request._send = and_leave
        await request.task
        assert request.status == 200 and len(sent) == 2 and current.users == 0
        assert counted(app, CLIENT_GONE) == 0 and counted(app, 200) == 1

    asyncio.run(run())


def test_a_version_stays_open_for_a_search_that_takes_too_long(monkeypatch):
    async def run():
        service, may_end = FakeService(), threading.Event()
        monkeypatch.setattr(service, "search", lambda *_: may_end.wait(10))
        app, current = app_of(service, timeout=1)
        request = Connection(app, "/search", SEARCH)
        await until(lambda: len(request.sent) == 2)
        assert request.status == 504 and not request.task.done() and current.users == 1
        may_end.set()
        await request.task
        assert len(request.sent) == 2 and current.users == 0

    asyncio.run(run())


def test_a_body_that_does_not_arrive():
    async def run():
        app, _ = app_of(FakeService(), timeout=0.05)

        async def slowly():
            yield b"{"
            await asyncio.sleep(5)

        async with client_of(app) as client:
            reply = await client.post("/search", content=slowly())
        assert reply.status_code == 408 and "all of it in 0.05 s" in reply.text

    asyncio.run(run())


def test_a_request_uses_one_version_and_the_next_one_the_newer():
    async def run():
        old, new = FakeService(version=1), FakeService(version=2)
        old.hanging = True
        app, current = app_of(old)
        async with client_of(app) as client:
            running = asyncio.create_task(client.post("/search", json=SEARCH))
            await until(lambda: old.submitted)
            current.service = new
            assert (await client.post("/search", json=SEARCH)).json()["version"] == 2
            assert current.users == 1
            old.hanging = False
            old.release()
            assert (await running).json()["version"] == 1
        assert current.users == 0

    asyncio.run(run())


def test_a_service_that_is_closed_is_503(serve, service):
    client = serve(service)
    service.close()
    for route, body in (("/search", SEARCH), ("/v1/embeddings", {"input": "a"})):
        reply = client.post(route, json=body)
        assert reply.status_code == 503 and reply.headers["Retry-After"] == "1"


def test_an_error_of_the_server_says_nothing_of_its_inside(serve, service):
    service.failure = RuntimeError("/home/me/secret.npy is damaged")
    reply = serve(service).post("/search", json=SEARCH)
    assert reply.status_code == 500 and set(reply.json()) == {"error", "error_type"}
    assert "secret" not in reply.text and "Traceback" not in reply.text
