"""The page when there is nothing to show, when the server fails, and for assistive technology."""

import pytest

from tests.launch.page import browser, fake_server
from tests.launch.page.browser import ASKED, QUERY, expected_titles, titles, wait_for_evidence

STATES = {
    "welcome": "",
    "search": f"?{ASKED}",
    "evidence": f"?{ASKED}&open=glac-027",
    "compare": f"?view=compare&{ASKED}",
    "compare-evidence": f"?view=compare&{ASKED}&open=glac-027",
    "about": "?view=about",
    "busy": "?q=!429",
    "empty": "?q=!empty&source=Climate",
}
READING = {
    "answers": ("answer", f"?view=answer&{ASKED}&open=glac-027"),
    "partly-answered": ("answer", "?view=answer&q=!partly"),
    "filled": ("fill", "?view=fill&q=faster+in+%5BMASK%5D+than+in+%5BMASK%5D"),
    "filled-open": ("fill", "?view=fill&q=faster+in+%5BMASK%5D&open=∅&read=20"),
    "no-mask": ("fill", f"?view=fill&{ASKED}"),
}
THEMES = pytest.mark.parametrize(
    "viewport, theme",
    [
        pytest.param(browser.WIDE, "light", id="wide-light"),
        pytest.param(browser.NARROW, "dark", id="narrow-dark"),
        pytest.param(browser.WIDE, "dark", id="wide-dark", marks=pytest.mark.slow),
        pytest.param(browser.NARROW, "light", id="narrow-light", marks=pytest.mark.slow),
    ],
)


@pytest.mark.parametrize(
    "query, heading, text",
    [
        ("!429", "The server is busy", "room in a second"),
        ("!500", "The server failed", "the model failed"),
        ("!422", "The server refused the request", "found U+0007"),
        ("!empty", "No passage was found", "Try other words"),
    ],
)
@pytest.mark.parametrize("view", ["search", "compare"])
def test_states_without_hits(visit, query, heading, text, view):
    page = visit().open(f"?view={view}&q={query}")
    page.wait_for_selector(".notice")
    shown = page.locator(".notice:visible")
    assert shown.locator("h2").inner_text() == heading
    if query != "!empty" or view == "search":
        assert text in shown.inner_text()
    page.fill("#query", QUERY)
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-hit]:visible")


def test_an_error_may_be_asked_again(visit, server):
    page = visit().open("?q=!500")
    page.click(".notice >> text=Try again")
    page.wait_for_selector(".notice")
    page.focus("#query")
    with page.expect_response("**/search"):
        page.keyboard.press("Enter")
    assert server.requests[-1][1]["query"] == "!500"


def test_a_server_that_is_not_ready(visit):
    server = fake_server.FakeServer().start()
    server.is_failing = True
    page = visit(server=server).page
    page.goto(f"{server.url}?{ASKED}")
    page.wait_for_selector(".notice")
    assert "no version is open yet" in page.inner_text(".notice")
    server.is_failing = False
    page.click("text=Try again")
    assert titles(page) == expected_titles("hybrid")
    server.shutdown()


def test_a_newer_version_is_noticed(visit):
    server = fake_server.FakeServer().start()
    page = visit(server=server).open()
    assert "version 3" in page.inner_text("#bundle")
    server.version = 4
    page.fill("#query", QUERY)
    page.keyboard.press("Enter")
    browser.wait_for(page, "document.querySelector('#bundle').textContent.includes('version 4')")
    assert titles(page) == expected_titles("hybrid")
    server.shutdown()


def test_a_newer_version_offers_its_modes_and_sources(visit):
    server = fake_server.FakeServer(kinds=["dense"], more_sources=20).start()
    page = visit(server=server).open(f"?{ASKED}")
    assert titles(page) == expected_titles("dense")
    server.version, server.kinds, server.more_sources = 4, ("dense", "sparse"), 0
    page.fill("#query", f"{QUERY} again")
    page.keyboard.press("Enter")
    browser.wait_for(page, "document.querySelectorAll('#modes input').length === 3")
    assert page.locator("#modes label").all_inner_texts() == ["Dense", "Sparse", "Hybrid"]
    assert page.locator("#source-field option").all_inner_texts() == ["All", *server.sources()]
    page.fill("#query", QUERY)
    page.get_by_role("radio", name="Sparse").check()
    assert titles(page) == expected_titles("sparse")
    page.select_option("#source-field select", "Climate")
    assert titles(page) == expected_titles("sparse", source="Climate")
    server.shutdown()


def test_a_reranker_which_has_no_representations(visit):
    server = fake_server.FakeServer(kinds=[]).start()
    page = visit(server=server).open()
    page.wait_for_selector(".welcome")
    assert "reads a question with each passage that BM25 finds" in page.inner_text(".welcome")
    page = visit(server=server).open(f"?{ASKED}")
    assert titles(page) == expected_titles("reranked")
    assert page.locator("#modes label").all_inner_texts() == ["BM25", "Re-ranked"]
    shares = "[...document.querySelectorAll('.hit .bar-fill')].map((one) => one.style.cssText)"
    bars = [float(text.partition(":")[2].strip(" ;")) for text in page.evaluate(shares)]
    assert min(bars) == 0 and max(bars) == 1  # logits may be below 0
    page = visit(server=server).open("?view=map")
    page.wait_for_selector(".map .notice")
    assert "This bundle has no representations." in page.inner_text(".map .notice")
    page = visit(server=server).open("?view=about")
    page.wait_for_selector(".about")
    facts = page.inner_text(".about")
    assert "none" in facts and "Dimension" not in facts
    server.shutdown()


def test_the_theme_changes_colours_of_the_matrix(visit):
    page = visit(color_scheme="light").open(f"?{ASKED}&open=glac-027")
    wait_for_evidence(page)
    painted = "document.querySelector('canvas').toDataURL()"
    page.evaluate("new Promise((end) => requestAnimationFrame(() => requestAnimationFrame(end)))")
    light = page.evaluate(painted)
    page.click("#theme")  # light, as before
    page.click("#theme")  # dark
    browser.wait_for(page, f"{painted} !== '{light}'")


def test_evidence_of_an_unknown_passage(visit):
    page = visit().open(f"?{ASKED}&open=gone")
    page.wait_for_selector("#evidence .notice")
    assert "found 'gone'" in page.inner_text("#evidence .notice")


def test_no_server(visit):
    one = visit()
    page = one.open(f"?{ASKED}")
    titles(page)
    one.context.set_offline(True)
    page.get_by_role("radio", name="Dense").check()
    page.wait_for_selector(".notice")
    assert "cannot be reached" in page.inner_text(".notice")
    one.complaints.clear()  # the browser itself reports that it is offline


def test_waiting_is_shown_and_a_newer_search_wins(visit):
    page = visit().open("?q=!slow")
    page.wait_for_selector("#busy", state="visible")
    assert page.locator(".search").get_attribute("aria-busy") == "true"
    page.fill("#query", QUERY)
    page.keyboard.press("Enter")
    assert titles(page) == expected_titles("hybrid")
    page.wait_for_timeout(1800)  # until the slow answer would be there
    assert titles(page) == expected_titles("hybrid")
    assert page.locator("#busy").is_hidden()


def test_a_key_is_asked_for_and_kept_out_of_the_link(visit):
    page = visit().open("?q=!401")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector(".key-dialog .wrong")
    page.fill("#key", fake_server.KEY)
    page.keyboard.press("Enter")
    assert titles(page)
    assert fake_server.KEY not in page.url + page.inner_text("#curl")
    page.reload()
    assert titles(page)


@pytest.mark.parametrize(("typed", "found"), [("let\u200bmein", "200B"), ("let me in", "0020")])
def test_a_key_that_no_header_can_hold_is_asked_for_again(visit, typed, found):
    page = visit().open("?q=!401")
    page.fill("#key", typed)
    page.keyboard.press("Enter")
    assert f"found U+{found}" in page.locator("#key").evaluate("(key) => key.validationMessage")
    page.fill("#key", f" {fake_server.KEY}\n")
    page.keyboard.press("Enter")
    assert titles(page)


def test_a_stored_key_that_no_header_can_hold_is_dropped(visit):
    page = visit().open()
    page.evaluate("sessionStorage.setItem('kennel-key', '“letmein”')")
    page.reload()
    browser.wait_for(page, "document.querySelector('#bundle').textContent !== ''")
    assert page.evaluate("sessionStorage.getItem('kennel-key')") is None


@THEMES
@pytest.mark.parametrize("state", STATES)
def test_axe_has_no_serious_findings(visit, state, viewport, theme):
    page = visit(viewport, color_scheme=theme, reduced_motion="reduce").open(STATES[state])
    page.wait_for_load_state("networkidle")
    assert browser.axe_findings(page) == []


@THEMES
@pytest.mark.parametrize("state", READING)
def test_axe_has_no_serious_findings_where_a_model_reads(visit, state, viewport, theme):
    reads, address = READING[state]
    server = fake_server.FakeServer(reads=reads).start()
    options = {"color_scheme": theme, "reduced_motion": "reduce"}
    page = visit(viewport, server=server, **options).open(address)
    page.wait_for_load_state("networkidle")
    page.wait_for_selector(f".{reads} .hit, .{reads} .notice")
    assert browser.axe_findings(page) == []
    server.shutdown()
