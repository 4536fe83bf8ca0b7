"""Whole-word masks against a slow sequential reference; packing and devices change nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.corruption import masking
from tests.kits import packed_rows
from tests.kits.packed_rows import VOCABULARY

OUTSIDE = (VOCABULARY.cls, VOCABULARY.sep)
ENCODER = masking.WholeWordMask(0.3, OUTSIDE)
DECODER = masking.WholeWordMask(0.5, OUTSIDE)
KEY = jax.random.key(7)
L, S = 24, 3


def reference_units(tokens, word_starts):
    """Hugging Face's grouping, on one segment: lists of positions."""
    units = []
    for i, (token, start) in enumerate(zip(tokens, word_starts, strict=True)):
        if token in OUTSIDE:
            continue
        if units and not start:
            units[-1].append(i)
        else:
            units.append([i])
    return units


def reference_walk(units, numbers, budget):
    """The official loop, with the shuffle given by `numbers` of each unit's first token."""
    taken = []
    for unit in sorted(units, key=lambda u: (numbers[u[0]], u[0])):
        if len(taken) >= budget:
            break
        if len(taken) + len(unit) <= budget:
            taken += unit
    return set(taken)


@functools.partial(jax.jit, static_argnums=1)
def select(group, mask, numbers, segment):
    words = masking.units(group, mask.outside_units)
    numbers = jnp.take_along_axis(numbers, words.start[:, None, :], axis=2)
    lengths = masking.segment_lengths(group["segment_ids"], S)
    lengths = jnp.take_along_axis(lengths, segment - 1, axis=1)
    budget = jnp.asarray(mask.budgets(L))[lengths]
    return masking.select_words(words, group["segment_ids"], numbers, segment, budget)


# Eager calls would compile every small operation by itself.
units = jax.jit(masking.units, static_argnums=1)
whole_word_mask = jax.jit(masking.whole_word_mask, static_argnums=1)
replace_selected = jax.jit(masking.replace_selected, static_argnums=2)
decoder_visibility = jax.jit(masking.decoder_visibility, static_argnums=(1, 2))

segment = st.integers(3, L).flatmap(
    lambda n: st.tuples(
        st.lists(st.sampled_from([1, 2, 3, 7, 8, 9]), min_size=n - 2, max_size=n - 2),
        st.lists(st.booleans(), min_size=n - 2, max_size=n - 2),
    )
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(segment, min_size=1, max_size=S),
    st.sampled_from([0.15, 0.3, 0.5, 0.9]),
    st.sampled_from([512, 3]),
    # few distinct numbers make ties, all of them none
    st.sampled_from([3, 2**32]),
    st.integers(0, 1000),
)
def test_selection_is_the_official_walk(segments, rate, cap, distinct, seed):
    passages, at = [], 0
    for number, (inner, starts) in enumerate(segments):
        if at + len(inner) + 2 > L:
            continue
        at += len(inner) + 2
        passages.append(packed_rows.Passage((2, *inner, 3), (True, *starts, True), number))
    group = packed_rows.group([passages], L, S)
    mask = masking.WholeWordMask(rate, OUTSIDE, cap)
    rng = np.random.default_rng(seed)
    step = 2**32 // distinct
    numbers = (rng.integers(0, distinct, (1, 2 * S, L)) * step).astype(np.uint32)
    lanes = np.repeat(np.arange(1, S + 1), 2)[None].astype(np.int32)
    # `select` looks numbers up by position in the segment, so lane rows are indexed alike
    found = np.asarray(select(group, mask, jnp.asarray(numbers), jnp.asarray(lanes)))
    at = 0
    for index, one in enumerate(passages):
        n = len(one.tokens)
        budget = min(cap, max(1, round(n * rate)))
        words = reference_units(one.tokens, one.word_starts)
        for lane in (2 * index, 2 * index + 1):
            expected = reference_walk(words, numbers[0, lane], budget)
            assert set(np.flatnonzero(found[0, lane]) - at) == expected
            assert len(expected) <= budget
        at += n
    assert not found[:, 2 * len(passages) :].any()


def test_units_of_a_worked_example():
    #                     [CLS] ##a  b  ##c [SEP] ##d  e   | [CLS] [UNK] ##f [SEP]  pad
    tokens = jnp.asarray([[2, 10, 11, 12, 3, 13, 14, 2, 1, 15, 3, 0]])
    starts = jnp.asarray([[1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0]], bool)
    group = {
        "tokens": tokens,
        "word_starts": starts,
        "segment_ids": jnp.asarray([[1] * 7 + [2] * 4 + [0]]),
        "positions": jnp.asarray([[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 0]]),
    }
    words = units(group, OUTSIDE)
    eligible = np.asarray(words.eligible[0])
    np.testing.assert_array_equal(np.flatnonzero(eligible), [1, 2, 3, 5, 6, 8, 9])
    # ##a opens a unit; ##d joins "b ##c" across [SEP]; [UNK] is a word like others
    np.testing.assert_array_equal(words.start[0][eligible], [1, 2, 2, 2, 6, 1, 1])
    np.testing.assert_array_equal(words.size[0][eligible], [1, 3, 3, 3, 1, 2, 2])


def test_budgets_round_halves_to_even_as_python_does():
    budgets = masking.WholeWordMask(0.3, OUTSIDE, 20).budgets(100)
    assert [budgets[n] for n in (0, 1, 5, 15, 25, 85, 100)] == [0, 1, 2, 4, 8, 20, 20]
    assert masking.WholeWordMask(0.15, OUTSIDE).budgets(10)[10] == 2  # round(1.5)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.integers(0, 10),
    st.sampled_from([0.01, 0.15, 0.3, 0.5, 1.0]),
    st.sampled_from([512, 4]),
)
def test_row_budget_bounds_every_packing(lengths, padding, rate, cap):
    mask = masking.WholeWordMask(rate, OUTSIDE, cap)
    total = sum(min(mask.budgets(n)[n], n) for n in lengths)
    assert total <= mask.row_budget(sum(lengths) + padding, len(lengths))


@pytest.mark.parametrize(
    ("length", "segments", "expected"), [(24, 1, 7), (10, 3, 4), (256, 8, 82), (4, 9, 4)]
)
def test_row_budget_is_tight(length, segments, expected):
    assert ENCODER.row_budget(length, segments) == expected


def packings():
    """The same passages alone, packed, packed in another order, and in longer rows."""
    p = [packed_rows.passage(n, 100 + n) for n in (3, 5, 8, 11, 13, 24)]
    yield [[one] for one in p], 24, 1
    yield [[p[4], p[3]], [p[5]], [p[0], p[1], p[2]]], 24, 3
    yield [[p[0], p[5], p[1], p[2]], [p[3], p[4]]], 44, 5


def drawn(rows, length, segments):
    """Everything random about each passage, by example."""
    group = packed_rows.group(rows, length, segments)
    tokens, labels = replace_selected(group, whole_word_mask(group, ENCODER, KEY), VOCABULARY, KEY)
    inner = masking.inner_labels(group)
    visible = decoder_visibility(group, DECODER, 6, KEY)
    everything = {}
    for example, (row, here) in packed_rows.places(rows).items():
        outside = np.asarray(visible[row, here]).copy()
        outside[:, here] = False
        assert not outside.any(), "a row sees another segment or padding"
        everything[example] = (
            tokens[row, here],
            labels[row, here],
            inner[row, here],
            visible[row, here, here],
        )
    padding = np.asarray(group["segment_ids"]) == 0
    assert not np.asarray(visible)[padding].any()
    assert (np.asarray(labels)[padding] == -100).all()
    return everything


def test_masks_are_the_same_packed_or_not():
    first, *others = [drawn(*packing) for packing in packings()]
    for other in others:
        assert other.keys() == first.keys()
        for example, arrays in first.items():
            for one, two in zip(arrays, other[example], strict=True):
                np.testing.assert_array_equal(one, two)


def corrupt_all(group, key):
    selected = whole_word_mask(group, ENCODER, key)
    replaced = replace_selected(group, selected, VOCABULARY, key)
    return replaced, decoder_visibility(group, DECODER, 256, key)


def test_masks_do_not_depend_on_the_devices():
    rows = [[packed_rows.passage(9, 2 * i), packed_rows.passage(6, 2 * i + 1)] for i in range(8)]
    group = packed_rows.group(rows, 16, 2)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    placed = jax.device_put(group, jax.NamedSharding(mesh, jax.P("data")))
    step = jax.jit(corrupt_all)
    one, eight = step(group, KEY), step(placed, KEY)
    assert all(len(array.devices()) == 8 for array in jax.tree.leaves(eight))
    jax.tree.map(np.testing.assert_array_equal, one, eight)


def test_keys_and_examples_change_the_masks():
    group = packed_rows.group([[packed_rows.passage(24, 1)]], 24, 1)
    same = whole_word_mask(group, ENCODER, KEY)
    other_key = whole_word_mask(group, ENCODER, jax.random.key(8))
    renamed = group | {"example_id": jnp.asarray([[2]])}
    other_example = whole_word_mask(renamed, ENCODER, KEY)
    assert (same != other_key).any() and (same != other_example).any()


def test_specials_and_unknown_words_are_never_predicted():
    tokens = (2, *([1, 9] * 10), 3)
    rows = [[packed_rows.Passage(tokens, (True,) * 22, i)] for i in range(40)]
    group = packed_rows.group(rows, 24, 1)
    selected = whole_word_mask(group, ENCODER, KEY)
    assert np.asarray(selected)[np.asarray(group["tokens"]) == 1].any()  # [UNK] spends budget
    new, labels = replace_selected(group, selected, VOCABULARY, KEY)
    predicted = np.asarray(labels) != -100
    assert set(np.asarray(labels)[predicted]) == {9}
    np.testing.assert_array_equal(
        np.asarray(new)[~predicted], np.asarray(group["tokens"])[~predicted]
    )


def test_replacements_are_eighty_ten_ten_over_the_whole_vocabulary():
    rows = [[packed_rows.passage(24, i)] for i in range(2000)]
    group = packed_rows.group(rows, 24, 1)
    selected = whole_word_mask(group, ENCODER, KEY)
    new, labels = (np.asarray(a) for a in replace_selected(group, selected, VOCABULARY, KEY))
    predicted = labels != -100
    n = predicted.sum()
    masked, kept = new[predicted] == VOCABULARY.mask, new[predicted] == labels[predicted]
    error = 5 * np.sqrt(0.8 * 0.2 / n)
    assert abs(masked.mean() - (0.8 + 0.1 / VOCABULARY.size)) < error
    assert abs(kept.mean() - (0.1 + 0.1 / VOCABULARY.size)) < error
    random = new[predicted & (new != VOCABULARY.mask) & (new != labels)]
    assert set(range(VOCABULARY.size)) - set(random.tolist()) == {VOCABULARY.mask}


def test_decoder_rows_see_all_but_one_mask_and_themselves():
    rows = [[packed_rows.passage(20, i)] for i in range(30)]
    group = packed_rows.group(rows, 24, 1)
    visible = np.asarray(decoder_visibility(group, DECODER, 1, KEY))
    for row in range(30):
        block = visible[row, :20, :20]
        hidden = [set(np.flatnonzero(~block[i])) - {i} for i in range(20)]
        mask = set.union(*hidden)  # one base mask: all rows share it
        assert len(mask) <= 10 and not mask & {0, 19}
        assert all(hidden[i] == mask - {i} for i in range(20))
        assert not block.diagonal().any()


@pytest.mark.parametrize(
    ("rate", "cap", "message"), [(0.0, 512, "mask rate"), (0.3, 0, "max_pred")]
)
def test_bad_options_are_refused(rate, cap, message):
    with pytest.raises(ValueError, match=message):
        masking.WholeWordMask(rate, OUTSIDE, cap)
