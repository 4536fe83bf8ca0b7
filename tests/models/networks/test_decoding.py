"""Where the largest scores are, by which hypotheses are chosen; decoding is tested with MARGE."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.networks import decoding


@pytest.mark.parametrize(("size", "count"), [(300, 2), (256, 1), (5000, 4), (40, 40)])
def test_the_largest_scores_are_those_that_jax_finds(size, count):
    rng = np.random.default_rng(size)
    scores = rng.standard_normal((3, size)).astype(np.float32)
    scores[1] = rng.integers(0, 3, size)  # many equal ones, of which the first come first
    scores[2] = -np.inf  # but for a few, which are in one part
    scores[2, 3 : 3 + count // 2] = 1.0
    given = jnp.asarray(scores)
    truth = jax.lax.top_k(given, count)[1]
    np.testing.assert_array_equal(jax.jit(decoding.largest, static_argnums=1)(given, count), truth)
