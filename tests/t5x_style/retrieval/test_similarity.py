"""Scores of every kind against their definitions, and exact search against a sort of them."""

import numpy as np
import pytest

from t5x_style.interfaces.representation import (
    ENTRIES,
    KINDS,
    Entries,
    blocks,
    joined,
    none_of,
)
from t5x_style.retrieval import exact_index, similarity
from tests.kits import retrieval_helpers as helpers
from tests.kits.toys.random_entries import entries, plain_scores


@pytest.mark.parametrize("kind", ENTRIES)
def test_scores_are_those_of_the_definition(kind, monkeypatch):
    monkeypatch.setattr(similarity, "_QUERY_VECTORS", 6)
    monkeypatch.setattr(similarity, "_PASSAGE_VECTORS", 9)
    queries, passages = entries(kind, 13, seed=1), entries(kind, 41, seed=2)
    expected = plain_scores(kind, queries, passages)
    assert np.isneginf(expected).any() and np.isfinite(expected).sum() > 100
    np.testing.assert_allclose(similarity.hits(kind, queries, passages), expected, rtol=1e-5)
    found = similarity.scores(kind, queries, passages)
    np.testing.assert_allclose(found, np.where(np.isneginf(expected), 0, expected), rtol=1e-5)
    most = np.outer(
        similarity.bounds(kind, "query", queries), similarity.bounds(kind, "passage", passages)
    )
    assert found.dtype == np.float32 and (np.abs(found) <= most * (1 + 1e-6)).all()
    assert similarity.scores(kind, none_of(kind), passages).shape == (0, 41)


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.parametrize(("passage_block", "query_block"), [(7, 3), (1, 1), (64, 256)])
def test_exact_search_equals_a_sort_of_all_scores(kind, passage_block, query_block):
    queries, passages = entries(kind, 11, seed=1), entries(kind, 50, seed=2)
    scores, rows = exact_index.top_k(
        queries, passages, 9, kind, passage_block=passage_block, query_block=query_block
    )
    expected = plain_scores(kind, queries, passages)
    best = np.argsort(-expected, axis=1, kind="stable")[:, :9]
    best_scores = np.take_along_axis(expected, best, axis=1)
    np.testing.assert_array_equal(rows, np.where(np.isfinite(best_scores), best, -1))
    np.testing.assert_allclose(scores, best_scores, rtol=1e-5)


def test_the_width_of_sparse_scores_is_that_of_the_queries():
    """A token id may be any int32."""

    def one(tokens):
        weights = np.ones(len(tokens), np.float32)
        arrays = {"tokens": np.array(tokens, np.int32), "weights": weights}
        return Entries(np.array([0, len(tokens)]), arrays)

    last = 2**31 - 1
    assert similarity.scores("sparse", one([last, 0]), one([5, last])).tolist() == [[1.0]]


@pytest.mark.parametrize("kind", ENTRIES)
def test_blocks_hold_no_more_entries_than_asked_for(kind):
    made = entries(kind, 40)
    found = list(blocks(made, 9, 10))
    assert [n for at in found for n in range(at.start, at.stop)] == list(range(40))
    assert all(len(made[at]) <= 9 and made[at].offsets[-1] <= 10 for at in found)
    alone = list(blocks(made, 9, 1))
    assert len(alone) > 20 and [n for at in alone for n in range(at.start, at.stop)] == [*range(40)]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_joined_in_order(kind):
    made = helpers.vectors(20) if kind == "dense" else entries(kind, 20)
    found = joined(kind, [made[:3], none_of(kind), made[3:4], made[4:]])
    assert len(joined(kind, [])) == len(joined(kind, [none_of(kind)])) == 0
    if kind == "dense":
        np.testing.assert_array_equal(found, made)
        return
    np.testing.assert_array_equal(found.offsets, made.offsets)
    for name, array in found.arrays.items():
        np.testing.assert_array_equal(array, made.arrays[name])
        assert none_of(kind).arrays[name].dtype == array.dtype
