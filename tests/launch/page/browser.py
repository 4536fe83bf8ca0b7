"""Chromium for tests of the page, and what a page did that it must not do.

`make test-clients` makes an environment for them. Needs `pip install playwright` and a Chromium: of
Debian, or the one that KENNEL_CHROMIUM names.
The checks of accessibility need axe-core: the `axe.min.js` that KENNEL_AXE names (of `npm pack
axe-core`), or `pip install axe-core-python`, which has an older one.
"""

import contextlib
import importlib.util
import os
import shutil
import time
import urllib.parse
from pathlib import Path

import pytest

from tests.launch.page import fake_server

QUERY = "why do glaciers move faster in summer"
ASKED = urllib.parse.urlencode({"q": QUERY})
WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 360, "height": 760}


def chromium():
    """Path of the binary; skips the test where there is none, or no Playwright."""
    pytest.importorskip("playwright", reason="the page is tested with Playwright: pip install it")
    named = os.environ.get("KENNEL_CHROMIUM")
    found = named or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found or not Path(found).exists():
        pytest.skip(f"no Chromium: expected it on PATH or in KENNEL_CHROMIUM, found {named!r}")
    return found


@contextlib.contextmanager
def opened():
    """A browser, for all tests of a file."""
    binary = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """One tab on a server, which notes what the page requests and complains of.

    Attributes:
      page: of Playwright.
      foreign: addresses of other origins that were requested.
      complaints: errors of the console, but of answers that are errors themselves.
    """

    def __init__(self, browser, server, viewport=None, **context):
        self.server, self.foreign, self.complaints = server, [], []
        self.context = browser.new_context(viewport=viewport or WIDE, **context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("request", self.note_request)
        self.page.on("console", self.note_message)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def note_request(self, request):
        if not request.url.startswith(self.server.url):
            self.foreign.append(request.url)

    def note_message(self, message):
        answered = message.text.startswith("Failed to load resource: the server responded")
        if message.type in ("error", "warning") and not answered:
            self.complaints.append(message.text)

    def open(self, address=""):
        self.page.goto(self.server.url + address)
        wait_for(self.page, "document.querySelector('#bundle').textContent !== ''")
        return self.page

    def check(self):
        """What holds after every visit."""
        assert self.foreign == []
        assert self.complaints == []
        widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        inside, outside = self.page.evaluate(widths)
        assert inside <= outside, "the page is wider than the window"


def wait_for(page, condition, seconds=15):
    """Waits until a JavaScript condition holds.

    Playwright's `wait_for_function` needs eval, which the page's policy forbids.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"still not true after {seconds} s: {condition}"
        page.wait_for_timeout(30)


def axe_core():
    """Path of axe.min.js; skips the test where there is none."""
    named = os.environ.get("KENNEL_AXE")
    found = None if named else importlib.util.find_spec("axe_core_python")
    if not named and found is None:
        pytest.skip("no axe-core: expected KENNEL_AXE to name axe.min.js, or axe-core-python")
    return Path(named or Path(found.submodule_search_locations[0]) / "axe.min.js")


def axe_findings(page):
    """Serious findings of axe-core as 'rule: element'; skips where it is not installed."""
    page.evaluate(axe_core().read_text())
    results = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {node['html'][:120]}"
        for violation in results["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def titles(page):
    """Of the hits in view, when they are there."""
    page.wait_for_selector(".search:not([aria-busy]) .hit")
    return page.locator(".hit-title").all_inner_texts()


def expected_titles(mode, k=10, source=None):
    """Of the hits of QUERY."""
    hits = fake_server.search(QUERY, mode, k, source)
    return [hit["title"] or hit["id"] for hit in hits]


def wait_for_evidence(page):
    page.wait_for_selector("#evidence .passage")
