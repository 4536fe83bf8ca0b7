"""The page in Chromium, with answers of a fake server: each view, keys alone, links."""

import re
import urllib.parse

import pytest

from tests.launch.page import browser, fake_server
from tests.launch.page.browser import ASKED, QUERY, expected_titles, titles, wait_for_evidence


def asked_for(page):
    return {name: one[0] for name, one in urllib.parse.parse_qs(page.url.partition("?")[2]).items()}


def test_search_shows_hits(visit):
    page = visit().open()
    page.fill("#query", QUERY)
    page.click("form .primary")
    assert titles(page) == expected_titles("hybrid")
    first = page.locator(".hit").first
    assert {*first.locator("mark").all_inner_texts()} == {"glaciers", "move", "faster", "summer"}
    assert first.locator(".score-row").count() == len(fake_server.KINDS)
    assert "encoding 12 ms" in page.inner_text(".summary")
    assert asked_for(page) == {"q": QUERY}


def test_modes_number_of_hits_and_source(visit):
    page = visit().open(f"?{ASKED}")
    assert titles(page) == expected_titles("hybrid")
    page.get_by_role("radio", name="Sparse").check()
    browser.wait_for(page, "document.querySelector('.summary').textContent.includes('Sparse')")
    assert titles(page) == expected_titles("sparse")
    page.select_option("#k", "5")
    browser.wait_for(page, "document.querySelectorAll('.hit').length === 5")
    assert titles(page) == expected_titles("sparse", 5)
    page.select_option("select[name=source]", "Biology")
    browser.wait_for(page, "document.querySelectorAll('.hit').length < 5")
    assert titles(page) == expected_titles("sparse", 5, "Biology")
    assert asked_for(page) == {"q": QUERY, "mode": "sparse", "k": "5", "source": "Biology"}


def test_many_sources_are_typed(visit):
    server = fake_server.FakeServer(more_sources=30).start()
    page = visit(server=server).open(f"?{ASKED}")
    titles(page)
    page.fill("input[name=source]", "Biology")
    page.keyboard.press("Tab")
    browser.wait_for(page, "document.querySelectorAll('.hit').length < 10")
    assert asked_for(page)["source"] == "Biology"
    server.shutdown()


def test_a_query_that_is_cut_off_is_reported(visit):
    page = visit().open("?q=" + "ice+" * 40)
    assert page.inner_text(".warning") == (
        "The query is cut off after 32 tokens. Its last 10 tokens are not read."
    )


def test_evidence_shows_tokens_words_and_matrix(visit):
    page = visit().open(f"?{ASKED}")
    page.click("text=Glacial motion")
    wait_for_evidence(page)
    passage = fake_server.passage_of("glac-027")
    assert page.inner_text("#evidence .passage") == fake_server.content_of(passage)
    words = fake_server.evidence(QUERY, passage, fake_server.KINDS)["words"]
    shown = page.locator(".words tbody th").all_inner_texts()
    assert shown == [word["piece"] for word in words]
    pixels = "(() => { const c = document.querySelector('canvas'); return [c.width, c.height]; })()"
    columns = fake_server.evidence(QUERY, passage, fake_server.KINDS)["passage"]["pieces"]
    assert page.evaluate(pixels) == [len(columns), len(fake_server.pieces_of(QUERY)) + 2]
    page.locator(".cells").hover(position={"x": 2, "y": 2})
    assert page.inner_text(".heat-map .readout").startswith("[CLS] × [CLS]")


def test_a_token_of_the_query_shades_the_passage(visit):
    page = visit().open(f"?{ASKED}&open=glac-027")
    wait_for_evidence(page)
    page.click(".chip >> text=summer")
    shares = page.evaluate(
        "[...document.querySelectorAll('.token')].map((one) =>"
        " [one.textContent, Number(one.style.getPropertyValue('--share'))])"
    )
    assert max(shares, key=lambda one: one[1]) == ["summer", 1]
    assert page.inner_text(".heat-rows .on") == "summer"


def test_kinds_that_the_bundle_lacks_are_not_shown(visit):
    server = fake_server.FakeServer(kinds=["dense"]).start()
    page = visit(server=server).open(f"?{ASKED}&open=glac-027")
    wait_for_evidence(page)
    assert page.locator("input[name=mode]").count() == 1
    assert page.locator("#evidence h3").all_inner_texts() == ["Passage"]
    server.shutdown()


def test_places_count_code_points(visit):
    page = visit().open(f"?{ASKED}&open=astral-1")
    wait_for_evidence(page)
    tokens = page.locator(".token").all_inner_texts()
    assert tokens[:4] == ["Snow", "notes", "\U0001f3d4", "\U0001f3d4"]
    assert tokens[-2:] == ["summer", "."]


def test_modes_side_by_side(visit):
    page = visit().open(f"?view=compare&{ASKED}")
    page.wait_for_selector(".card")
    assert page.locator(".column h2").all_inner_texts() == [
        "Dense",
        "Sparse",
        "Multi-vector",
        "Hybrid",
    ]
    card = page.locator("[data-hits=hybrid] .card").first
    card.hover()
    passage = card.get_attribute("data-hit")
    same = page.locator(".card.is-same")
    assert {one.get_attribute("data-hit") for one in same.all()} == {passage}
    assert page.locator(".line.strong").count() >= 1
    page.set_viewport_size({"width": 1000, "height": 700})
    browser.wait_for(
        page, "document.querySelector('.lines').getAttribute('viewBox').split(' ')[2] < 1000"
    )
    ends = page.evaluate("document.querySelector('.line').getAttribute('d')")
    left = page.evaluate("document.querySelector('.columns').getBoundingClientRect().left")
    box = page.locator("[data-hits=dense] .card").first.bounding_box()
    assert float(re.match(r"M([\d.]+)", ends)[1]) == pytest.approx(
        box["x"] + box["width"] - left, abs=1
    )


def test_a_table_of_ranks_where_it_is_narrow(visit):
    page = visit(browser.NARROW).open(f"?view=compare&{ASKED}")
    page.wait_for_selector(".ranks")
    assert page.locator(".column").count() == 0
    hits = fake_server.search(QUERY, "dense", 10)
    for hit in hits[:3]:
        row = page.locator("tr", has=page.locator(f"[data-hit={hit['id']}]"))
        assert row.locator("td").first.inner_text() == str(hit["rank"])
    page.click(f"[data-hit={hits[0]['id']}]")
    wait_for_evidence(page)


def focused_hit(page):
    return page.evaluate("document.activeElement.dataset.hit ?? document.activeElement.id")


def test_keys_alone(visit):
    page = visit().open()
    browser.wait_for(page, "document.activeElement.id === 'query'")
    page.keyboard.type(QUERY)
    page.keyboard.press("Enter")
    ids = [hit["id"] for hit in fake_server.search(QUERY, "hybrid", 10)]
    assert titles(page) == expected_titles("hybrid")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert focused_hit(page) == ids[1]
    page.keyboard.press("Enter")
    wait_for_evidence(page)
    assert page.evaluate("document.activeElement.closest('#evidence') !== null")
    page.keyboard.press("Escape")
    assert page.locator("#evidence").is_hidden()
    assert focused_hit(page) == ids[1]
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert focused_hit(page) == "query"
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert focused_hit(page) == "query"
    assert page.input_value("#query") == QUERY


def test_keys_in_columns_and_in_the_matrix(visit):
    page = visit().open(f"?view=compare&{ASKED}")
    page.wait_for_selector(".card")
    page.keyboard.press("ArrowDown")
    first = focused_hit(page)
    page.keyboard.press("ArrowRight")
    list_of = "document.activeElement.closest('[data-hits]').dataset.hits"
    assert page.evaluate(list_of) == "sparse"
    there = [hit["id"] for hit in fake_server.search(QUERY, "sparse", 10)]
    assert focused_hit(page) == (first if first in there else there[0])
    page.keyboard.press("Enter")
    wait_for_evidence(page)
    page.focus(".cells")
    before = page.inner_text(".heat-map .readout")
    page.keyboard.press("ArrowDown")
    assert page.inner_text(".heat-map .readout") != before


def test_a_link_restores_the_view(visit):
    first = visit().open()
    first.fill("#query", QUERY)
    first.keyboard.press("Enter")
    titles(first)
    first.get_by_role("radio", name="Multi-vector").check()
    browser.wait_for(first, "document.querySelector('.summary').textContent.includes('Multi')")
    first.select_option("#k", "5")
    browser.wait_for(first, "document.querySelectorAll('.hit').length === 5")
    first.locator(".hit-title").nth(2).click()
    wait_for_evidence(first)
    first.click("#theme")
    first.click("#theme")
    second = visit().open("?" + first.url.partition("?")[2])
    wait_for_evidence(second)
    assert titles(second) == titles(first) == expected_titles("multi_vector", 5)
    assert second.inner_text("#evidence h2") == first.inner_text("#evidence h2")
    assert second.inner_text("#curl").replace("Copy", "") == first.inner_text("#curl").replace(
        "Copy", ""
    )
    dark = "getComputedStyle(document.documentElement).colorScheme"
    assert second.evaluate(dark) == "dark"
    first.go_back()
    assert first.locator("#evidence").is_hidden()


def test_the_curl_line_is_the_request(visit, server):
    page = visit().open(f"?{ASKED}&mode=dense&source=Climate&open=clim-77")
    wait_for_evidence(page)
    titles(page)
    lines = page.locator("#curl code").all_inner_texts()
    assert [line.split()[2] for line in lines] == [
        f"{server.url}search",
        f"{server.url}evidence",
    ]
    body = {"query": QUERY, "mode": "dense", "k": 10, "source": "Climate"}
    assert ("/search", body) in server.requests
    assert fake_server.json.loads(lines[0].partition(" -d ")[2].strip("'")) == body
