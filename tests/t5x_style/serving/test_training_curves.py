"""curves.json: which points of a curve it keeps, its limits, and bundles with and without it."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_style.interfaces.index import IndexDamaged
from t5x_style.serving import bundle, bundle_update, training_curves
from t5x_style.serving.bundle_update import Changes
from t5x_style.serving.opened.bundle_service import BundleService
from t5x_style.serving.service import RequestError
from t5x_style.serving.training_curves import Curves, CurvesError, Training
from tests.t5x_style.serving import bundle_kit

NUMBERS = st.floats(width=32)  # NaN and infinities, too
MADE = Curves(
    [
        Training("first", False, "2026-11-27 10:00:00", 4.5, []),
        Training(
            "second", True, "2026-11-27 11:00:00", 60.0,
            [training_curves.curve("train/loss", [(1, 2.0), (2, math.nan), (3, 0.123456789)])],
        ),
    ],
    ["third"],
    1,
)  # fmt: skip


def many(trainings: int, curves: int, points: int) -> Curves:
    """Trainings of curves that take many digits."""
    log = [(10 * step, math.sin(step)) for step in range(points)]
    one = [training_curves.curve(f"eval/dev/{number}", log) for number in range(curves)]
    return Curves([Training(f"t{n}", True, "", 1.0, one) for n in range(trainings)])


@given(st.lists(NUMBERS, max_size=120), st.integers(5, 40))
def test_ends_and_extremes_are_kept(values, most) -> None:
    kept = training_curves.kept_points(values, most)
    assert kept == sorted(set(kept)) and set(kept) <= set(range(len(values)))
    if len(values) <= most:
        assert kept == list(range(len(values)))
        return
    assert len(kept) <= most and {0, len(values) - 1} <= set(kept)
    finite = [value for value in values if math.isfinite(value)]
    there = [values[at] for at in kept if math.isfinite(values[at])]
    if finite:
        assert (min(finite), max(finite)) == (min(there), max(there))
    if len(finite) < len(values):
        assert len(there) < len(kept)


@given(st.integers(301, 5000))
def test_the_rest_is_evenly_spaced(count) -> None:
    kept = training_curves.kept_points([0.0] * count, 300)
    gaps = [after - before for before, after in itertools.pairwise(kept)]
    assert len(kept) <= 300 and max(gaps) <= count // 298 + 1


def test_what_is_written_is_read(tmp_path) -> None:
    training_curves.write(tmp_path, MADE)
    assert training_curves.read(tmp_path) == MADE
    (loss,) = MADE.trainings[1].curves
    assert list(loss.values) == [2.0, None, 0.123457] and loss.logged == 3
    assert "NaN" not in (tmp_path / training_curves.FILE).read_text()


def test_without_curves_there_is_no_file(tmp_path) -> None:
    training_curves.write(tmp_path, None)
    assert not list(tmp_path.iterdir()) and training_curves.read(tmp_path) is None


def test_a_training_has_at_most_40_curves() -> None:
    found = json.loads(training_curves.text_of(many(2, 45, 3)))
    assert [len(one["curves"]) for one in found["trainings"]] == [40, 40]
    assert found["left_out"] == 10
    assert found["trainings"][0]["curves"][0]["name"] == "eval/dev/0"


@pytest.mark.parametrize(("trainings", "points"), [(2, 300), (7, 150), (60, 30)])
def test_a_long_file_has_fewer_points_and_then_fewer_curves(trainings, points) -> None:
    text = training_curves.text_of(many(trainings, 40, 900))
    found = json.loads(text)
    assert len(text) <= training_curves.BYTES
    curves = [one for training in found["trainings"] for one in training["curves"]]
    assert all(points - 3 <= len(one["steps"]) <= points for one in curves)
    assert {one["logged"] for one in curves} == {900}
    assert len(curves) + found["left_out"] == 40 * trainings
    assert (found["left_out"] > 0) == (points == 30)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "expected format 1, found 2"),
        ({"trainings": [{"name": "a"}]}, "expected the curves of trainings"),
        ({"trainings": None}, "expected the curves of trainings"),
    ],
)
def test_what_is_no_file_of_curves_is_refused(tmp_path, change, message) -> None:
    content = json.loads(training_curves.text_of(MADE)) | change
    (tmp_path / training_curves.FILE).write_text(json.dumps(content))
    with pytest.raises(CurvesError, match=message):
        training_curves.read(tmp_path)


def test_a_curve_has_a_value_for_each_step(tmp_path) -> None:
    content = json.loads(training_curves.text_of(MADE))
    content["trainings"][1]["curves"][0]["steps"].append(4)
    (tmp_path / training_curves.FILE).write_text(json.dumps(content))
    with pytest.raises(CurvesError, match="a value for each of 4 steps, found 3"):
        training_curves.read(tmp_path)


def test_a_bundle_has_them_and_its_next_version_keeps_them(tmp_path) -> None:
    made = bundle_kit.publish(tmp_path, curves=MADE)
    done = bundle_update.update(made, Changes({}, frozenset("b")))
    before, after = (
        (version / training_curves.FILE).read_bytes()
        for version in (made / "versions/1", done.version)
    )
    assert before == after
    assert training_curves.FILE in bundle.read_manifest(done.version)["files"]
    service = BundleService(done.version)
    assert service.facts.curves and service.curves() == MADE
    service.close()
    (done.version / training_curves.FILE).write_bytes(before.replace(b"first", b"fir5t"))
    with pytest.raises(IndexDamaged, match="its bytes changed"):
        BundleService(done.version)


def test_a_bundle_without_them_is_served(tmp_path) -> None:
    made = bundle_kit.publish(tmp_path)
    done = bundle_update.update(made, Changes({}, frozenset("b")))
    assert not (done.version / training_curves.FILE).exists()
    service = BundleService(done.version)
    assert not service.facts.curves
    with pytest.raises(RequestError, match="expected a bundle that has them"):
        service.curves()
    service.close()
