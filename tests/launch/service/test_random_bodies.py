"""Any body on any route is answered without an error of the server, and without its inside."""

import json
import re
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from launch.service.app import create_app
from launch.service.settings import Settings
from tests.launch.service.fake_service import KINDS, FakeCurrent, FakeService

FIELDS = {
    "/search": ("query", "mode", "k", "source"),
    "/compare": ("query", "k"),
    "/evidence": ("query", "id"),
    "/answer": ("query", "k", "source"),
    "/fill": ("text", "k", "words", "source"),
    "/sources": ("query", "k", "mode"),
    "/encode": ("texts", "side", "kinds"),
    "/v1/embeddings": ("input", "model", "encoding_format", "dimensions", "user"),
    "/embed": ("inputs", "truncate", "truncation_direction", "normalize", "prompt_name"),
    "/embed_sparse": ("inputs", "truncate", "dimensions"),
    "/embed_all": ("inputs", "truncate"),
    "/rerank": ("query", "texts", "raw_scores", "return_text", "truncate", "truncation_direction"),
    "/v1/rerank": ("query", "documents", "top_n", "return_documents"),
    "/v2/rerank": ("query", "documents", "top_n", "max_tokens_per_doc", "model"),
}
READING = {"/answer": "answer", "/fill": "fill"}  # route -> what a model has to do for it
OTHERS = (
    "/curves",
    "/health",
    "/info",
    "/metrics",
    "/docs",
    "/openapi.json",
    "/",
    "/page/a.js",
    "/v1/models",
)
LIKELY = (
    "cat",
    "a b",
    "a [MASK]",
    "p1",
    "food",
    *KINDS,
    "hybrid",
    ":query",
    "query",
    "passage",
    "base64",
)
TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)  # and surrogates
LEAVES = st.one_of(
    st.sampled_from(LIKELY),
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from((0, -1, 1, 4, 10, 10**9, 2**63, 2**64, 10**30)),
    st.floats(),
    TEXTS,
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=6,
)
TYPES = ("application/json", "application/json; charset=utf-16", "text/plain", "application/x+json")
INSIDE = re.compile(r"Traceback|/tmp|/root|/home|\.py\b|site-packages|object at 0x")


@st.composite
def requests(draw):
    """A route, bytes and a content type; most are JSON, and most have fields of the route."""
    route = draw(st.sampled_from(tuple(FIELDS)))
    likely = st.sampled_from(LIKELY)
    fields = {name: draw(likely | st.lists(likely, max_size=3) | VALUES) for name in FIELDS[route]
              if draw(st.integers(0, 4))}  # fmt: skip
    body = draw(st.one_of(st.just(fields), st.just(fields), VALUES))
    if isinstance(body, dict) and not draw(st.integers(0, 5)):
        body = {**body, draw(TEXTS): draw(VALUES)}
    content = json.dumps(body, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    if not draw(st.integers(0, 9)):
        content = draw(st.binary(max_size=40))
    return route, content, draw(st.sampled_from((TYPES[0],) * 6 + TYPES))


@pytest.fixture(scope="module", params=("answer", "fill"))
def client(request):
    service = FakeService(reads=request.param)
    app = create_app(FakeCurrent(service), Settings(threads=2, api_key=None))
    app.state.reads = request.param
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


SEEN: set[int] = set()


@settings(max_examples=300, deadline=None, database=None,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(requests())
@example(("/search", b'{"query": "a", "k": 1e400}', TYPES[0]))
@example(("/rerank", b'{"query": "a", "texts": ["\\udfff"]}', TYPES[0]))
@example(("/v2/rerank", b'{"query": "a", "documents": [{"text": "\\udfff"}]}', TYPES[0]))
@example(("/v1/embeddings", b'{"input": "a", "user": "\\ud800", "model": "\\ud800"}', TYPES[0]))
@example(("/v1/embeddings", b'{"input": "a", "\\ud800": 1}', TYPES[0]))
@example(("/encode", b'{"texts": "a", "kinds": ["\\ud800"]}', TYPES[0]))
def test_any_body_is_answered(client, sent):
    route, content, media_type = sent
    reply = client.post(route, content=content, headers={"Content-Type": media_type})
    SEEN.add(reply.status_code)
    if READING.get(route, client.app.state.reads) != client.app.state.reads:
        assert reply.status_code in (400, 422, 424), (reply.status_code, content)
    else:
        assert reply.status_code in (200, 400, 422), (reply.status_code, content)
    assert not INSIDE.search(reply.text), reply.text
    found = reply.json()  # is JSON
    if reply.status_code != 200:
        message = found.get("message") or found["error"]
        assert isinstance(message, str) and message.isascii() and len(message) < 1500


def test_the_bodies_were_not_all_refused(client):
    if not SEEN:
        pytest.skip("counts what the test before it met")
    assert {200, 422} <= SEEN


@settings(max_examples=100, deadline=None, database=None)
@given(
    st.sampled_from((*FIELDS, *OTHERS, "/search")),
    st.sampled_from(("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")),
    st.dictionaries(st.sampled_from(("q", "mode", "k", "source", "x")), st.text(max_size=5)),
)
def test_any_method_and_parameters_are_answered(client, route, method, params):
    reply = client.request(method, route, params=params)
    assert reply.status_code in (200, 404, 405, 422, 424)
    assert not INSIDE.search(reply.text) or (route, reply.status_code) == ("/page/a.js", 200)


@settings(max_examples=100, deadline=None, database=None)
@given(st.text(max_size=20))
def test_any_path_is_answered(client, path):
    for start in ("/", "/page/"):
        reply = client.get(start + quote(path))
        assert reply.status_code in (200, 404, 405, 422)
        assert not INSIDE.search(reply.text)
