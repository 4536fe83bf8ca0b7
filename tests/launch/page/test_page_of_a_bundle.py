"""The page on the server of users, with a bundle of a tiny model: every reply is a real one."""

import importlib.util
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.launch.page.browser import titles, wait_for_evidence

REPOSITORY = Path(__file__).resolve().parents[3]
QUERY = "where does the river go"
ASKED = urllib.parse.urlencode({"q": QUERY})
SERVER = """
import sys
from pathlib import Path
from launch import serve
from tests.launch.service.fake_service import CURVES
from tests.t5x_style.serving import bundle_kit

sys.exit(serve.main([str(bundle_kit.publish(Path(sys.argv[1]), curves=CURVES)), "--port=0"]))
"""


def python():
    """Of the environment with JAX, which need not be that of Playwright; skips without one."""
    if importlib.util.find_spec("jax"):
        return sys.executable
    found = REPOSITORY / ".venv/bin/python"
    if not found.is_file():
        pytest.skip(f"needs Kennel's environment: expected {found}, made by `make install`")
    return str(found)


@pytest.fixture(scope="module", name="real")
def start_real(tmp_path_factory, chromium):
    """A process that serves the bundle; `url` is that of its page. Where there is a browser."""
    del chromium
    root = tmp_path_factory.mktemp("served")
    process = subprocess.Popen(
        [python(), "-c", SERVER, str(root)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("ready at "), line
        yield SimpleNamespace(url=line.removeprefix("ready at ").partition(";")[0] + "/")
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(name="tab")
def open_tab(visit, real):
    """A tab on the server; at the end, all that it requested was answered."""
    one, refused = visit(server=real), []
    one.page.on("response", lambda reply: reply.status < 400 or refused.append(reply.url))
    yield one
    assert refused == []


def asked(tab, mode):
    """Titles, or ids, of the hits that the route gives."""
    body = {"query": QUERY, "mode": mode, "k": 10}
    reply = tab.context.request.post(f"{tab.server.url}search", data=body).json()
    return [hit["title"] or hit["id"] for hit in reply["hits"]]


def test_search_by_each_mode_and_evidence(tab):
    page = tab.open(f"?{ASKED}")
    assert titles(page) == asked(tab, "hybrid")
    names = {"Dense": "dense", "Sparse": "sparse", "Multi-vector": "multi_vector"}
    assert page.locator("#modes label").all_inner_texts() == [*names, "Hybrid"]
    for name, mode in names.items():
        page.get_by_role("radio", name=name).check()
        assert titles(page) == asked(tab, mode)
    page.select_option("#source-field select", "water/rivers")
    page.wait_for_selector(".search:not([aria-busy]) .hit")
    assert titles(page) == ["Rivers"]
    page.click("[data-hit=a]")
    wait_for_evidence(page)
    assert "The river runs to the sea" in page.inner_text("#evidence .passage")
    assert page.locator("#evidence .words tbody tr").count() > 0
    assert page.locator("#evidence canvas").is_visible()


def test_side_by_side_and_by_source(tab):
    page = tab.open(f"?view=compare&{ASKED}")
    page.wait_for_selector(".compare .card")
    assert page.locator(".compare .column").count() == 4
    page.click("nav a[data-view=sources]")
    page.wait_for_selector(".by-source:not([aria-busy]) .source-card")
    assert page.locator(".source-card").count() == 4


def test_the_map_the_curves_and_the_facts(tab):
    page = tab.open(f"?view=map&{ASKED}")
    page.wait_for_selector(".map-hit")
    page.click("nav a[data-view=training]")
    page.wait_for_selector(".training .plot-area")
    assert page.locator(".training h2").all_inner_texts() == ["second", "first"]  # served first
    page.click("nav a[data-view=about]")
    page.wait_for_selector(".about .facts")
    facts = page.inner_text(".about")
    assert "5" in facts and "hybrid" in facts.lower() and "undefined" not in facts
    assert page.inner_text("#bundle") == "run · version 1 · 5 passages"
