"""Which spans are answers, and what reader and retriever learn of them."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.losses import span_scores

SIZES = st.tuples(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.integers(0, 999)
)


def case(questions, blocks, length, widths, seed):
    """Text and answers of three words, so that many match; some answers are none."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, 8, (questions, blocks, length))
    readable = rng.random((questions, blocks, length)) < 0.8
    answers = rng.integers(5, 8, (questions, 3, 4))
    for own in answers:
        for answer, size in zip(own, rng.integers(0, 5, 3), strict=True):
            answer[size:] = span_scores.NO_TOKEN
    return tokens, readable, answers


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(SIZES)
def test_answers_are_found_token_for_token(sizes):
    tokens, readable, answers = case(*sizes)
    widths = sizes[3]
    spans = np.asarray(span_scores.answer_spans(tokens, readable, answers, widths))
    holds = np.asarray(span_scores.holds_answer(tokens, readable, answers))
    expected, held = np.zeros(spans.shape, bool), np.zeros(holds.shape, bool)
    for q, b, at in np.ndindex(tokens.shape):
        for answer in answers[q]:
            wanted = answer[answer >= 0]
            end = at + len(wanted)
            if not len(wanted) or end > tokens.shape[2] or not readable[q, b, at:end].all():
                continue
            if (tokens[q, b, at:end] == wanted).all():
                held[q, b] = True
                if len(wanted) <= widths:
                    expected[q, b, at, len(wanted) - 1] = True
    np.testing.assert_array_equal(spans, expected)
    np.testing.assert_array_equal(holds, held)


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(SIZES)
def test_spans_begin_and_end_where_text_is_read(sizes):
    _, readable, _ = case(*sizes)
    widths = sizes[3]
    spans = np.asarray(span_scores.readable_spans(jnp.asarray(readable), widths))
    for place in np.ndindex(*readable.shape, widths):
        start, end = place[2], place[2] + place[3]
        row = readable[place[:2]]
        assert spans[place] == (row[start] and end < len(row) and row[end])


def losses(relevance, holds, scores, spans, correct):
    loss, metrics = span_scores.span_losses(relevance, holds, scores, spans, correct)
    return loss.value(), metrics


def random_case(seed):
    rng = np.random.default_rng(seed)
    relevance = rng.normal(size=(3, 5)).astype(np.float32) * 3
    scores = rng.normal(size=(3, 2, 6, 3)).astype(np.float32) * 3
    holds = rng.random((3, 5)) < 0.4
    spans = rng.random((3, 2, 6, 3)) < 0.7
    correct = rng.random((3, 2, 6, 3)) < 0.1
    return relevance, holds, scores, spans, correct


@pytest.mark.parametrize("seed", range(4))
def test_the_losses_are_the_papers(seed):
    """-log of what is correct among all, 0 where nothing is; a mean over all questions."""
    relevance, holds, scores, spans, correct = random_case(seed)
    holds[0], correct[0] = False, False
    retriever, reader, right = [], [], []
    for q in range(3):
        prior = np.exp(relevance[q].astype(np.float64))
        retriever.append(-np.log(prior[holds[q]].sum() / prior.sum()) if holds[q].any() else 0)
        both = scores[q] + relevance[q, :2, None, None].astype(np.float64)
        share = np.exp(both) * spans[q]
        good = correct[q] & spans[q]
        reader.append(-np.log(share[good].sum() / share.sum()) if good.any() else 0)
        right.append(good.reshape(-1)[np.argmax(np.where(spans[q], both, -np.inf))])
    loss, metrics = losses(*map(jnp.asarray, (relevance, holds, scores, spans, correct)))
    assert float(loss) == pytest.approx(np.mean(retriever) + np.mean(reader), rel=1e-5)
    assert float(metrics["exact_match"].value()) == pytest.approx(np.mean(right))
    assert float(metrics["found_in_beam"].value()) == pytest.approx(holds.any(1).mean())
    assert float(metrics["Recall@1"].value()) == pytest.approx(holds[:, 0].mean())


def test_the_retriever_learns_from_both_losses():
    """d reader / d f(x,z) = what the softmax over spans gives z, less what correct ones do."""
    relevance, holds, scores, spans, correct = map(jnp.asarray, random_case(1))
    correct = correct.at[:, 0, 0, 0].set(True)
    spans = spans.at[:, 0, 0, 0].set(True)
    nothing = jnp.zeros_like(holds)
    found = jax.grad(lambda r: losses(r, nothing, scores, spans, correct)[0])(relevance)
    both = scores + relevance[:, :2, None, None]
    share = jnp.where(spans, jnp.exp(both), 0)
    right = jnp.where(correct & spans, jnp.exp(both), 0)
    expected = share.sum((2, 3)) / share.sum((1, 2, 3))[:, None]
    expected -= right.sum((2, 3)) / right.sum((1, 2, 3))[:, None]
    np.testing.assert_allclose(found[:, :2], expected / 3, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found[:, 2:], 0)  # what is not read teaches nothing here


@pytest.mark.parametrize("there", [True, False])
def test_nothing_correct_has_no_loss_and_no_gradient(there):
    relevance, holds, scores, spans, correct = map(jnp.asarray, random_case(2))
    relevance = relevance if there else jnp.full_like(relevance, -jnp.inf)
    nothing = (jnp.zeros_like(holds), scores, spans & there, jnp.zeros_like(correct))

    def total(relevance, scores):
        return losses(relevance, nothing[0], scores, nothing[2], nothing[3])[0]

    value, gradients = jax.value_and_grad(total, argnums=(0, 1))(relevance, scores)
    assert float(value) == 0
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, 0)
