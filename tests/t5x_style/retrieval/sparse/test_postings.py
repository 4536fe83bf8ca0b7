"""Search by token: the hits and scores of a comparison with every passage, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5x_style.interfaces.index import NO_ROW, QueryError
from t5x_style.interfaces.representation import SPARSE, Entries
from t5x_style.retrieval import exact_index
from t5x_style.retrieval.sparse import postings
from t5x_style.retrieval.sparse.postings import Postings
from tests.kits.retrieval_helpers import CONTRACT

TOKENS = 12
TEXTS = st.lists(
    st.dictionaries(
        st.integers(0, TOKENS), st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), max_size=6
    ),
    min_size=1,
    max_size=20,
)


def entries(texts: list[dict[int, float]]) -> Entries:
    """Texts as tokens with weights."""
    ordered = [sorted(text.items()) for text in texts]
    offsets = np.cumsum([0, *map(len, ordered)]).astype(np.int64)
    pairs = [pair for text in ordered for pair in text]
    return Entries(
        offsets,
        {
            "tokens": np.array([token for token, _ in pairs], np.int32),
            "weights": np.array([weight for _, weight in pairs], np.float32),
        },
    )


def assert_equal(queries: Entries, passages: Entries, k: int) -> None:
    found = Postings(passages).search(queries, k)
    expected = exact_index.top_k(queries, passages, k, SPARSE)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == (len(queries), k) and one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, st.integers(1, 25))
def test_it_finds_what_a_comparison_with_every_passage_finds(queries, passages, k) -> None:
    assert_equal(entries(queries), entries([*passages, {3: 1.0}]), k)


def drawn(count: int, size: int, seed: int) -> Entries:
    generator = np.random.default_rng(seed)

    def text() -> dict[int, float]:
        tokens, weights = generator.permutation(300)[:size], generator.random(size)
        return dict(zip(tokens.tolist(), weights.tolist(), strict=True))

    return entries([text() for _ in range(count)])


@pytest.mark.parametrize(("most", "products"), [(256, 1 << 24), (3, 1 << 24), (256, 40), (1, 1)])
def test_blocks_change_nothing(monkeypatch, most, products) -> None:
    monkeypatch.setattr(postings, "QUERIES", most)
    monkeypatch.setattr(postings, "PRODUCTS", products)
    assert_equal(drawn(11, 7, 0), drawn(50, 20, 1), 9)


def test_ranges_are_of_as_much_as_fits(monkeypatch) -> None:
    monkeypatch.setattr(postings, "QUERIES", 3)
    monkeypatch.setattr(postings, "PRODUCTS", 10)
    found = list(postings._blocks(np.array([1, 1, 1, 1, 9, 2, 40, 0])))
    assert [(at.start, at.stop) for at in found] == [(0, 3), (3, 5), (5, 6), (6, 7), (7, 8)]
    assert list(postings._blocks(np.array([], np.int64))) == []


def test_queries_without_a_known_token_find_nothing() -> None:
    held = Postings(entries([{1: 1.0}, {2: 1.0}]))
    scores, rows = held.search(entries([{}, {9: 1.0}, {2: 2.0, 9: 1.0}]), 2)
    assert rows.tolist() == [[NO_ROW, NO_ROW], [NO_ROW, NO_ROW], [1, NO_ROW]]
    assert scores[2, 0] == 2.0 and np.isinf(scores[0]).all()
    scores, rows = held.search(entries([]), 4)
    assert scores.shape == rows.shape == (0, 4)


def test_wrong_queries_are_refused() -> None:
    held = Postings(entries([{1: 1.0}]))
    with pytest.raises(QueryError, match="k"):
        held.search(entries([{1: 1.0}]), 0)
    with pytest.raises(QueryError, match="queries"):
        held.search(np.zeros((1, 3), np.float32), 1)


def test_an_exact_index_makes_them_for_its_first_search(monkeypatch) -> None:
    made = []

    class Counted(Postings):
        def __init__(self, passages: Entries) -> None:
            made.append(len(passages))
            super().__init__(passages)

    monkeypatch.setattr(exact_index, "Postings", Counted)
    held = drawn(30, 9, 2)
    index = exact_index.ExactIndex(held, [str(n) for n in range(30)], CONTRACT, kind=SPARSE)
    assert not made
    for _ in range(2):
        index.search(drawn(2, 5, 3), 4)
    assert made == [30]
