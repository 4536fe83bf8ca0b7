"""A view of what a model reads that is left before its reply comes."""

import pytest

from tests.launch.page import fake_server


@pytest.fixture(name="filling", scope="module")
def start_filling():
    server = fake_server.FakeServer(reads="fill").start()
    yield server
    server.shutdown()


def test_a_late_reply_is_shown_with_its_sentence(visit, filling):
    page = visit(server=filling).open("?view=fill&q=!slow%20[MASK]")
    page.wait_for_selector(".fill[aria-busy]")
    page.click("nav a[data-view=search]")
    page.fill("#query", "another query")
    page.press("#query", "Enter")
    page.wait_for_selector(".hits")
    page.wait_for_timeout(1800)  # until the slow reply is there
    page.go_back()
    page.go_back()
    page.wait_for_selector(".fill:not([aria-busy]) .mask")
    assert page.locator(".fill p.sentence").inner_text().startswith("!slow ")
