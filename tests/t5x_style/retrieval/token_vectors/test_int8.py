"""Vectors as int8: how wrong they are, and that they are read as others are."""

import itertools

import numpy as np
import pytest

from t5x_style.interfaces.representation import Entries, malformed
from t5x_style.retrieval import candidate_scores, representation_files, similarity
from t5x_style.retrieval.token_vectors import int8
from tests.kits.toys.random_entries import entries


def test_a_number_is_wrong_by_half_a_step_at_most():
    vectors = entries("multi_vector", 300).arrays["vectors"]
    kept = int8.quantised(vectors)
    assert kept.numbers.dtype == np.int8 and kept.scales.dtype == np.float32
    half = np.abs(vectors).max(axis=1) / 127 / 2
    assert (np.abs(kept[:] - vectors) <= half[:, None] * (1 + 1e-5)).all()
    np.testing.assert_allclose(np.abs(kept[:]).max(axis=1), np.abs(vectors).max(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(int8.quantised(-vectors).numbers, -kept.numbers)  # symmetric


def test_they_are_sliced_as_float32():
    vectors = entries("multi_vector", 50).arrays["vectors"]
    kept = int8.quantised(vectors)
    assert (kept.shape, kept.ndim, len(kept), kept.dtype) == (vectors.shape, 2, len(vectors), "f4")
    rows = np.array([7, 0, 7, 21])
    assert kept[3:9].dtype == kept[rows].dtype == np.float32
    np.testing.assert_array_equal(kept[3:9], kept[:][3:9])
    np.testing.assert_array_equal(kept[rows], kept[:][rows])
    assert kept[5:5].shape == (0, 4)


@pytest.mark.parametrize("value", [0.0, 1e-38, 3e38])
def test_numbers_at_the_ends_of_the_range(value):
    vectors = np.array([[value, -value, 0.0], [1.0, 0.0, -0.5]], np.float32)
    kept = int8.quantised(vectors)[:]
    assert np.isfinite(kept).all()
    np.testing.assert_allclose(kept, vectors, rtol=1e-2, atol=1e-40)
    assert int8.quantised(vectors[:0])[:].shape == (0, 3)


def test_max_sim_is_wrong_by_no_more_than_its_vectors(tmp_path):
    """Of a query's vector by half a step times the sum of its absolute numbers, at most."""
    queries, held = entries("multi_vector", 20, seed=1), entries("multi_vector", 40)
    kept = Entries(held.offsets, {"vectors": int8.quantised(held.arrays["vectors"])})
    assert malformed("multi_vector", kept) == ""
    step = float(kept.arrays["vectors"].scales.max())
    of_query = np.abs(queries.arrays["vectors"]).sum(axis=1)
    bounds = [of_query[a:b].sum() * step / 2 for a, b in itertools.pairwise(queries.offsets)]
    exact = similarity.scores("multi_vector", queries, held)
    rows = np.tile(np.arange(len(held), dtype=np.int32), (len(queries), 1))
    representation_files.write(tmp_path, "multi_vector", kept)
    for found in (kept, representation_files.read(tmp_path, "multi_vector")):
        for scores in (
            similarity.scores("multi_vector", queries, found[:]),
            candidate_scores.scores("multi_vector", queries, found, rows),
        ):
            assert (np.abs(scores - exact) <= np.array(bounds)[:, None] + 1e-5).all()
            assert np.abs(scores - exact).max() > 0
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes["multi_vector_vectors.npy"] == 128 + 4 * int(held.offsets[-1])
