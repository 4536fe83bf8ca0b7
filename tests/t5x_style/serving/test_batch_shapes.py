"""Shapes of batches: every text has one, they are few, and a batch is not half empty."""

from hypothesis import given
from hypothesis import strategies as st

from t5x_style.serving.batch_shapes import BatchShapes

LONGEST = st.integers(1, 8192)
BUDGETS = st.integers(1, 20_000)


@given(LONGEST, BUDGETS)
def test_shapes_are_within_the_budget_and_different(longest, budget) -> None:
    shapes = BatchShapes(longest, budget)
    known = list(shapes)
    assert len(known) == len(set(known))
    assert max(shapes.rows) == longest
    for width, rows in shapes.rows.items():
        assert rows == sorted(rows)
        assert rows[0] == 1
        assert rows[-1] == max(1, budget // width)


@given(LONGEST, BUDGETS, st.integers(1, 300))
def test_a_batch_has_no_more_rows_than_it_may(longest, budget, most) -> None:
    every, fewer = BatchShapes(longest, budget), BatchShapes(longest, budget, most_rows=most)
    for width, rows in fewer.rows.items():
        assert rows[0] == 1
        assert rows[-1] == min(most, every.rows[width][-1])


@given(LONGEST, st.integers(1, 8192))
def test_a_text_alone_has_a_row_with_at_most_31_places_or_a_quarter_more(longest, length) -> None:
    length = min(length, longest)
    rows, columns = BatchShapes(longest, 1024).room(1, length)
    assert rows == 1
    assert length <= columns <= max(16, length + 31, length * 1.25)


def test_a_side_with_256_tokens_has_few_shapes() -> None:
    assert len(list(BatchShapes(256, 1024))) < 30


@given(st.lists(st.integers(1, 256), min_size=1, max_size=80), st.sampled_from([64, 1024, 4096]))
def test_what_waited_longest_is_chosen_and_its_batch_is_well_filled(lengths, budget) -> None:
    shapes = BatchShapes(256, budget, 0.6)
    chosen = shapes.chosen(lengths)
    assert chosen[0] == 0
    assert len(set(chosen)) == len(chosen)
    given_ = [lengths[number] for number in chosen]
    rows, columns = shapes.room(len(chosen), max(given_))
    assert rows == 1 or rows * columns <= budget
    assert columns == shapes.room(1, lengths[0])[1]  # no text makes the rows of another longer
    assert sum(given_) >= 0.6 * rows * max(given_)


def test_texts_of_like_lengths_share_a_batch() -> None:
    lengths = [250, 20, 240, 30, 251, 249, 10]
    assert sorted(BatchShapes(256, 1024, 0.6).chosen(lengths)) == [0, 2, 4, 5]


def test_two_long_texts_are_two_batches_rather_than_a_half_empty_one() -> None:
    assert BatchShapes(256, 1024, 0.6).chosen([250, 250]) == [0]
    assert BatchShapes(256, 1024, 0.6).chosen([250, 250, 250]) == [0, 1, 2]


def test_without_a_least_share_all_that_fit_are_one_batch() -> None:
    assert sorted(BatchShapes(256, 1024).chosen([250, 20, 30])) == [0, 1, 2]
