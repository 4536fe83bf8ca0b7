"""A fake server, Chromium, and tabs that are checked when a test ends."""

import pytest

from tests.launch.page import browser, fake_server


@pytest.fixture(scope="module", name="server")
def start_server():
    server = fake_server.FakeServer().start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module", name="chromium")
def start_chromium():
    with browser.opened() as opened:
        yield opened


@pytest.fixture(name="visit")
def make_visit(chromium, server):
    """Opens tabs, and checks at the end what must hold of each."""
    visits = []

    def visit(viewport=None, server=server, **context):
        visits.append(browser.Visit(chromium, server, viewport, **context))
        return visits[-1]

    yield visit
    for one in visits:
        one.check()
        one.context.close()
