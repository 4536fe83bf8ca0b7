"""The map of the passages in Chromium: pointer, keys, links, sources, and what it shows without."""

import urllib.parse

import pytest

from tests.launch.page import browser, fake_server
from tests.launch.page.browser import ASKED, QUERY, wait_for_evidence

FRAME = ".map-frame"
MANY = 20_000
POINTS = fake_server.map_of(fake_server.FakeServer())[1]


@pytest.fixture(name="many", scope="module")
def start_many():
    """A server whose map has as many points as a map may have."""
    server = fake_server.FakeServer(points=MANY).start()
    yield server
    server.shutdown()


def opened(visit, address="", **options):
    page = visit(**options).open(f"?view=map{address}")
    page.wait_for_selector(FRAME)
    settle(page)
    return page


def settle(page):
    """Until what was asked for is drawn."""
    page.evaluate("new Promise((end) => requestAnimationFrame(() => requestAnimationFrame(end)))")


def asked_for(page):
    return {name: one[0] for name, one in urllib.parse.parse_qs(page.url.partition("?")[2]).items()}


def place(page, number):
    """Where a point of POINTS is in the window, as map_canvas.js places it."""
    box = page.locator(FRAME).bounding_box()
    sides = []
    for name, size in (("x", box["width"]), ("y", box["height"])):
        values = POINTS[name]
        sides.append((values, (size - 2 - 40) / (max(values) - min(values)), size))
    most = 3 * min(scale for _, scale, _ in sides)
    found = [
        size / 2 + sign * min(scale, most) * (values[number] - (max(values) + min(values)) / 2)
        for sign, (values, scale, size) in zip((1, -1), sides, strict=True)
    ]
    return box["x"] + found[0], box["y"] + found[1]


def title(number):
    return POINTS["titles"][number] or POINTS["ids"][number]


@pytest.mark.parametrize("number", [0, 5, 11])
def test_the_pointer_shows_a_passage(visit, number):
    page = opened(visit)
    page.mouse.move(*place(page, number))
    assert page.inner_text(".map-tip .map-title") == title(number)
    assert page.inner_text(".map-tip .source") == fake_server.PASSAGES[number]["source"]
    page.mouse.move(2, 2)
    assert page.locator(".map-tip").is_hidden()


def test_a_click_searches_for_the_title_and_the_next_one_opens_evidence(visit):
    page = opened(visit)
    page.mouse.click(*place(page, 5))
    page.wait_for_selector(".map-hit")
    assert page.input_value("#query") == title(5)
    hits = [hit["id"] for hit in fake_server.search(title(5), "hybrid", 10)]
    shown = page.locator(".map-hit").all()
    assert [hit.get_attribute("data-hit") for hit in shown] == hits
    assert page.locator(f"{FRAME}.has-hits").count() == 1
    assert "10 hits" in page.inner_text(".map .summary")
    page.mouse.click(*place(page, 3))
    wait_for_evidence(page)
    assert page.inner_text("#evidence h2") == title(3)
    open_now = {name: asked_for(page)[name] for name in ("view", "point", "open")}
    assert open_now == {"view": "map", "point": POINTS["ids"][3], "open": POINTS["ids"][3]}
    page.go_back()
    assert page.locator("#evidence").is_hidden()


def test_a_tap_shows_the_passage_first(visit):
    page = opened(visit, f"&{ASKED}", viewport=browser.NARROW, has_touch=True)
    page.wait_for_selector(".map-hit")
    page.touchscreen.tap(*place(page, 5))
    browser.wait_for(page, "document.querySelector('.map-card .map-title') !== null")
    assert page.inner_text(".map-card .map-title") == title(5)
    assert page.locator("#evidence").is_hidden()
    page.click(".map-card >> text=Evidence")
    wait_for_evidence(page)
    page.click("text=Back to the map")
    assert page.inner_text(".map-card .map-title") == title(5)


def test_arrow_keys_move_between_passages(visit):
    page = opened(visit)
    page.focus(FRAME)
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".map-card .map-title")
    seen = [page.inner_text(".map-card .map-title")]
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
        seen.append(page.inner_text(".map-card .map-title"))
    assert len(set(seen)) >= 3 and set(seen) <= set(map(title, range(len(POINTS["ids"]))))
    browser.wait_for(page, "window.location.search.includes('point=')")
    assert title(POINTS["ids"].index(asked_for(page)["point"])) == seen[-1]
    page.keyboard.press("Enter")
    page.wait_for_selector(".map-hit")
    assert page.input_value("#query") == seen[-1]
    assert page.evaluate("document.activeElement.className").startswith("map-frame")
    page.keyboard.press("Enter")
    wait_for_evidence(page)
    page.keyboard.press("Escape")
    assert page.locator("#evidence").is_hidden()
    assert page.evaluate("document.activeElement.closest('.map') !== null")


def test_all_points_are_reached_by_arrow_keys(visit):
    """From each point, by steps in the four directions; two of them are in one place."""
    page = opened(visit)
    reached = page.evaluate(
        """async ([xs, ys]) => {
          const { step } = await import("/page/map/map_grid.js");
          const steps = [[1, 0], [-1, 0], [0, 1], [0, -1]];
          const seen = new Set([0]);
          for (const from of seen) {
            for (const one of steps) seen.add(step(xs, ys, () => true, from, one));
          }
          return seen.size;
        }""",
        [[*POINTS["x"], POINTS["x"][3]], [*POINTS["y"], POINTS["y"][3]]],
    )
    assert reached == len(POINTS["ids"]) + 1


def test_the_grid_finds_what_a_search_of_all_points_finds(visit):
    page = opened(visit)
    wrong = page.evaluate(
        """async () => {
          const { createGrid } = await import("/page/map/map_grid.js");
          let seed = 1;
          const random = () => { seed = (seed * 16807) % 2147483647; return seed / 2147483647; };
          const xs = Float32Array.from({ length: 3000 }, () => 700 * random());
          const ys = Float32Array.from({ length: 3000 }, () => 500 * random() ** 2);
          const isActive = (point) => point % 3 > 0;
          const { nearest } = createGrid(xs, ys, isActive);
          let wrong = 0;
          for (let n = 0; n < 2000; n += 1) {
            const [x, y, radius] = [900 * random() - 100, 700 * random() - 100, 30 * random()];
            let [best, least] = [-1, radius ** 2];
            for (let point = 0; point < 3000; point += 1) {
              const distance = (xs[point] - x) ** 2 + (ys[point] - y) ** 2;
              if (isActive(point) && distance < least) [best, least] = [point, distance];
            }
            wrong += nearest(x, y, radius) !== best;
          }
          return wrong;
        }"""
    )
    assert wrong == 0


def test_the_pointer_is_followed_among_20_000_points(visit, many):
    page = opened(visit, server=many)
    assert page.inner_text(".map .summary") == "20,000 passages"
    milliseconds = page.evaluate(
        """() => {
          const frame = document.querySelector(".map-frame");
          const box = frame.getBoundingClientRect();
          const start = performance.now();
          for (let n = 0; n < 200; n += 1) {
            frame.dispatchEvent(new PointerEvent("pointermove", { pointerType: "mouse",
              clientX: box.left + box.width * (0.3 + n / 500),
              clientY: box.top + box.height * (0.3 + n / 500) }));
          }
          return (performance.now() - start) / 200;
        }"""
    )
    assert page.locator(".map-tip .map-title").count() == 1
    assert milliseconds < 10  # of a move; a frame has 16


def test_one_source_alone(visit, server):
    page = opened(visit, f"&{ASKED}")
    page.wait_for_selector(".map-hit")
    painted = "document.querySelector('.map-points').toDataURL()"
    before = page.evaluate(painted)
    page.locator("button.map-key", has_text="Biology").focus()
    page.keyboard.press("Enter")
    browser.wait_for(page, "document.querySelectorAll('.map-hit').length < 10")
    assert asked_for(page)["source"] == "Biology"
    assert page.evaluate(painted) != before
    assert page.evaluate("document.activeElement.textContent").startswith("Biology")
    other = next(n for n, one in enumerate(fake_server.PASSAGES) if one["source"] == "Physics")
    page.mouse.move(*place(page, other))
    assert page.locator(".map-tip:visible").count() == 0
    page.keyboard.press("Enter")
    browser.wait_for(page, "document.querySelectorAll('.map-hit').length === 10")
    body = {"query": QUERY, "mode": "hybrid", "k": 10, "source": "Biology"}
    assert ("/search", body) in server.requests


def test_a_link_restores_the_map(visit):
    point = POINTS["ids"][4]
    page = opened(visit, f"&{ASKED}&mode=sparse&point={point}&theme=dark")
    page.wait_for_selector(".map-hit")
    assert page.inner_text(".map-card .map-title") == title(4)
    assert "Sparse" in page.inner_text(".map .summary")
    lines = page.locator("#curl code").all_inner_texts()
    assert [line.split()[2].rpartition("/")[2] for line in lines] == ["map", "search"]


def test_the_theme_changes_colours(visit):
    page = opened(visit, color_scheme="light")
    painted = "document.querySelector('.map-points').toDataURL()"
    light = page.evaluate(painted)
    page.click("#theme")  # light, as before
    page.click("#theme")  # dark
    browser.wait_for(page, f"{painted} !== '{light}'")


def test_a_bundle_without_vectors_has_no_map(visit):
    server = fake_server.FakeServer(kinds=["sparse", "multi_vector"]).start()
    page = visit(server=server).open("?view=map")
    page.wait_for_selector(".map .notice")
    assert page.inner_text(".map .notice h2") == "No map of this bundle"
    assert "only sparse and multi-vector representations" in page.inner_text(".map .notice")
    assert "/map" not in {path for path, _ in server.requests}
    server.shutdown()


def test_an_error_of_the_map_may_be_asked_again(visit):
    server = fake_server.FakeServer().start()
    one = visit(server=server)
    one.page.route("**/map", lambda route: route.fulfill(status=503, body='{"error": "not yet"}'))
    page = one.open("?view=map")
    page.wait_for_selector(".map .notice")
    assert "not yet" in page.inner_text(".map .notice")
    page.unroute("**/map")
    page.click("text=Try again")
    page.wait_for_selector(FRAME)
    server.shutdown()


@pytest.mark.parametrize(
    ("query", "text"), [("!500", "the model failed"), ("!empty", "No passage")]
)
def test_a_search_without_hits_leaves_the_map(visit, query, text):
    page = opened(visit, f"&q={query}")
    browser.wait_for(page, f"document.querySelector('.map-panel').innerText.includes('{text}')")
    assert page.locator(FRAME).is_visible()


def test_a_newer_version_has_another_map(visit):
    server = fake_server.FakeServer().start()
    page = opened(visit, server=server)
    server.version, server.points = 4, 100
    page.fill("#query", QUERY)
    page.keyboard.press("Enter")
    browser.wait_for(page, "document.querySelector('.map .summary').innerText.includes('100 pass')")
    assert "version 4" in page.inner_text("#bundle")
    server.shutdown()


@pytest.mark.parametrize(("viewport", "theme"), [(browser.WIDE, "light"), (browser.NARROW, "dark")])
@pytest.mark.parametrize("state", ["", f"&{ASKED}&point=glac-027", f"&{ASKED}&open=glac-027"])
def test_axe_has_no_serious_findings_on_the_map(visit, state, viewport, theme):
    options = {"viewport": viewport, "color_scheme": theme, "reduced_motion": "reduce"}
    page = visit(**options).open(f"?view=map{state}")
    page.wait_for_load_state("networkidle")
    assert browser.axe_findings(page) == []
