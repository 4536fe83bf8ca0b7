"""The nearest passages of each source, such as each language of translations."""

import urllib.parse

import pytest

from tests.launch.page import browser, fake_languages, fake_server
from tests.launch.page.browser import ASKED

SENTENCE = "Where is the nearest hospital?"
WITH = urllib.parse.urlencode({"q": SENTENCE})
COUNT = len(fake_languages.SENTENCES)


def started(**options):
    server = fake_server.FakeServer(**options).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(name="many", scope="module")
def start_many():
    yield from started(languages=COUNT, kinds=("dense",))


@pytest.fixture(name="two", scope="module")
def start_two():
    yield from started(languages=2, kinds=("dense",))


def opened(visit, server, address=WITH, **options):
    page = visit(server=server, **options).open(f"?view=sources&{address}")
    page.wait_for_selector(".by-source:not([aria-busy]) .source-card")
    return page


def asked_for(page):
    return {name: one[0] for name, one in urllib.parse.parse_qs(page.url.partition("?")[2]).items()}


def reply(server, **body):
    """What the server gives for a body."""
    handler = fake_server.Handler.__new__(fake_server.Handler)
    handler.server = server
    return handler.sources(**body)["sources"]


def texts(page):
    return page.locator(".source-text").all_inner_texts()


def focused(page):
    return page.evaluate("document.activeElement.dataset.hit ?? document.activeElement.id")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"languages": COUNT}, "Languages"),
        ({"languages": 2}, "Languages"),
        ({}, "By source"),
        ({"more_sources": 17}, "By source"),
        ({"more_sources": 18}, None),  # 25 sources
        ({"languages": 1}, None),
    ],
)
def test_the_navigation_offers_it_by_its_name(visit, options, name):
    server = fake_server.FakeServer(**options).start()
    link = visit(server=server).open().locator("nav a[data-view=sources]")
    assert link.is_visible() == (name is not None)
    assert name is None or link.inner_text() == name
    server.shutdown()


def test_a_card_for_each_language_the_best_first(visit, many):
    page = opened(visit, many)
    expected = reply(many, query=SENTENCE)
    assert expected[0]["source"] == "en" and len(expected) == COUNT
    cards = page.locator(".source-card")
    assert page.locator(".source-code").all_inner_texts() == [one["source"] for one in expected]
    names = dict(
        zip(
            page.locator(".source-code").all_inner_texts(),
            cards.locator("h2").all_inner_texts(),
            strict=True,
        )
    )
    assert (names["de"], names["ar"], names["zh-Hant"]) == (
        "German",
        "Arabic",
        "Traditional Chinese",
    )
    assert texts(page) == [hit["text"] for one in expected for hit in one["hits"]]
    scores = [hit["score"] for one in expected for hit in one["hits"]]
    values = page.locator(".source-score .value").all_inner_texts()
    assert [float(value.split()[-1]) for value in values] == pytest.approx(scores, abs=5e-4)
    shares = page.locator(".source-score .bar-fill").evaluate_all(
        "all => all.map((one) => Number(one.style.getPropertyValue('--share')))"
    )
    assert shares == pytest.approx([score / max(scores) for score in scores], abs=1e-4)
    widths = page.locator(".source-score .bar").evaluate_all(
        "all => all.map((one) => Math.round(one.getBoundingClientRect().width))"
    )
    assert len(set(widths)) == 1  # one scale
    assert many.requests[-1] == ("/sources", {"query": SENTENCE, "k": 3, "mode": "dense"})
    assert f'{{"query":"{SENTENCE}","k":3,"mode":"dense"}}' in page.inner_text("#curl")
    assert page.inner_text("#status") == "Hits of 12 languages"


def test_texts_have_their_language_and_direction(visit, many):
    page = opened(visit, many)
    hit = page.locator("[data-hit='ar/1']")
    assert (hit.get_attribute("lang"), hit.get_attribute("dir")) == ("ar", "auto")
    assert hit.evaluate("one => getComputedStyle(one).direction") == "rtl"
    german = page.locator("[data-hit='de/1']")
    assert german.evaluate("one => getComputedStyle(one).direction") == "ltr"


def test_sources_that_are_no_languages(visit, server):
    page = opened(visit, server, ASKED)
    assert "Geography" in page.locator(".source-card h2").all_inner_texts()
    assert page.locator(".source-code").count() == 0
    assert page.locator(".source-text[lang]").count() == 0
    assert "7 sources" in page.inner_text(".by-source .summary")
    page.get_by_role("radio", name="Sparse").check()
    browser.wait_for(page, "document.querySelector('.summary').innerText.includes('Sparse')")
    assert server.requests[-1][1]["mode"] == "sparse" and asked_for(page)["mode"] == "sparse"


def test_a_click_goes_from_language_to_language(visit, many):
    page = opened(visit, many)
    german = fake_languages.SENTENCES["de"]
    page.click("[data-hit='de/1']")
    browser.wait_for(page, "document.querySelector('.source-code').innerText === 'de'")
    assert page.input_value("#query") == german[1] == asked_for(page)["q"]
    assert page.locator(".source-hit", has_text="query").locator(
        ".source-text"
    ).all_inner_texts() == [german[1]]
    assert focused(page) == "de/1"
    page.go_back()
    browser.wait_for(page, "document.querySelector('.source-code').innerText === 'en'")
    assert page.input_value("#query") == SENTENCE


def test_a_long_text_is_cut_where_it_becomes_the_query(visit, two):
    page = opened(visit, two, "q=!long")
    page.locator("[data-hit^='en/']").first.click()
    browser.wait_for(page, "document.querySelector('#query').value !== '!long'")
    query = page.input_value("#query")
    assert 380 <= len(query) <= 400 and fake_languages.LONG["en"].startswith(query + " ")


def test_how_many_hits_is_in_the_link(visit, many):
    page = opened(visit, many)
    assert page.locator("#k-field").is_hidden() and page.locator("#source-field").is_hidden()
    page.select_option("#each", "2")
    browser.wait_for(page, "document.querySelectorAll('.source-text').length === 24")
    assert asked_for(page) == {"view": "sources", "q": SENTENCE, "each": "2"}
    other = opened(visit, many, f"{WITH}&each=2")
    assert other.input_value("#each") == "2" and other.locator(".source-text").count() == 24
    other.click("nav >> text=Search")
    assert other.locator("#each-field").is_hidden() and other.locator("#k-field").is_visible()
    opened(visit, many, f"{WITH}&each=9000")
    assert many.requests[-1][1]["k"] == 20


def test_evidence_of_a_hit(visit, many):
    page = opened(visit, many)
    page.click("[data-why='ar/1']")
    browser.wait_for_evidence(page)
    assert fake_languages.SENTENCES["ar"][1] in page.inner_text("#evidence")
    assert asked_for(page)["open"] == "ar/1"
    assert page.locator("#curl code").all_inner_texts()[1].count("/evidence") == 1
    page.keyboard.press("Escape")
    assert "open" not in asked_for(page) and focused(page) == "ar/1"


def test_keys_alone(visit, many):
    page = visit(server=many).open("?view=sources")
    assert "12 languages" in page.inner_text(".by-source .welcome")
    browser.wait_for(page, "document.activeElement.id === 'query'")
    page.keyboard.type(SENTENCE)
    page.keyboard.press("Enter")
    page.wait_for_selector(".source-card")
    expected = reply(many, query=SENTENCE)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert focused(page) == expected[1]["hits"][0]["id"]
    page.keyboard.press("Enter")
    text = expected[1]["hits"][0]["text"]
    browser.wait_for(page, f"document.querySelector('#query').value === {text!r}")


@pytest.mark.parametrize(
    ("query", "heading", "text"),
    [
        ("!429", "The server is busy", "room in a second"),
        ("!500", "The server failed", "the model failed"),
        ("!422", "The server refused the request", "found U+0007"),
        ("!empty", "No passage was found", "Try other words"),
    ],
)
def test_states_without_hits(visit, two, query, heading, text):
    page = visit(server=two).open(f"?view=sources&q={query}")
    page.wait_for_selector(".by-source .notice")
    assert page.inner_text(".by-source .notice h2") == heading
    assert text in page.inner_text(".by-source .notice")
    page.fill("#query", SENTENCE)
    page.keyboard.press("Enter")
    page.wait_for_selector(".source-card")


def test_languages_without_hits_are_last(visit, many):
    page = opened(visit, many, "q=!partly")
    expected = [bool(one["hits"]) for one in reply(many, query="!partly")]
    assert False in expected and expected == sorted(expected, reverse=True)
    assert page.locator(".source-none").count() == expected.count(False)


def test_a_slow_reply_and_a_newer_request(visit, two):
    page = visit(server=two).open("?view=sources&q=!slow")
    page.wait_for_selector("#busy", state="visible")
    page.fill("#query", SENTENCE)
    page.keyboard.press("Enter")
    page.wait_for_selector(".by-source:not([aria-busy]) .source-card")
    before = texts(page)
    page.wait_for_timeout(1800)  # until the slow reply would be there
    assert texts(page) == before and page.locator("#busy").is_hidden()


def test_a_cut_query_is_reported(visit, two):
    page = opened(visit, two, "q=" + "ice+" * 40)
    assert page.inner_text(".by-source .warning").startswith("The query is cut off after 32 tokens")


@pytest.mark.parametrize(
    ("options", "text"),
    [({"more_sources": 18}, "this bundle lists 25"), ({"languages": 1}, "lists 1")],
)
def test_a_link_where_the_view_is_not_offered(visit, options, text):
    server = fake_server.FakeServer(**options).start()
    page = visit(server=server).open(f"?view=sources&{WITH}")
    page.wait_for_selector(".by-source .notice")
    assert text in page.inner_text(".by-source .notice")
    assert page.locator("#curl code").all_inner_texts()[0].endswith("/info")
    assert server.requests == []
    server.shutdown()


@pytest.mark.parametrize("viewport", [browser.WIDE, browser.NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_has_no_serious_findings(visit, many, viewport, theme):
    browser.axe_core()
    page = opened(visit, many, viewport=viewport, color_scheme=theme, reduced_motion="reduce")
    assert browser.axe_findings(page) == []


def test_long_words_stay_within_a_narrow_window(visit, two):
    opened(visit, two, "q=!long", viewport=browser.NARROW)  # `visit` compares the widths
