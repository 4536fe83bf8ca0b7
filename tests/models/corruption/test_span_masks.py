"""Which tokens REALM hides: one listed span, a run of words, or words anywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.corruption import span_masks
from tests.kits import tiny_models

SPECIAL = tiny_models.VOCABULARY.special_ids
ROWS = 64
KEYS = [jax.random.key(seed) for seed in range(4)]


def sentences():
    return tiny_models.group([[one] for one in tiny_models.segments(ROWS, longest=16)], 16, 1)


def selected(mask, group, key=KEYS[0]):
    return np.asarray(jax.jit(lambda group, key: mask.select(group, SPECIAL, key))(group, key))


def runs(row):
    """How many runs of selected tokens a row has."""
    return int(np.sum(row & ~np.concatenate([[False], row[:-1]])))


def test_one_of_the_listed_spans_is_hidden_each_as_often_as_another():
    group = sentences()
    start = jnp.tile(jnp.array([[1, 2, 0]]), (ROWS, 1))
    end = jnp.tile(jnp.array([[2, 3, 0]]), (ROWS, 1))
    group |= {"span_start": start, "span_end": end}
    found = [selected(span_masks.SalientSpan(10), group, key) for key in KEYS]
    for one in found:
        assert (one.sum(1) == 1).all() and not one[:, 3:].any() and not one[:, 0].any()
    share = np.mean([one[:, 1].mean() for one in found])
    assert 0.4 < share < 0.6
    np.testing.assert_array_equal(found[0], selected(span_masks.SalientSpan(10), group))


def test_a_span_that_is_too_long_is_absent_and_a_row_without_any_hides_nothing():
    group = sentences()
    group |= {"span_start": jnp.ones((ROWS, 1), int), "span_end": jnp.full((ROWS, 1), 3)}
    assert not selected(span_masks.SalientSpan(1), group).any()
    assert (selected(span_masks.SalientSpan(2), group).sum(1) == 2).all()


@pytest.mark.parametrize("most", [1, 3, 10])
def test_a_random_span_is_one_run_of_whole_words(most):
    group = sentences()
    tokens = np.asarray(group["tokens"])
    starts = np.asarray(group["word_starts"])
    lengths = []
    for key in KEYS:
        found = selected(span_masks.RandomSpan(most), group, key)
        assert (found.sum(1) >= 1).all() and (found.sum(1) <= most).all()
        assert not np.isin(tokens[found], SPECIAL).any()
        for row, words in zip(found, starts, strict=True):
            assert runs(row) == 1
            first, last = np.flatnonzero(row)[[0, -1]]
            # Its first token opens a word, or is the first of all; it ends where a word does, or
            # is the beginning of one word that does not fit.
            assert words[first] or first == 1
            assert words[last + 1] or not words[first + 1 : last + 1].any()
        lengths += found.sum(1).tolist()
    assert most == 1 or len(set(lengths)) > 1


def test_uniform_words_keep_to_the_budget():
    group = sentences()
    found = selected(span_masks.UniformWords(2, rate=0.5), group)
    assert (found.sum(1) <= 2).all() and found.any()
    assert not np.isin(np.asarray(group["tokens"])[found], SPECIAL).any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: span_masks.SalientSpan(0),
        lambda: span_masks.UniformWords(0),
        lambda: span_masks.RandomSpan(0),
        lambda: span_masks.RandomSpan(3, success=1.0),
    ],
)
def test_sizes_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="expected"):
        make()
