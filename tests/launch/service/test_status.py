"""Health, facts, metrics, the page and the list of routes."""

import re
from types import SimpleNamespace

import pytest

from launch.service import page
from launch.service.app import create_app
from launch.service.server_metrics import Metrics
from launch.service.settings import Settings
from tests.launch.service.fake_service import FakeCurrent, FakeService


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "page"
    (folder / "parts").mkdir(parents=True)
    (folder / "index.html").write_text("<!DOCTYPE html><title>Kennel</title>")
    (folder / "app.js").write_text("export {};")
    (folder / "parts" / "view.mjs").write_text("export {};")
    (folder / "style.css").write_text("body {}")
    (folder / "notes.py").write_text("secret")
    (folder / ".hidden.js").write_text("secret")
    (tmp_path / "outside.js").write_text("secret")
    (folder / "link.js").symlink_to(tmp_path / "outside.js")
    return folder


def test_health_and_facts(serve, service):
    client = serve(service, name="mine", max_texts=7)
    assert client.get("/health").json() == {"status": "ok", "version": 1, "failed": None}
    failure = SimpleNamespace(version=2, reason="IndexDamaged", message="/a/path")
    client.app.state.current.failure = failure
    failed = client.get("/health").json()["failed"]
    assert failed == {"version": 2, "reason": "IndexDamaged"}
    info = client.get("/info").json()
    assert info["kinds"] == list(service.facts.kinds) and info["sources"] == ["food", "pets"]
    assert info["model_id"] == "mine" and info["max_client_batch_size"] == 7
    assert info["max_input_length"] == 8 and info["max_concurrent_requests"] == 512
    assert info["tokenization_workers"] == 2 and info["contract"] == {"pooling": "cls"}
    assert info["model_type"] == {"embedding": {"pooling": "cls"}} and info["bundle_version"] == 1
    assert info["max_batch_tokens"] == 64 and isinstance(info["version"], str)


def test_metrics_count_requests_and_stages(client):
    client.post("/search", json={"query": "a b c d e f g h"})
    client.post("/search", json={"query": ""})
    client.get("/page/../nothing")
    client.get("/made/up/by/a/client")
    client.request("BREW", "/search")
    metrics = client.app.state.metrics
    metrics.batch("embed_query", 3, 48, 0.02)
    metrics.queue(0.01)
    metrics.compilation(1.5)
    reply = client.get("/metrics")
    assert reply.headers["Content-Type"].startswith("text/plain")
    for line in (
        'kennel_requests_total{method="POST",route="/search",status="200"} 1.0',
        'kennel_requests_total{method="POST",route="/search",status="422"} 1.0',
        'kennel_requests_total{method="GET",route="other",status="404"} 2.0',
        'kennel_stage_seconds_count{stage="search"} 1.0',
        'kennel_stage_seconds_count{stage="encoding"} 1.0',
        'kennel_stage_seconds_sum{stage="inference"} 0.02',
        'kennel_stage_seconds_sum{stage="queue"} 0.01',
        'kennel_batch_texts_sum{program="embed_query"} 3.0',
        'kennel_batch_tokens_sum{program="embed_query"} 48.0',
        "kennel_compilations_total 1.0",
        "kennel_texts_total 1.0",
        "kennel_texts_cut_off_total 1.0",
        "kennel_version 1.0",
        "kennel_programs_to_compile 7.0",
        "kennel_waiting_tokens 0.0",
    ):
        assert line in reply.text.splitlines(), line
    assert "made" not in reply.text and "BREW" not in reply.text


def test_two_apps_of_a_process_count_alone():
    metrics = Metrics()
    for one in (metrics, None):
        create_app(FakeCurrent(FakeService()), Settings(), one)
    metrics.compilation(1)
    assert b"kennel_compilations_total 0.0" in Metrics().text(0, 0, 1)


@pytest.mark.parametrize(
    ("path", "media_type", "cache"),
    [
        ("/", "text/html", "no-store"),
        ("/page/index.html", "text/html", "no-store"),
        ("/page/app.js", "text/javascript", "no-cache"),
        ("/page/parts/view.mjs", "text/javascript", "no-cache"),
        ("/page/style.css", "text/css", "no-cache"),
        ("/docs", "text/html", "no-store"),
        ("/docs/docs.css", "text/css", "no-cache"),
    ],
)
def test_files_of_the_page(serve, service, folder, path, media_type, cache):
    reply = serve(service, page=folder, api_key="secret").get(path)
    assert reply.status_code == 200
    assert reply.headers["Content-Type"] == f"{media_type}; charset=utf-8"
    assert reply.headers["Cache-Control"] == cache
    assert "default-src 'self'" in reply.headers["Content-Security-Policy"]
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/none.js",
        "/page/notes.py",
        "/page/.hidden.js",
        "/page/link.js",
        "/page/../outside.js",
        "/page/..%2foutside.js",
        "/page/%2e%2e/outside.js",
        "/page/parts/../../outside.js",
        "/page/parts%5c..%5c..%5coutside.js",
        "/page//etc/passwd.txt",
        "/page/%00.js",
        "/page/parts",
        "/page/" + "a" * 5000 + ".js",
    ],
)
def test_what_is_no_file_of_the_page(serve, service, folder, path):
    reply = serve(service, page=folder).get(path)
    assert reply.status_code == 404 and "secret" not in reply.text


def test_a_server_without_a_page_answers_the_rest(serve, service, tmp_path):
    client = serve(service, page=tmp_path / "none")
    assert client.get("/").status_code == 404 and client.get("/health").status_code == 200


def test_the_list_of_routes_loads_from_this_server_alone(client):
    text = client.get("/docs").text
    assert not re.search(r"(src|href)=['\"]?(https?:|//)|<script|<style| style=", text)
    document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in text
    assert "encoding_format" in text and "&#x27;float&#x27; or &#x27;base64&#x27;" in text


def test_names_in_the_list_are_escaped():
    document = {"info": {"title": "<b>"}, "paths": {"/<i>": {"get": {"tags": ["<u>"]}}}}
    text = page.docs_page(document)
    assert "<b>" not in text and "<i>" not in text and "<u>" not in text
