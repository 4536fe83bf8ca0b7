"""Translations found by their vectors: against plain numpy, and on cases that are known."""

import numpy as np
import pytest
import scipy.sparse

from t5x_style.multilingual import margin_scoring


def vectors(count, seed=0, size=8):
    return np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)


def cosines(sources, targets):
    return (
        margin_scoring.unit(sources).astype(np.float64)
        @ margin_scoring.unit(targets).astype(np.float64).T
    )


def test_retrieval_is_by_cosine_and_lengths_do_not_count():
    sources = vectors(40)
    targets = sources + 0.8 * vectors(40, seed=1)
    expected = cosines(sources, targets).argmax(axis=1) == np.arange(40)
    lengths = np.random.default_rng(2).uniform(0.01, 100, (40, 1))
    found = margin_scoring.finds_own(sources, targets * lengths)
    np.testing.assert_array_equal(found, expected)
    assert 0.2 < found.mean() < 1
    shuffled = np.random.default_rng(3).permutation(40)
    own = np.argsort(shuffled)
    np.testing.assert_array_equal(
        margin_scoring.finds_own(sources, targets[shuffled], own), expected
    )


def margin_by_loops(sources, targets, k, margin):
    """Every pair's score, as the paper writes it."""
    cosine = cosines(sources, targets)
    scores = np.full_like(cosine, -np.inf)
    for x, y in np.ndindex(*cosine.shape):
        near = np.sort(cosine[x])[-k:].sum() / (2 * k) + np.sort(cosine[:, y])[-k:].sum() / (2 * k)
        scores[x, y] = margin_scoring.MARGINS[margin](cosine[x, y], near)
    return scores


@pytest.mark.parametrize("margin", ["absolute", "distance", "ratio"])
@pytest.mark.parametrize("way", ["forward", "backward", "intersection", "max"])
def test_mining_is_the_papers_score_and_each_way_takes_what_it_says(margin, way):
    sources, targets = vectors(12), vectors(15, seed=1)
    targets[:9] += 2 * sources[:9]
    k = 3
    scores = margin_by_loops(sources, targets, k, margin)
    cosine = cosines(sources, targets)
    near = np.argsort(-cosine, axis=1)[:, :k]
    forward = {(x, int(near[x][scores[x, near[x]].argmax()])) for x in range(12)}
    near = np.argsort(-cosine, axis=0)[:k]
    backward = {(int(near[:, y][scores[near[:, y], y].argmax()]), y) for y in range(15)}
    mined = margin_scoring.mine(sources, targets, margin, k, way)
    pairs = [tuple(pair) for pair in mined.pairs.tolist()]
    assert (np.diff(mined.scores) <= 0).all()
    np.testing.assert_allclose(mined.scores, [scores[pair] for pair in pairs], rtol=1e-5)
    if way == "max":
        best = sorted(forward | backward, key=lambda pair: -scores[pair])
        expected = []
        for x, y in best:
            if all(x != other and y != another for other, another in expected):
                expected.append((x, y))
        assert pairs == expected
    else:
        wanted = {"forward": forward, "backward": backward, "intersection": forward & backward}
        assert set(pairs) == wanted[way] and len(pairs) == len(wanted[way])


@pytest.mark.parametrize("margin", ["absolute", "distance", "ratio"])
def test_own_scores_are_those_of_the_pairs_themselves(margin):
    sources = vectors(12)
    targets = sources + 0.5 * vectors(12, seed=1)
    expected = np.diag(margin_by_loops(sources, targets, 3, margin))
    np.testing.assert_allclose(
        margin_scoring.own_scores(sources, targets, margin, 3), expected, rtol=1e-5
    )
    sparse = scipy.sparse.csr_matrix(np.abs(sources)), scipy.sparse.csr_matrix(np.abs(targets))
    dense = np.abs(sources), np.abs(targets)
    np.testing.assert_allclose(
        margin_scoring.own_scores(*sparse, margin, 3),
        margin_scoring.own_scores(*dense, margin, 3),
        rtol=1e-5,
    )


def test_what_is_near_to_nothing_is_no_translation():
    rows = scipy.sparse.csr_matrix(np.array([[1.0, 0], [0, 0], [0, 1]], np.float32))
    assert margin_scoring.finds_own(rows, rows).tolist() == [True, False, True]
    assert margin_scoring.own_scores(rows, rows, "ratio", 1).tolist() == [1, 0, 1]


def test_the_ratio_is_not_deceived_by_a_sentence_that_is_near_to_all():
    own, common = np.eye(7, dtype=np.float32)[:6], np.eye(7, dtype=np.float32)[6:]
    sources, targets = own + 1.2 * common, np.concatenate([own, common])
    by_cosine = margin_scoring.mine(sources, targets, "absolute", k=4, way="forward")
    assert set(by_cosine.pairs[:, 1].tolist()) == {6}
    by_ratio = margin_scoring.mine(sources, targets, "ratio", k=4, way="forward")
    assert sorted(map(tuple, by_ratio.pairs.tolist())) == [(n, n) for n in range(6)]


def test_the_threshold_is_the_best_on_its_split_and_judges_another():
    pairs = np.array([[0, 0], [1, 1], [2, 7], [3, 3], [4, 9], [5, 8]])
    mined = margin_scoring.Mined(pairs, np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4]))
    gold = np.array([[0, 0], [1, 1], [3, 3], [6, 6]])
    threshold = margin_scoring.best_threshold(mined, gold)
    assert threshold == pytest.approx(0.55)
    found = margin_scoring.quality(mined, gold, threshold)
    assert (found.precision, found.recall, found.f1) == (3 / 4, 3 / 4, 3 / 4)
    grid = [margin_scoring.quality(mined, gold, t).f1 for t in np.linspace(0, 1, 101)]
    assert found.f1 == max(grid)
    nothing = margin_scoring.quality(mined, gold, 2.0)
    assert (nothing.precision, nothing.recall, nothing.f1) == (0, 0, 0)


def test_equal_scores_are_taken_together():
    mined = margin_scoring.Mined(np.array([[0, 0], [1, 9], [2, 8]]), np.array([0.5, 0.5, 0.1]))
    threshold = margin_scoring.best_threshold(mined, np.array([[0, 0]]))
    assert margin_scoring.quality(mined, np.array([[0, 0]]), threshold).precision == 0.5


def test_a_sentence_of_unknown_tokens_finds_nothing_and_harms_no_other():
    targets = vectors(6)
    sources = targets.copy()
    sources[2] = 0
    for found in (
        margin_scoring.finds_own(sources, targets),
        *margin_scoring.find_each_other(sources, targets),
    ):
        np.testing.assert_array_equal(found, [True, True, False, True, True, True])
    with pytest.raises(ValueError, match="expected vectors with a length, found 6 that are all 0"):
        margin_scoring.finds_own(np.zeros_like(sources), targets)


def test_documents_are_the_means_of_their_sentences():
    sentences = vectors(6)
    found = margin_scoring.documents(sentences, np.array([0, 1, 1, 0, 2, 2]))
    np.testing.assert_allclose(
        found[1], margin_scoring.unit(sentences)[1:3].mean(axis=0), rtol=1e-6
    )
    with pytest.raises(ValueError, match="document.* 1 has no sentence"):
        margin_scoring.documents(sentences[:2], np.array([0, 2]))


def test_what_cannot_be_compared_is_refused():
    broken = vectors(4)
    broken[2] = np.nan
    with pytest.raises(ValueError, match=r"1 of 4 .* first in row 2"):
        margin_scoring.finds_own(vectors(4), broken)
    with pytest.raises(ValueError, match="found 4 and 5"):
        margin_scoring.finds_own(vectors(4), vectors(5))
    with pytest.raises(ValueError, match="translation_rows: expected 4 rows from 0 to 4"):
        margin_scoring.finds_own(vectors(4), vectors(5), np.array([0, 1, 2, 5]))
    with pytest.raises(ValueError, match="k: expected 1 to 4"):
        margin_scoring.mine(vectors(4), vectors(5), k=5)
    with pytest.raises(ValueError, match="margin: expected one of"):
        margin_scoring.mine(vectors(4), vectors(5), margin="cosine")
    with pytest.raises(ValueError, match="none of 1 mined pairs"):
        margin_scoring.best_threshold(
            margin_scoring.Mined(np.array([[0, 1]]), np.ones(1)), np.array([[0, 0]])
        )


def test_both_directions_from_one_product_are_the_same():
    sources = vectors(300)
    targets = sources + np.random.default_rng(2).normal(size=sources.shape)
    sources[7] = sources[3]  # of equally near ones the first counts
    targets[9] = targets[3]
    expected = (
        margin_scoring.finds_own(sources, targets),
        margin_scoring.finds_own(targets, sources),
    )
    assert 0.1 < expected[0].mean() < 0.9
    for found, truth in zip(
        margin_scoring.find_each_other(sources, targets), expected, strict=True
    ):
        np.testing.assert_array_equal(found, truth)
    with pytest.raises(ValueError, match="expected"):
        margin_scoring.find_each_other(vectors(4), vectors(5))
