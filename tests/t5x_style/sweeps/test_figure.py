"""The picture of a sweep: scales, curves, and that each awkward sweep gives a page."""

import dataclasses
import itertools

import pytest

from t5x_style.sweeps import figure, standings
from t5x_style.sweeps.trials import Record
from tests.t5x_style.sweeps import made_results as made

FAILED = Record("failed", reason="loss is nan", curve=((1, 0.1),))
DEAD = Record("pruned", reason="its configuration was pruned with seed 1")
CURVE = ((1, 0.1), (2, 0.2), (3, 0.3))
SIX = ("RATE", "STEPS", "KIND", "FLAG", "LAYERS", "rate_of_bag")


def trained(value, curve=CURVE):
    return made.done(value, curve[-1][0], curve)


def pruned(curve=CURVE[:2]):
    return Record("pruned", curve[-1][1], curve[-1][0], curve, "pruner median at step 2")


def six_axes():
    table = []
    for number in range(9):
        values = {
            "RATE": 10.0 ** (number - 9),
            "STEPS": number,
            "KIND": ["a/very/long/path/" * 9, "$x$", "", "line\nbreak"][number % 4],
            "FLAG": [None, True, 1, 0.5][number % 4],
            "LAYERS": [(1, 2), {"a": [1]}, [3]][number % 3],
        }
        if number % 2:
            values["rate_of_bag"] = 0.1
        table.append((values, [trained(number / 9), trained(number / 8)]))
    return made.results(table, (1, 2), SIX, logarithmic=frozenset(["RATE", "STEPS"]))


CASES = {
    "one trial": made.results([({"RATE": 1}, [0.5])], (), ("RATE",)),
    "nothing ran": made.results([({"RATE": 1}, [None] * 3)], axes=("RATE",)),
    "only failed": made.results([({"RATE": 1}, [FAILED] * 3)], axes=("RATE",)),
    "running": made.results(
        [({"RATE": 1}, [Record("running", curve=CURVE), None, None])], axes=("RATE",)
    ),
    "all others pruned": made.results(
        [({"RATE": 1}, [trained(0.5)] * 3), ({"RATE": 2}, [pruned(), DEAD, DEAD])], axes=("RATE",)
    ),
    "six axes": six_axes(),
    "no steps": made.results([({"RATE": i}, [i, i, i + 1]) for i in range(4)], axes=("RATE",)),
    "equal values": made.results([({"RATE": i}, [0.0] * 3) for i in range(4)], axes=("RATE",)),
    "small is good": made.results(
        [({"RATE": i}, [trained(i)] * 3) for i in range(4)], axes=("RATE",), larger_is_better=False
    ),
    "no trials": dataclasses.replace(
        made.results([({"RATE": 1}, [0.5])], (), ("RATE",)), trials=(), records={}
    ),
    "no default": dataclasses.replace(
        found := made.results([({"RATE": i}, [i, i, i + 1]) for i in range(4)], axes=("RATE",)),
        trials=found.trials[3:],
    ),
    "an axis that nothing has": made.results([({"RATE": 1}, [0.1] * 3)]),
    "many": made.results(
        [({"RATE": i / 7, "KIND": f"kind {i}"}, [trained(i)]) for i in range(200)], ()
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_page_is_drawn(case, tmp_path, recwarn):
    from matplotlib import image

    path = tmp_path / "page.tmp"
    figure.draw(CASES[case], path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = image.imread(path, format="png")
    assert pixels.shape[1] == figure.WIDE * figure.DPI
    assert pixels.min() < 0.5 < pixels.max()
    assert [str(one.message) for one in recwarn] == []


def test_a_page_without_a_finished_trial_says_so():
    found = CASES["only failed"]
    title = figure._title(found, standings.rows(found))
    assert title.endswith("no trial is done: 3 failed")
    found = dataclasses.replace(found, trials=())
    assert figure._title(found, []).endswith("no trial is done: there are no trials")


def only(records):
    found = made.results([({"RATE": 1}, records)], axes=("RATE",))
    return figure.mean_curve(found, standings.rows(found)[0])


def test_curves_are_means_at_common_steps():
    others = ((1, 0.3), (3, 0.5), (4, 0.9))
    points, is_pruned = only([trained(0.3), trained(0.9, others), FAILED])
    assert [step for step, _ in points] == [1, 3] and not is_pruned
    assert [value for _, value in points] == pytest.approx([0.2, 0.4])


def test_curves_of_pruned_configurations_end_where_they_were_pruned():
    assert only([pruned(), DEAD, DEAD]) == (CURVE[:2], True)
    assert only([trained(0.3), pruned(), DEAD]) == (CURVE[:2], True)
    assert only([None, FAILED, None]) == (((1, 0.1),), False)
    assert only([0.3, 0.4, 0.5]) == ((), False)


def test_scales_of_numbers():
    linear = figure.scale([3, 1, 2.0, 1], logarithmic=False)
    assert (linear.values, linear.is_numeric, linear.logarithmic) == ((1, 2.0, 3), True, False)
    assert linear.share(2) == 0.5
    drawn = figure.scale([1e-4, 1e-2, 1e-3], logarithmic=True)
    assert drawn.share(1e-3) == pytest.approx(0.5)
    assert figure.scale([1, 100], logarithmic=False).logarithmic  # a list over two decades
    assert not figure.scale(range(1, 200), logarithmic=False).logarithmic
    assert not figure.scale([0, 1000], logarithmic=True).logarithmic  # 0 has no logarithm
    assert figure.scale([7], logarithmic=True).share(7) == 0.5


def test_scales_of_categories_keep_what_is_alike_apart():
    found = figure.scale([1, True, "1", None, (1,), float("inf")], logarithmic=True)
    assert not found.is_numeric and not found.logarithmic and found.is_few
    places = {found.place(one) for one in (1, True, "1", None, (1,), float("inf"))}
    assert places == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}


def test_numbers_among_categories_are_in_the_order_of_their_size():
    found = figure.scale([None, 1e-4, "warm", 1e-5, 3e-4], False)
    assert not found.is_numeric and found.values == (1e-5, 1e-4, 3e-4, "warm", None)


def test_labels_are_as_far_apart_as_asked():
    found = figure.scale([str(one) for one in range(100)], logarithmic=False)
    shares = [found.share(value) for value, _ in found.ticks(0.1, 18)]
    assert shares[0] == 0.0 and all(b - a >= 0.1 for a, b in itertools.pairwise(shares))
    continuous = figure.scale([one / 99 for one in range(100)], logarithmic=False)
    assert [label for _, label in continuous.ticks(0.1, 18)] == ["0", "1"]


def test_the_best_have_colours_and_the_default_is_black():
    rows = standings.rows(CASES["many"])
    colours = figure._colours(rows)
    assert colours["default"] == "black" and len(colours) == 1 + len(figure.COLOURS)
    assert colours[rows[0].name] == figure.COLOURS[0]


def test_jitter_depends_on_the_name_alone():
    found = [figure._jitter(f"trial {number}") for number in range(50)]
    assert found == [figure._jitter(f"trial {number}") for number in range(50)]
    assert len(set(found)) == 50 and all(-0.2 <= one <= 0.2 for one in found)
