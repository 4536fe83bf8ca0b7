"""Views of models that read passages: answers to questions, and words for [MASK]s."""

import urllib.parse

import pytest

from tests.launch.page import browser, fake_server
from tests.launch.page.browser import ASKED, QUERY

SENTENCE = "glaciers move faster in [MASK] than in [MASK]"
WITH = urllib.parse.urlencode({"q": SENTENCE})


@pytest.fixture(name="answering", scope="module")
def start_answering():
    server = fake_server.FakeServer(reads="answer").start()
    yield server
    server.shutdown()


@pytest.fixture(name="filling", scope="module")
def start_filling():
    server = fake_server.FakeServer(reads="fill").start()
    yield server
    server.shutdown()


def open_answers(visit, server, address=ASKED, **options):
    page = visit(server=server, **options).open(f"?view=answer&{address}")
    page.wait_for_selector(".answer:not([aria-busy]) .hit")
    return page


def open_filled(visit, server, address=WITH, **options):
    page = visit(server=server, **options).open(f"?view=fill&{address}")
    page.wait_for_selector(".fill:not([aria-busy]) .mask")
    return page


def asked_for(page):
    return {name: one[0] for name, one in urllib.parse.parse_qs(page.url.partition("?")[2]).items()}


def shown(value):
    """A probability as probability.js writes it."""
    if value == 0 or value >= 0.001:
        return f"{value:.3f}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def reply(server, path, **body):
    """What the server gives for a body."""
    handler = fake_server.Handler.__new__(fake_server.Handler)
    handler.server = server
    return getattr(handler, path)(**body)


def links(page):
    return page.locator("nav a:visible").all_inner_texts()


def focused(page):
    return page.evaluate(
        "document.activeElement.dataset.hit ?? document.activeElement.dataset.document"
        " ?? document.activeElement.id"
    )


def test_the_navigation_has_what_the_model_does(visit, server, answering, filling):
    others = ["Side by side", "By source", "Map", "Training", "About"]
    assert links(visit(server=server).open()) == ["Search", *others]
    assert links(visit(server=answering).open()) == ["Search", "Answer", *others]
    assert links(visit(server=filling).open()) == ["Search", "Fill in", *others]


@pytest.mark.parametrize(
    ("view", "heading"), [("answer", "answers no questions"), ("fill", "fills in no [MASK]")]
)
def test_a_link_to_what_the_model_does_not(visit, server, view, heading):
    before = len(server.requests)
    page = visit(server=server).open(f"?view={view}&{WITH}")
    assert heading in page.inner_text(f".{view} .notice h2")
    assert page.locator("#curl code").all_inner_texts()[0].endswith("/info")
    assert len(server.requests) == before


def test_a_new_version_may_read(visit):
    server = fake_server.FakeServer().start()
    page = visit(server=server).open()
    server.version, server.reads = 4, "answer"
    page.fill("#query", QUERY)
    page.keyboard.press("Enter")
    page.click("nav >> text=Answer")
    page.wait_for_selector(".best-answer")
    server.shutdown()


def test_answers_of_each_passage_the_best_first(visit, answering):
    page = visit(server=answering).open("?view=answer")
    assert "Ask a question" in page.inner_text(".answer .welcome")
    page.fill("#query", QUERY)
    page.keyboard.press("Enter")
    page.wait_for_selector(".best-answer")
    expected = reply(answering, "answer", query=QUERY)["answers"]
    best = expected[0]
    assert (
        page.inner_text(".best-answer") == best["answer"] == "Meltwater at the bed of the glacier"
    )
    numbers = [shown(best["passage_probability"]), shown(best["span_probability"])]
    assert page.locator(".best .value").all_inner_texts() == numbers
    assert page.locator(".hit .answer-text").all_inner_texts() == [
        one["answer"] for one in expected
    ]
    rows = page.locator(".hits .hit")
    for row, one in zip(rows.all(), expected, strict=True):
        assert row.locator("mark:visible").all_inner_texts() == [one["answer"]]
        assert one["hit"]["source"] in row.locator(".meta").inner_text()
        numbers = [shown(one["passage_probability"]), shown(one["span_probability"])]
        assert row.locator(".scores .value").all_inner_texts() == numbers
        length = row.locator(".bar-fill").first.evaluate(
            "one => Number(one.style.getPropertyValue('--share'))"
        )
        assert length == pytest.approx(one["passage_probability"], abs=1e-4)
    assert asked_for(page) == {"view": "answer", "q": QUERY}
    assert answering.requests[-1] == ("/answer", {"query": QUERY, "k": 5})
    assert '{"query":"why do glaciers move faster in summer","k":5}' in page.inner_text("#curl")
    assert page.inner_text("#status").startswith("The best answer: Meltwater at")


def test_a_span_is_marked_by_code_points(visit, answering):
    page = open_answers(visit, answering, "q=!astral")
    hit = page.locator("li", has=page.locator("[data-hit=astral-1]"))
    assert hit.locator("mark:visible").all_inner_texts() == ["June"]
    text = hit.locator(".hit-text:visible").inner_text()
    assert text == fake_server.ASTRAL["text"]


def test_a_long_passage_is_shown_around_its_span_and_whole(visit, answering):
    page = open_answers(visit, answering, "q=!long")
    first = page.locator(".hit").first
    text = first.locator(".hit-text:visible")
    short = text.inner_text()
    assert short.startswith("… ") and short.endswith(" …") and len(short) < 400
    first.locator(".hit-title").click()
    assert len(text.inner_text()) > 2000
    assert first.locator("mark:visible").count() == 1
    name = first.locator(".hit-title").get_attribute("data-hit")
    assert asked_for(page)["open"] == name
    assert page.locator("#evidence").is_hidden()
    page.reload()
    page.wait_for_selector(".answer .is-open")
    assert page.locator(".is-open .hit-title").get_attribute("data-hit") == name


def test_a_passage_with_nothing_to_point_at(visit, answering):
    page = open_answers(visit, answering, "q=!partly")
    expected = reply(answering, "answer", query="!partly")["answers"]
    without = [one for one in expected if one["place"] is None]
    assert 0 < len(without) < len(expected)
    rows = page.locator(".hit", has=page.locator(".answer-text.none"))
    assert rows.count() == len(without)
    assert "Nothing to point at" in rows.first.inner_text()
    assert rows.locator("mark").count() == 0 and rows.first.locator(".value").count() == 1
    page.fill("#query", "!nothing")
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer .notice")
    assert page.inner_text(".answer .notice h2") == "No answer was found"
    assert page.locator(".best").count() == 0 and page.locator(".hit").count() == 5


def test_passages_and_source_are_sent_and_in_the_link(visit, answering):
    page = open_answers(visit, answering)
    assert page.locator("#modes").is_hidden() and page.locator("#k-field").is_hidden()
    page.select_option("#read", "3")
    browser.wait_for(page, "document.querySelectorAll('.answer .hit').length === 3")
    page.select_option("select[name=source]", "Climate")
    browser.wait_for(page, "document.querySelector('#curl').innerText.includes('Climate')")
    expected = {"view": "answer", "q": QUERY, "read": "3", "source": "Climate"}
    assert asked_for(page) == expected
    assert answering.requests[-1][1] == {"query": QUERY, "k": 3, "source": "Climate"}
    other = open_answers(visit, answering, page.url.partition("view=answer&")[2])
    assert {one.split("\n")[0] for one in other.locator(".source").all_inner_texts()} == {"Climate"}
    assert other.input_value("#read") == "3"


def test_no_more_passages_than_the_server_reads(visit, answering):
    page = open_answers(visit, answering, f"{ASKED}&read=500")
    assert answering.requests[-1][1]["k"] == 50
    assert page.input_value("#read") == "50"


def test_answers_with_keys_alone(visit, answering):
    page = visit(server=answering).open("?view=answer")
    browser.wait_for(page, "document.activeElement.id === 'query'")
    page.keyboard.type(QUERY)
    page.keyboard.press("Enter")
    page.wait_for_selector(".best-answer")
    ids = [one["hit"]["id"] for one in reply(answering, "answer", query=QUERY)["answers"]]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert focused(page) == ids[1]
    page.keyboard.press("Enter")
    assert asked_for(page)["open"] == ids[1]
    page.keyboard.press("Escape")
    assert "open" not in asked_for(page) and focused(page) == ids[1]


@pytest.mark.parametrize("view", ["answer", "fill"])
@pytest.mark.parametrize(
    ("query", "heading", "text"),
    [
        ("!429", "The server is busy", "room in a second"),
        ("!500", "The server failed", "the model failed"),
        ("!422", "The server refused the request", "found U+0007"),
    ],
)
def test_errors(visit, answering, filling, view, query, heading, text):
    server, end = (answering, "") if view == "answer" else (filling, " [MASK]")
    page = visit(server=server).open(f"?view={view}&q={query}{urllib.parse.quote(end)}")
    page.wait_for_selector(".notice")
    assert page.inner_text(f".{view} .notice h2") == heading
    assert text in page.inner_text(".notice")
    page.fill("#query", QUERY + end)
    page.keyboard.press("Enter")
    page.wait_for_selector(f".{view} .hit")


@pytest.mark.parametrize("view", ["answer", "fill"])
def test_a_slow_reply_and_a_newer_request(visit, answering, filling, view):
    server, end = (answering, "") if view == "answer" else (filling, " [MASK]")
    page = visit(server=server).open(f"?view={view}&q=!slow{urllib.parse.quote(end)}")
    page.wait_for_selector("#busy", state="visible")
    assert page.locator(f".{view}").get_attribute("aria-busy") == "true"
    page.fill("#query", QUERY + end)
    page.keyboard.press("Enter")
    page.wait_for_selector(f".{view}:not([aria-busy]) .hit")
    before = page.inner_text(f".{view}")
    page.wait_for_timeout(1800)  # until the slow reply would be there
    assert page.inner_text(f".{view}") == before and page.locator("#busy").is_hidden()


def test_no_passage_is_found(visit, answering, filling):
    page = visit(server=answering).open("?view=answer&q=!empty&source=Climate")
    page.wait_for_selector(".answer .notice")
    assert "Only passages from “Climate”" in page.inner_text(".answer .notice")
    page.click("text=Search all sources")
    browser.wait_for(page, "document.querySelector('.answer').innerText.includes('other words')")
    assert "source" not in asked_for(page)
    page = open_filled(visit, filling, "q=!empty+%5BMASK%5D")
    assert "No passage was found" in page.inner_text(".fill .warning")
    assert page.locator(".tokens thead button").count() == 1
    assert page.inner_text(".effect").startswith("Without a passage")


def test_a_cut_text_is_reported(visit, answering, filling):
    words = "ice+" * 40
    page = open_answers(visit, answering, f"q={words}")
    expected = "The question is cut off after 32 tokens. Its last 10 tokens are not read."
    assert page.inner_text(".warning") == expected
    page = open_filled(visit, filling, f"q=%5BMASK%5D+{words}%5BMASK%5D")
    assert page.inner_text(".warning").startswith("The sentence is cut off after 32 tokens.")
    assert page.inner_text(".warning").endswith("1 [MASK] in it is not filled in.")


def test_a_table_for_each_mask(visit, filling):
    page = open_filled(visit, filling)
    expected = reply(filling, "fill", text=SENTENCE)
    assert page.locator(".mask").count() == len(expected["masks"]) == 2
    heads = page.locator(".mask").first.locator("thead button .value").all_inner_texts()
    assert heads == [shown(one["probability"]) for one in expected["documents"]]
    assert "without a passage" in page.locator("thead button").first.inner_text()
    for n, mask in enumerate(expected["masks"]):
        rows = page.locator(".mask").nth(n).locator("tbody tr")
        assert rows.count() == 10
        for row, word in zip(rows.all(), mask["words"], strict=True):
            assert row.locator("th").inner_text() == word["piece"]
            assert row.locator(".mixed .value").inner_text() == shown(word["probability"])
            cells = row.locator(".cell").all_inner_texts()
            assert cells == [shown(value) for value in word["by_document"]]
        effect = page.locator(".effect").nth(n).inner_text()
        best = mask["words"][0]
        numbers = f"from {shown(best['by_document'][0])} to {shown(best['probability'])}."
        assert f"raise the probability of {best['piece']} {numbers}" in effect
    assert page.inner_text(".sentence") == "glaciers move faster in summer than in winter"
    assert page.locator(".fill .hit").count() == len(expected["documents"])
    shares = page.locator(".hit .scores .value").all_inner_texts()
    assert shares == [shown(one["probability"]) for one in expected["documents"]]
    assert filling.requests[-1] == ("/fill", {"text": SENTENCE, "k": 7})
    assert f'{{"text":"{SENTENCE}","k":7}}' in page.inner_text("#curl")
    assert page.inner_text("#status") == "2 [MASK]s filled in: summer, winter"


def test_masks_are_found_by_code_points(visit, filling):
    sentence = "\U0001f3d4\U0001f3d4 snow lies until [MASK]."
    page = open_filled(visit, filling, urllib.parse.urlencode({"q": sentence}))
    (mask,) = reply(filling, "fill", text=sentence)["masks"]
    best = mask["words"][0]["piece"]
    assert page.inner_text(".sentence") == sentence.replace("[MASK]", best.removeprefix("##"))
    assert page.locator(".mask h2").count() == 0


def test_the_pointer_and_a_click_mark_a_document(visit, filling):
    page = open_filled(visit, filling)
    hits = [one["hit"] for one in reply(filling, "fill", text=SENTENCE)["documents"]]
    page.locator(".mask").nth(1).locator("tbody .cell[data-document='2']").first.hover()
    marked = page.locator(".hit.is-marked")
    assert marked.locator(".hit-title").get_attribute("data-hit") == hits[2]["id"]
    for readout in page.locator(".document-readout").all():
        assert hits[2]["title"] in readout.inner_text() and hits[2]["text"] in readout.inner_text()
    page.locator("thead button[data-document='3']").first.click()
    assert asked_for(page)["open"] == hits[3]["id"]
    page.mouse.move(5, 5)
    assert marked.locator(".hit-title").get_attribute("data-hit") == hits[3]["id"]
    assert page.locator(".hit.is-open").inner_text().count(hits[3]["text"]) == 1
    page.reload()
    page.wait_for_selector(".hit.is-open")
    pressed = page.locator("thead button[aria-pressed=true]")
    assert {one.get_attribute("data-document") for one in pressed.all()} == {"3"}


def test_the_document_without_a_text_may_be_open(visit, filling):
    page = open_filled(visit, filling)
    page.locator("thead button").first.click()
    assert asked_for(page)["open"] == "∅"
    page.reload()
    page.wait_for_selector(".hit.is-open")
    assert page.inner_text(".hit.is-open h3") == "Without a passage"


def test_columns_with_keys_alone(visit, filling):
    page = open_filled(visit, filling)
    page.locator(".filled").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('.mask h2, .mask').innerText").startswith(
        "[MASK] 2 of 2"
    )
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert focused(page) == "2" and page.locator(".hit.is-marked .rank").inner_text() == "2"
    page.keyboard.press("End")
    assert focused(page) == "7"
    page.keyboard.press("ArrowRight")
    assert focused(page) == "7"
    page.keyboard.press("Enter")
    opened = asked_for(page)["open"]
    page.keyboard.press("Escape")
    assert "open" not in asked_for(page) and focused(page) == opened
    assert page.locator("thead button[tabindex='0']").count() == 2  # one of each table


def test_without_a_mask_nothing_is_asked(visit, filling):
    before = len(filling.requests)
    page = visit(server=filling).open(f"?view=fill&{ASKED}")
    assert page.inner_text(".no-mask h2") == "Nothing to fill in"
    assert len(filling.requests) == before
    page.click(".word >> text=summer")
    page.wait_for_selector(".mask")
    assert filling.requests[-1][1]["text"] == QUERY.replace("summer", "[MASK]")
    page.fill("#query", "a [mask] here")
    page.keyboard.press("Enter")
    page.click(".no-mask >> text=Write [MASK]")
    page.wait_for_selector(".mask")
    assert filling.requests[-1][1]["text"] == "a [MASK] here"


def test_the_button_inserts_a_mask(visit, filling):
    page = visit(server=filling).open("?view=fill")
    assert "where a word is missing" in page.inner_text(".fill .welcome")
    page.fill("#query", "snow melts in because of rain")
    page.evaluate("document.querySelector('#query').setSelectionRange(13, 13)")
    page.click("#insert-mask")
    assert page.input_value("#query") == "snow melts in [MASK] because of rain"
    assert focused(page) == "query"
    page.keyboard.press("Enter")
    page.wait_for_selector(".mask")
    page.fill("#query", "snow melts")
    page.evaluate("document.querySelector('#query').setSelectionRange(0, 4)")
    page.click("#insert-mask")
    assert page.input_value("#query") == "[MASK] melts"


def test_a_wide_table_scrolls_in_its_box(visit, filling):
    page = open_filled(visit, filling, f"{WITH}&read=20", viewport=browser.NARROW)
    box = page.locator(".table-box").first
    wide, narrow = box.evaluate("one => [one.scrollWidth, one.clientWidth]")
    assert wide > narrow
    box.evaluate("one => one.scrollTo(300, 0)")
    inside = box.bounding_box()
    assert box.locator("tbody th").first.bounding_box()["x"] == pytest.approx(
        inside["x"] + 1, abs=1
    )
    page.locator("thead button").first.focus()
    page.keyboard.press("End")
    last = box.locator("thead button").last.bounding_box()
    assert last["x"] + last["width"] <= inside["x"] + inside["width"] + 1
