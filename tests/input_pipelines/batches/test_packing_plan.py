"""The plan against what it promises: a pure function, everything once, little padding."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipelines.batches import packing_plan
from tests.kits.tiny_stores import realistic_lengths


def make(
    lengths: Sequence[np.ndarray],
    *,
    weights: Sequence[float] | None = None,
    seed: int = 0,
    rows: int = 32,
    length: int = 256,
    segments: int = 8,
    block: int = 8192,
) -> packing_plan.Plan:
    names = [f"store{i}" for i in range(len(lengths))]
    return packing_plan.Plan(
        lengths, names, weights, seed=seed, rows=rows, length=length, segments=segments, block=block
    )


def epoch_slots(made: packing_plan.Plan, epoch: int) -> np.ndarray:
    first = sum(made.epoch_rows(e) for e in range(epoch))
    return made.slots(first, first + made.epoch_rows(epoch))


def test_packs_by_hand_as_best_fit_decreasing_does() -> None:
    # Rows of 10. 7 and 6 open rows; 4 goes with the 6 (full), 3 with the 7 (full); 2 and 1 remain.
    slots = packing_plan.pack_rows(np.array([1, 2, 3, 4, 6, 7]), 10, 3)
    rows = {tuple(sorted(row[row >= 0].tolist())) for row in slots}
    assert rows == {(2, 5), (3, 4), (0, 1)}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(20, 40), st.integers(1, 6)
)
def test_every_passage_is_packed_once_and_no_row_overflows(
    sizes: list[int], length: int, segments: int
) -> None:
    lengths = np.array(sizes)
    slots = packing_plan.pack_rows(lengths, length, segments)
    valid = slots >= 0
    assert sorted(slots[valid].tolist()) == list(range(len(sizes)))
    assert np.all(np.where(valid, lengths[slots], 0).sum(axis=1) <= length)
    assert np.all(valid[:, 0]) and np.all(valid[:, :-1] >= valid[:, 1:])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=40))
def test_packing_is_as_tight_as_best_fit_decreasing_passage_by_passage(sizes: list[int]) -> None:
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fits = [room for room in rooms if room >= size]
        if fits:
            rooms[rooms.index(min(fits))] -= size
        else:
            rooms.append(30 - size)
    assert len(packing_plan.pack_rows(np.array(sizes), 30, len(sizes))) == len(rooms)


def test_one_segment_a_row_does_not_pack() -> None:
    made = make([realistic_lengths(100)], segments=1, length=128)
    assert made.epoch_rows(0) == 100
    assert np.all(np.sort(epoch_slots(made, 0)[:, 0]) == np.arange(100))


def test_every_passage_is_seen_once_an_epoch_and_in_another_order_in_the_next() -> None:
    made = make([realistic_lengths(900), realistic_lengths(333, seed=1)], block=200)
    for epoch in range(3):
        slots = epoch_slots(made, epoch)
        assert sorted(slots[slots >= 0].tolist()) == list(range(1233))
    assert not np.array_equal(epoch_slots(made, 0)[:20], epoch_slots(made, 1)[:20])


def test_weights_in_proportion_to_sizes_are_the_same_as_none() -> None:
    lengths = [realistic_lengths(70), realistic_lengths(30, seed=1)]
    given_weights = make(lengths, weights=[7.0, 3.0])
    np.testing.assert_array_equal(given_weights.step(3), make(lengths).step(3))
    assert given_weights.fingerprint == make(lengths).fingerprint


def test_a_step_does_not_depend_on_which_steps_were_asked_for_before() -> None:
    lengths = [realistic_lengths(500)]
    walked, jumped = make(lengths, rows=7, block=100), make(lengths, rows=7, block=100)
    steps = [walked.step(s) for s in range(150)]
    for s in (149, 3, 80, 3):
        np.testing.assert_array_equal(jumped.step(s), steps[s])
    assert made_of_epochs(walked, 150 * 7) >= 3


def made_of_epochs(made: packing_plan.Plan, rows: int) -> int:
    return next(e for e in range(99) if sum(made.epoch_rows(i) for i in range(e)) >= rows)


def test_orders_do_not_change_with_libraries_or_machines() -> None:
    assert packing_plan.permutation(1, 2, 3, 8).tolist() == [2, 6, 7, 3, 4, 1, 5, 0]
    assert packing_plan.hashed(0, 0, 0, 1).dtype == np.uint64


def test_another_seed_gives_other_rows_and_another_fingerprint() -> None:
    lengths = [realistic_lengths(500)]
    a, b = make(lengths, seed=1), make(lengths, seed=2)
    assert not np.array_equal(a.step(0), b.step(0)) and a.fingerprint != b.fingerprint


@pytest.mark.parametrize(
    "change", [{"rows": 16}, {"length": 300}, {"segments": 4}, {"block": 100}, {"weights": [1, 9]}]
)
def test_the_fingerprint_follows_everything_that_decides_a_step(change: dict) -> None:
    lengths = [realistic_lengths(300), realistic_lengths(300)]
    assert make(lengths).fingerprint == make(lengths).fingerprint
    assert make(lengths, **change).fingerprint != make(lengths).fingerprint


def test_a_mixture_has_its_shares_in_every_stretch_of_steps() -> None:
    sizes = (3000, 500, 1500)
    lengths = [realistic_lengths(n, seed=n) for n in sizes]
    made = make(lengths, weights=[0.2, 0.5, 0.3], rows=16, block=2000)
    slots = np.concatenate([made.step(s) for s in range(400)])
    owner = np.searchsorted(made.offsets, slots[slots >= 0], side="right") - 1
    shares = np.bincount(owner) / len(owner)
    np.testing.assert_allclose(shares, [0.2, 0.5, 0.3], atol=0.01)
    # The small store is walked through again and again, evenly.
    epoch = epoch_slots(made, 0)
    counts = np.bincount(epoch[epoch >= 0], minlength=5000)[3000:3500]
    assert counts.min() == counts.max() == 5


def test_temperature_evens_out_sizes() -> None:
    assert packing_plan.mixture_weights([100, 400], 1.0) == [0.2, 0.8]
    np.testing.assert_allclose(packing_plan.mixture_weights([100, 400], 2.0), [1 / 3, 2 / 3])
    with pytest.raises(ValueError, match="temperature: expected a number above 0, found 0"):
        packing_plan.mixture_weights([1], 0)


def test_long_passages_do_not_gather_in_the_first_rows() -> None:
    lengths = realistic_lengths(8000)
    slots = epoch_slots(make([lengths]), 0)
    used = (slots >= 0).sum(axis=1)
    halves = [half.mean() for half in np.array_split(used, 2)]
    assert abs(halves[0] - halves[1]) < 0.1 * used.mean()


def test_padding_is_under_six_percent_at_the_main_jobs_batch() -> None:
    assert make([realistic_lengths(8000)]).padding_share() < 0.06


def test_padding_is_counted_as_it_is_in_the_rows() -> None:
    lengths = realistic_lengths(700)
    made = make([lengths], block=300)
    slots = epoch_slots(made, 0)
    tokens = np.where(slots >= 0, lengths[slots], 0).sum()
    assert made.padding_share() == pytest.approx(1 - tokens / (len(slots) * 256))


def test_padding_on_squad_paragraphs_is_under_six_percent(shared: Path) -> None:
    lengths = []
    with gzip.open(shared / "data/squad/dev-v1.1.jsonl.gz", "rt", encoding="utf-8") as f:
        for line in f:
            # No tokenizer here: a WordPiece token is about 4.5 characters of English.
            whole = max(8, round(len(json.loads(line)["context"]) / 4.5))
            lengths += [128] * (whole // 126) + [whole % 126 + 2]
    assert make([np.array(lengths)]).padding_share() < 0.06


@pytest.mark.slow
def test_padding_on_the_real_corpora_is_under_six_percent() -> None:
    from benchmarks import padding

    for name, store in padding.stores():
        made = make([store.lengths], rows=16, length=128, segments=8, block=4096)
        assert made.padding_share() < 0.06, name


def test_a_passage_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"store 1: expected passages of 1 to 64 .* found 9 to 70"):
        make([np.array([5, 64]), np.array([9, 70])], length=64)


def test_stores_have_to_hold_something() -> None:
    with pytest.raises(ValueError, match="store 0 is empty"):
        make([np.array([], dtype=np.int32)])
    with pytest.raises(ValueError, match="at least one store, found none"):
        make([])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "expected 2 numbers, one for each store"),
        ([1.0, -1.0], "expected positive numbers"),
        ([1.0, float("nan")], "expected positive numbers"),
        ([1.0, 1e-9], "give store 1 not one passage"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([np.array([5]), np.array([5])], weights=weights)


@pytest.mark.parametrize("name", ["rows", "length", "segments", "block"])
def test_sizes_are_whole_and_above_zero(name: str) -> None:
    for value in (0, -3, 1.5, True):
        with pytest.raises(ValueError, match=f"Plan.{name}: expected a whole number above 0"):
            make([np.array([5])], **{name: value})  # type: ignore[arg-type]


def test_steps_start_at_zero() -> None:
    with pytest.raises(ValueError, match="step: expected 0 or more, found -1"):
        make([np.array([5])]).step(-1)


def test_each_store_has_a_fingerprint() -> None:
    with pytest.raises(ValueError, match="a fingerprint for each of 1 stores, found 2"):
        packing_plan.Plan(
            [np.array([5])], ["a", "b"], None, seed=0, rows=1, length=8, segments=1, block=1
        )
