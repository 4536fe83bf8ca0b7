"""The curves of trainings in Chromium: what is drawn, pointer, keys, links, and what is missing."""

import math
import re
import urllib.parse

import pytest

from tests.launch.page import browser, fake_server, fake_trainings

VIEW = "?view=training"
NAMES = ["pretrained", "retriever", "bag_of_embeddings"]  # the model that is served first
LOSS = ".training[aria-label='Training retriever'] .chart[aria-label=Loss]"
RETRIEVER = fake_trainings.TRAININGS[2]


@pytest.fixture(name="other")
def start_other():
    """A server whose trainings a test changes."""
    server = fake_server.FakeServer().start()
    yield server
    server.shutdown()
    server.server_close()


def opened(visit, address="", **options):
    page = visit(**options).open(VIEW + address)
    page.wait_for_selector(".chart")
    return page


def asked_for(page):
    return {name: one[0] for name, one in urllib.parse.parse_qs(page.url.partition("?")[2]).items()}


def titles(page, name):
    section = page.locator(f".training[aria-label='Training {name}']")
    return section.locator("h3").all_inner_texts()


def values(page, chart=LOSS):
    """Label -> value, as the chart shows them."""
    rows = page.locator(f"{chart} .chart-values li").all_inner_texts()
    return dict(re.split(r"\s+", row.strip(), maxsplit=1) for row in rows)


def at(page, share, chart=LOSS):
    """A place in the window: the share of a chart's axis of steps."""
    page.locator(chart).scroll_into_view_if_needed()
    box = page.locator(f"{chart} .plot-area").bounding_box()
    return box["x"] + share * box["width"], box["y"] + box["height"] / 2


def curve(name):
    return next(one for one in RETRIEVER["curves"] if one["name"] == name)


def test_each_training_has_its_charts(visit):
    page = opened(visit)
    assert page.locator(".training h2").all_inner_texts() == NAMES
    assert titles(page, "pretrained") == ["Loss", "Learning rate", "Tokens per second"]
    measured = ["MRR@10", "nDCG@10", "Recall@100"]
    assert titles(page, "retriever") == ["Loss", *measured, "Learning rate", "Tokens per second"]
    assert page.inner_text(".curves-summary span") == "3 trainings · 2 h 21 min in all"
    assert page.locator(".training-note").count() == 1
    chain = page.locator(".chain-length").all_inner_texts()
    assert chain[1] == "3,000 steps · 47 min 56 s"
    assert page.locator("nav a:visible").all_inner_texts()[-2:] == ["Training", "About"]
    assert "/curves" in page.inner_text("#curl")


def test_train_and_evaluations_share_a_chart_that_shows_the_last_values(visit):
    page = opened(visit)
    last = {name: curve(f"{name}/loss")["values"][-1] for name in ("train", "eval/dev")}
    shown = values(page)
    assert list(shown) == ["train", "dev", "test"]
    assert float(shown["train"]) == pytest.approx(last["train"], abs=1e-3)
    assert float(shown["dev"]) == pytest.approx(last["eval/dev"], abs=1e-3)
    assert page.locator(f"{LOSS} .chart-step").inner_text() == "last"


def test_a_line_has_a_gap_where_values_are_not_finite(visit):
    page = opened(visit)
    path = page.locator(f"{LOSS} .curve").first.get_attribute("d")
    assert path.count("M") == 2
    loss = curve("train/loss")
    finite = sum(value is not None for value in loss["values"])
    assert path.count("M") + path.count("L") == finite
    assert page.inner_text(f"{LOSS} .chart-gaps") == f"{len(loss['values']) - finite} not finite"
    page.mouse.move(*at(page, 930 / 3000))
    assert values(page)["train"] == "not finite"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_pointer_moves_the_cursor_of_all_charts_of_a_training(visit, share):
    page = opened(visit)
    page.mouse.move(*at(page, share))
    steps = page.locator(".training[aria-label='Training retriever'] .chart-step").all_inner_texts()
    found = [int(re.sub(r"\D", "", step)) for step in steps]
    assert all(abs(step - 3000 * share) <= 250 for step in found)
    loss = curve("train/loss")
    nearest = min(range(len(loss["steps"])), key=lambda n: abs(loss["steps"][n] - found[0]))
    assert float(values(page)["train"]) == pytest.approx(loss["values"][nearest], abs=1e-3)
    others = page.locator(".training[aria-label='Training pretrained'] .chart-step")
    assert set(others.all_inner_texts()) == {"last"}
    page.mouse.move(2, 2)
    assert page.locator(f"{LOSS} .chart-step").inner_text() == "last"


def test_arrow_keys_move_the_cursor_and_say_the_values(visit):
    page = opened(visit)
    plot = page.locator(f"{LOSS} .plot")
    plot.focus()
    said = lambda: plot.get_attribute("aria-valuetext")  # noqa: E731
    assert said().startswith("step 3,000: train 0.3")
    page.keyboard.press("ArrowLeft")
    assert said().startswith("step 2,990: train") and "step 3,000: dev" in said()
    assert plot.get_attribute("aria-valuenow") == "2990"
    page.keyboard.press("Home")
    assert said().startswith("step 10: train")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("PageUp")
    assert said().startswith("step 120: train")
    page.keyboard.press("Escape")
    assert page.locator(f"{LOSS} .chart-step").inner_text() == "last"


def test_keys_alone_choose_a_training_and_the_log_scale(visit):
    page = opened(visit)
    page.focus("#chain-1")
    page.keyboard.press("Enter")
    assert page.locator(".training h2").all_inner_texts() == ["retriever"]
    assert page.evaluate("document.activeElement.id") == "chain-1"
    ticks = f"{LOSS} .tick-y"
    linear = page.locator(ticks).all_inner_texts()
    page.focus("#curves-scale")
    page.keyboard.press("Enter")
    assert page.locator(ticks).all_inner_texts() != linear
    assert page.locator(".chart-head .hint").all_inner_texts() == ["log"]
    assert asked_for(page) == {"view": "training", "stage": "retriever", "scale": "log"}
    page.go_back()
    assert page.locator(".training h2").all_inner_texts() == NAMES


def test_a_link_restores_the_view(visit):
    page = opened(visit, "&stage=retriever&scale=log&theme=dark")
    assert page.locator(".training h2").all_inner_texts() == ["retriever"]
    assert page.locator("#curves-scale").get_attribute("aria-pressed") == "true"
    assert page.locator("form").is_hidden() and page.title() == "Training · Kennel"


def test_an_unknown_training_of_a_link_shows_all(visit):
    page = opened(visit, "&stage=gone&scale=cubic")
    assert page.locator(".training h2").all_inner_texts() == NAMES


def test_the_table_has_first_last_and_extremes(visit):
    page = opened(visit, "&stage=retriever")
    page.click("summary")
    row = page.locator("tr", has_text="Loss, train").locator("td").all_inner_texts()
    loss = curve("train/loss")
    known = [value for value in loss["values"] if value is not None]
    numbers = [float(cell.split()[0]) for cell in row[:4]]
    expected = [loss["values"][0], min(known), max(known), loss["values"][-1]]
    assert numbers == pytest.approx(expected, abs=1e-3)
    assert row[4] == "300 of 1,200"


def test_ticks_are_round_and_few(visit):
    page = visit().open()
    found = page.evaluate(
        """async () => {
          const { linear, logarithmic, fromZero, tickTexts } =
            await import("/page/curves/scales.js");
          let seed = 7;
          const random = () => { seed = (seed * 16807) % 2147483647; return seed / 2147483647; };
          return Array.from({ length: 500 }, () => {
            const low = (random() - 0.3) * 10 ** (12 * random() - 6);
            const high = low + Math.abs(low) * 10 ** (4 * random() - 2);
            const scales = [linear(low, high), fromZero(Math.ceil(Math.abs(high)))];
            if (low > 0) scales.push(logarithmic(low, high));
            return scales.map((one, number) => ({ low, high, number, ticks: one.ticks,
              texts: tickTexts(one.ticks), places: one.ticks.map(one.place),
              ends: number === 1 ? [0, 1] : [one.place(low), one.place(high)] }));
          }).flat();
        }"""
    )
    for one in found:
        assert 1 <= len(one["ticks"]) <= 6, one
        assert all(-1e-6 <= place <= 1 + 1e-6 for place in one["places"] + one["ends"]), one
        assert len(set(one["texts"])) == len(one["ticks"]), one
        assert max(map(len, one["texts"])) <= 9 and sorted(one["ticks"]) == one["ticks"], one


def test_one_point(visit, other):
    other.trainings = [fake_trainings.training("retriever", 1, seconds=0.2)]
    page = opened(visit, server=other)
    assert page.locator(".chain").count() == 0
    assert page.inner_text(".training .meta").startswith("1 step · 0 s")
    box = page.locator(".chart[aria-label='MRR@10'] .dots").get_attribute("d")
    assert box.count("h0") == 1 and all(map(math.isfinite, map(float, re.findall(r"[\d.]+", box))))
    page.focus(".plot")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".chart-step").first.inner_text() == "step 1"


def test_only_values_that_are_not_finite(visit, other):
    other.trainings = [fake_trainings.training("retriever", 20, splits=(), gap=range(21))]
    page = opened(visit, server=other)
    assert page.inner_text(".chart[aria-label=Loss] .chart-gaps") == "20 not finite"
    assert values(page, ".chart[aria-label=Loss]") == {"train": "not finite"}


def test_what_the_bundle_lacks_is_said(visit, other):
    empty = {**RETRIEVER, "name": "odd <b>name</b>", "curves": []}
    other.trainings, other.unread, other.left_out = [RETRIEVER, empty], ["mined", "old"], 3
    page = opened(visit, server=other)
    warnings = " ".join(page.locator(".warning").all_inner_texts())
    assert "could not be read: mined and old" in warnings and "3 curves left out" in warnings
    assert "Its log has no loss" in page.inner_text(".training >> nth=1")
    assert page.locator(".training h2").last.inner_text() == "odd <b>name</b>"


def test_many_evaluations_are_split(visit, other):
    splits = [f"language-{number:02d}" for number in range(13)]
    other.trainings = [fake_trainings.training("retriever", 60, splits=splits)]
    page = opened(visit, server=other)
    assert [title for title in titles(page, "retriever") if title.startswith("MRR")] == [
        f"MRR@10 ({number} of 3)" for number in (1, 2, 3)
    ]


def test_a_bundle_without_curves_has_no_view_of_them(visit, other):
    other.trainings = None
    page = visit(server=other).open()
    assert page.locator("nav a[data-view=training]").is_hidden()
    page = visit(server=other).open(VIEW)
    page.wait_for_selector(".curves .notice")
    assert "kennel export --bundle=RUN" in page.inner_text(".curves .notice")
    assert "/curves" not in {path for path, _ in other.requests}


def test_an_error_may_be_asked_again(visit, other):
    one = visit(server=other)
    one.page.route("**/curves", lambda to: to.fulfill(status=503, body='{"error": "not yet"}'))
    page = one.open(VIEW)
    page.wait_for_selector(".curves .notice")
    assert "not yet" in page.inner_text(".curves .notice")
    page.unroute("**/curves")
    page.click("text=Try again")
    page.wait_for_selector(".chart")


@pytest.mark.parametrize(("viewport", "theme"), [(browser.WIDE, "light"), (browser.NARROW, "dark")])
@pytest.mark.parametrize("state", ["", "&stage=retriever&scale=log"])
def test_axe_has_no_serious_findings_on_curves(visit, state, viewport, theme):
    page = opened(visit, state, viewport=viewport, color_scheme=theme, reduced_motion="reduce")
    page.click("summary >> nth=0")
    assert browser.axe_findings(page) == []
