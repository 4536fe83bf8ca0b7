"""The marginal likelihood: the paper's gradient, both ways of summing, what does not count."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.losses import marginal

# Examples, candidates, tokens: few shapes, since each is compiled; and a seed.
SHAPES = st.tuples(
    st.sampled_from([(1, 2, 1), (4, 2, 5), (3, 6, 1), (2, 5, 4)]), st.integers(0, 99)
).map(lambda drawn: (*drawn[0], drawn[1]))


def case(examples, candidates, tokens, seed):
    rng = np.random.default_rng(seed)
    relevance = rng.normal(size=(examples, candidates)) * 3
    gold = -rng.exponential(size=(examples, candidates, tokens)) * 3
    mask = rng.random((examples, tokens)) < 0.7
    mask[0, 0] = True
    return jnp.asarray(relevance, jnp.float32), jnp.asarray(gold, jnp.float32), jnp.asarray(mask)


def loss(relevance, gold, mask, kind):
    return marginal.marginal_likelihood(relevance, gold, mask, kind)[0].value()


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(SHAPES)
def test_the_gradient_of_relevance_is_the_papers(sizes):
    """d log p(y|x) / d f(x,z) = [p(y|z,x) / p(y|x) - 1] p(z|x), equation 3.3."""
    relevance, gold, mask = case(*sizes)
    ours = -jax.grad(loss)(relevance, gold, mask, "span") * np.sum(mask.any(1))
    prior = jax.nn.softmax(relevance, axis=1)
    read = jnp.exp(jnp.sum(jnp.where(mask[:, None], gold, 0.0), axis=2))
    known = jnp.sum(prior * read, axis=1, keepdims=True)
    expected = jnp.where(mask.any(1, keepdims=True), (read / known - 1) * prior, 0.0)
    np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-6)


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(SHAPES)
def test_tokens_and_spans_are_summed_as_they_should(sizes):
    relevance, gold, mask = (np.asarray(x, np.float64) for x in case(*sizes))
    mask = mask.astype(bool)
    prior = np.exp(relevance) / np.exp(relevance).sum(1, keepdims=True)
    each = np.log(np.einsum("bk,bkm->bm", prior, np.exp(gold)))
    token = -each[mask].mean()
    whole = np.log(np.sum(prior * np.exp(np.where(mask[:, None], gold, 0).sum(2)), axis=1))
    span = -whole[mask.any(1)].mean()
    arguments = [jnp.asarray(x, jnp.float32) for x in (relevance, gold)] + [jnp.asarray(mask)]
    assert float(loss(*arguments, "token")) == pytest.approx(token, rel=1e-5, abs=1e-6)
    assert float(loss(*arguments, "span")) == pytest.approx(span, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", marginal.MARGINALS)
def test_a_document_that_is_not_there_changes_nothing(kind):
    relevance, gold, mask = case(3, 4, 3, 0)
    hidden = relevance.at[:, 2].set(-jnp.inf)
    without = [jnp.delete(x, 2, axis=1) for x in (relevance, gold)]
    ours, metrics = marginal.marginal_likelihood(hidden, gold, mask, kind)
    theirs, expected = marginal.marginal_likelihood(*without, mask, kind)
    assert float(ours.value()) == pytest.approx(float(theirs.value()), rel=1e-6)
    for name, metric in metrics.items():
        assert float(metric.value()) == pytest.approx(float(expected[name].value()), rel=1e-5)
    assert np.isfinite(jax.grad(loss)(hidden, gold, mask, kind)).all()


def test_what_is_logged_of_two_documents():
    relevance = jnp.log(jnp.array([[0.25, 0.75]]))
    gold = jnp.log(jnp.array([[[0.1], [0.5]]]))
    _, metrics = marginal.marginal_likelihood(relevance, gold, jnp.ones((1, 1), bool), "token")
    found = {name: float(metric.value()) for name, metric in metrics.items()}
    likelihood = 0.25 * 0.1 + 0.75 * 0.5
    assert found == pytest.approx(
        {
            "retrieval_utility": np.log(likelihood / 0.1),
            "document_entropy": -(0.25 * np.log(0.25) + 0.75 * np.log(0.75)),
            "null_probability": 0.25,
            "null_share": 0.25 * 0.1 / likelihood,
        },
        rel=1e-5,
    )


def test_an_unknown_marginal_is_refused():
    with pytest.raises(ValueError, match="expected one of .'token', 'span'., found 'word'"):
        marginal.marginal_likelihood(*case(1, 2, 1, 0), "word")
