"""Figures of vectors: closed forms, what they do not depend on, and the bound on the gain."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_style.evaluation import embedding_diagnostics as diagnostics


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def among(vectors: np.ndarray, temperature: float = 1.0, similarity: str = "cosine") -> float:
    """`score_std` of each text with the others."""
    return diagnostics.score_std(vectors, vectors, np.arange(len(vectors)), temperature, similarity)


@pytest.mark.parametrize("length", [1.0, 3e-4])
def test_equal_vectors(length: float) -> None:
    vectors = np.tile(random(1, 6) * length, (9, 1)).astype(np.float32)
    assert diagnostics.mean_cosine(vectors) == pytest.approx(1, abs=1e-12)
    assert diagnostics.effective_rank(vectors) == pytest.approx(1, abs=1e-6)
    assert diagnostics.uniformity(vectors) == pytest.approx(0, abs=1e-12)
    assert among(vectors) == pytest.approx(0, abs=1e-12)
    assert diagnostics.alignment(vectors[:4], vectors[4:8]) == pytest.approx(0, abs=1e-12)
    assert diagnostics.possible_gain(among(vectors), 9) == pytest.approx(0, abs=1e-11)


def test_orthonormal_vectors() -> None:
    vectors = np.linalg.qr(random(12, 12))[0][:8]
    assert diagnostics.mean_cosine(vectors) == pytest.approx(0, abs=1e-12)
    assert diagnostics.effective_rank(vectors) == pytest.approx(8)
    assert diagnostics.uniformity(vectors) == pytest.approx(-4)
    assert among(vectors) == pytest.approx(0, abs=1e-12)  # all other texts look alike
    assert diagnostics.alignment(vectors[:4], vectors[4:]) == pytest.approx(2)
    assert diagnostics.alignment(vectors, -vectors) == pytest.approx(4)


def test_two_clusters() -> None:
    """5 + 5 texts in two orthogonal directions: each sees 4 of its kind and 5 of the other."""
    vectors = np.repeat(np.eye(3)[:2], 5, axis=0)
    assert diagnostics.mean_cosine(vectors) == pytest.approx(4 / 9)
    assert diagnostics.effective_rank(vectors) == pytest.approx(2)
    assert diagnostics.uniformity(vectors) == pytest.approx(math.log((4 + 5 * math.exp(-4)) / 9))
    assert among(vectors, 0.05) == pytest.approx(math.sqrt(20) / 9 / 0.05)


def test_effective_rank_of_given_singular_values() -> None:
    """Rows of unit length with singular values a, b: a rank of exp(entropy), between 1 and 2."""
    angle = 0.3
    vectors = np.array([[math.cos(angle), math.sin(angle)], [math.cos(angle), -math.sin(angle)]])
    values = np.array([math.cos(angle), math.sin(angle)]) * math.sqrt(2)
    shares = values / values.sum()
    expected = math.exp(-float((shares * np.log(shares)).sum()))
    assert diagnostics.effective_rank(vectors) == pytest.approx(expected)
    assert diagnostics.effective_rank(np.zeros((3, 4))) == 0


def test_order_rotation_and_length_change_nothing() -> None:
    vectors, rotation = random(10, 6), np.linalg.qr(random(6, 6, seed=1))[0]
    lengths = np.exp(random(10, 1, seed=2))
    changed = (vectors @ rotation * lengths)[np.random.default_rng(3).permutation(10)]
    for figure in (
        diagnostics.mean_cosine, diagnostics.effective_rank, diagnostics.uniformity, among,
    ):  # fmt: skip
        assert figure(changed) == pytest.approx(figure(vectors)), figure
    pairs = vectors[:5], vectors[5:]
    turned = (pairs[0] @ rotation * 7, pairs[1] @ rotation)
    assert diagnostics.alignment(*turned) == pytest.approx(diagnostics.alignment(*pairs))
    # Inner products see lengths: of both sides, over temperature.
    assert among(3 * vectors, 0.5, "dot") == pytest.approx(18 * among(vectors, 1, "dot"))


def test_what_all_candidates_of_a_query_share_does_not_count() -> None:
    queries, texts, none = random(4, 6), random(9, 6, seed=1), np.full(4, -1)
    found = diagnostics.score_std(queries, texts, none, 0.1, "dot")
    scores = queries @ texts.T / 0.1
    assert found == pytest.approx(math.sqrt(scores.var(axis=1).mean()))
    shifted = diagnostics.score_std(queries, texts + 100 * random(1, 6, seed=2), none, 0.1, "dot")
    assert shifted == pytest.approx(found)
    positives = np.array([2, -1, 0, 8])
    rest = [np.delete(row, at) if at >= 0 else row for row, at in zip(scores, positives)]  # noqa: B905
    expected = math.sqrt(np.mean([row.var() for row in rest]))
    assert diagnostics.score_std(queries, texts, positives, 0.1, "dot") == pytest.approx(expected)


def test_a_spread_near_the_precision_of_float32_is_measured() -> None:
    """Cosines of 1 - 1e-8: float32 has no such number."""
    center = np.ones((1, 64))
    offsets = random(32, 64) * 1e-4
    offsets -= offsets.mean(axis=1, keepdims=True)
    expected = among(center + offsets)
    # To second order the cosine of two texts is 1 - d^2 / 2, with d the distance of directions.
    directions = offsets / 8
    distances = np.square(directions[:, None] - directions[None]).sum(-1)
    others = distances[~np.eye(32, dtype=bool)].reshape(32, 31) / 2
    assert expected == pytest.approx(math.sqrt(others.var(axis=1).mean()), rel=1e-3)
    assert among((center + offsets).astype(np.float32)) == pytest.approx(expected, rel=0.02)


def info_nce(scores: jax.Array) -> jax.Array:
    """[Q] of scores [Q, N], whose first candidate is the positive."""
    return jax.nn.logsumexp(scores, axis=1) - scores[:, 0]


@pytest.mark.parametrize("sigma", [1e-3, 0.1, 1.0, 4.0])
@pytest.mark.parametrize("candidates", [8, 128, 2048])
def test_no_order_gains_more_than_the_bound(sigma: float, candidates: int) -> None:
    scores = random(200, candidates) * sigma
    best = np.sort(scores, axis=1)[:, ::-1]  # the positive is the best scored
    loss = np.asarray(info_nce(jnp.asarray(best)))
    spread = scores.max(axis=1) - scores.mean(axis=1)
    assert (loss >= math.log(candidates) - spread - 1e-5).all()  # for each query, exactly
    assert (spread <= scores.std(axis=1) * math.sqrt(candidates - 1) + 1e-12).all()
    gained = math.log(candidates) - loss.mean()
    assert gained <= spread.mean() <= diagnostics.possible_gain(sigma, candidates)
    if sigma <= 0.1:  # where it matters, the bound is near what can be gained
        assert gained > 0.6 * diagnostics.possible_gain(sigma, candidates)


@pytest.mark.parametrize("sigma", [1e-3, 0.1, 1.0])
def test_widening_the_spread_changes_the_loss_by_no_more_than_the_bound(sigma: float) -> None:
    scores = jnp.asarray(random(500, 128) * sigma)
    change = jax.grad(lambda scale: info_nce(scores * scale).mean())(1.0)
    assert abs(float(change)) <= diagnostics.possible_gain(sigma, 128)
    changes = np.abs(jax.vmap(jax.grad(lambda e, row: info_nce(e * row[None])[0]), (None, 0))(
        1.0, scores
    ))  # fmt: skip
    spread = np.abs(scores - scores.mean(axis=1, keepdims=True)).max(axis=1)
    assert (changes <= 2 * spread + 1e-6).all()


def test_the_gradient_of_parameters_falls_with_the_spread() -> None:
    """Texts x through one network: a tenth of the spread has a tenth of the gradient, or less."""
    center, offsets = random(1, 16, seed=1), random(24, 16, seed=2)
    weights = jnp.asarray(random(16, 8, seed=3))

    def gradient_and_std(spread: float) -> tuple[float, float]:
        texts = jnp.asarray(center + spread * offsets)

        def loss(weights: jax.Array) -> jax.Array:
            vectors = jnp.tanh(texts @ weights)
            vectors /= jnp.linalg.norm(vectors, axis=1, keepdims=True)
            scores = vectors[:8] @ vectors[8:].T / 0.05
            own = jnp.take_along_axis(scores, jnp.arange(8)[:, None], axis=1)[:, 0]
            return (jax.nn.logsumexp(scores, axis=1) - own).mean()

        vectors = np.tanh(np.asarray(texts) @ np.asarray(weights))
        std = diagnostics.score_std(vectors[:8], vectors[8:], np.arange(8), 0.05, "cosine")
        return float(jnp.linalg.norm(jax.grad(loss)(weights))), std

    found = [gradient_and_std(spread) for spread in (1e-1, 1e-2, 1e-3)]
    for (wide, wide_std), (narrow, narrow_std) in itertools.pairwise(found):
        assert narrow < 0.15 * wide and narrow_std < 0.15 * wide_std
