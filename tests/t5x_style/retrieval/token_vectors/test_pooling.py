"""Token pooling: the clusters are those of Ward's method, and the special cases."""

import itertools

import numpy as np
import pytest

from t5x_style.interfaces.representation import Entries
from t5x_style.retrieval import similarity
from t5x_style.retrieval.token_vectors import pooling
from tests.kits.toys.random_entries import entries


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def directions(count: int, size: int = 6, seed: int = 0) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(count, size))).astype(np.float32)


def plain(vectors: np.ndarray, clusters: int) -> np.ndarray:
    """Joins the two groups whose variance grows least, until so many are left."""
    groups = [[n] for n in range(len(vectors))]

    def cost(a: list[int], b: list[int]) -> float:
        gap = vectors[a].mean(axis=0) - vectors[b].mean(axis=0)
        return len(a) * len(b) / (len(a) + len(b)) * float(gap @ gap)

    while len(groups) > clusters:
        a, b = min(itertools.combinations(groups, 2), key=lambda pair: cost(*pair))
        groups = [one for one in groups if one not in (a, b)] + [a + b]
    groups = sorted(map(sorted, groups))
    return unit(np.stack([vectors[group].mean(axis=0) for group in groups]))


@pytest.mark.parametrize(("count", "factor"), [(9, 2), (12, 3), (12, 4), (5, 3), (2, 2)])
def test_the_clusters_are_those_of_ward(count, factor):
    vectors = directions(count, seed=count)
    found = pooling.pooled(Entries(np.array([0, count]), {"vectors": vectors}), factor)
    expected = plain(vectors.astype(np.float64), -(-count // factor))
    assert found.arrays["vectors"].dtype == np.float32
    np.testing.assert_allclose(found.arrays["vectors"], expected, atol=1e-6)


def test_each_text_is_pooled_alone_and_factor_1_changes_nothing():
    held = entries("multi_vector", 60)  # one to seven vectors, of any length; some have none
    assert pooling.pooled(held, 1) is held
    counts = np.diff(held.offsets)
    for factor in (2, 3, 100):
        found = pooling.pooled(held, factor)
        np.testing.assert_array_equal(np.diff(found.offsets), -(-counts // factor))
        assert found.arrays["vectors"].shape == (found.offsets[-1], 4)
        for n in range(len(held)):
            alone = pooling.pooled(held[n : n + 1], factor)
            expected = found[n : n + 1].arrays["vectors"]
            np.testing.assert_array_equal(alone.arrays["vectors"], expected)
    # with a factor of at least the longest text there is one vector: its mean direction
    lengths = np.linalg.norm(held.arrays["vectors"], axis=1)
    for n in np.flatnonzero(counts):
        own = slice(held.offsets[n], held.offsets[n + 1])
        (one,) = found[n : n + 1].arrays["vectors"]
        mean = held.arrays["vectors"][own].mean(axis=0)
        expected = mean / np.linalg.norm(mean) * lengths[own].mean()
        np.testing.assert_allclose(one, expected, rtol=1e-5)


def test_a_vector_that_is_alone_keeps_its_bits():
    vectors = np.concatenate([directions(3), directions(1), directions(1)])[[0, 1, 3, 2, 4]]
    held = Entries(np.array([0, 5]), {"vectors": 2 * vectors})  # the first one is there three times
    found = pooling.pooled(held, 2).arrays["vectors"]
    np.testing.assert_array_equal(found[1:], 2 * vectors[[1, 3]])
    np.testing.assert_allclose(found[0], 2 * vectors[0], rtol=1e-6)


@pytest.mark.parametrize(
    "vectors",
    [
        np.zeros((4, 3), np.float32),
        np.array([[1, 0], [-1, 0], [1, 0], [-1, 0]], np.float32),
        np.ones((4, 2), np.float32),
    ],
    ids=["zeros", "opposite", "equal"],
)
def test_vectors_without_a_mean_direction_stay_finite(vectors):
    for factor in (2, 4):
        held = Entries(np.array([0, 4]), {"vectors": vectors})
        found = pooling.pooled(held, factor)
        assert 1 <= len(found.arrays["vectors"]) <= -(-4 // factor)
        assert np.isfinite(found.arrays["vectors"]).all()
    assert len(pooling.pooled(held[0:0], 2)) == 0


def test_repeated_directions_cost_nothing():
    """Three copies of each vector, nearly: a factor of 3 finds them."""
    centres = directions(8)
    noise = 1e-4 * np.random.default_rng(1).normal(size=(24, 6))
    vectors = unit(np.repeat(centres, 3, axis=0) + noise).astype(np.float32)
    held = Entries(np.array([0, 24]), {"vectors": vectors})
    asked = Entries(np.array([0, 5]), {"vectors": directions(5, seed=2)})
    scores = [
        similarity.scores("multi_vector", asked, one) for one in (held, pooling.pooled(held, 3))
    ]
    np.testing.assert_allclose(*scores, atol=1e-2)
