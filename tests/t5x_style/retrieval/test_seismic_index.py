"""Seismic: large vocabularies, what it finds, and machines without its library."""

import sys

import numpy as np
import pytest

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.representation import Entries
from t5x_style.retrieval import encoding, exact_index, published_index, seismic_index
from tests.kits import retrieval_helpers as helpers

COUNT = 2_000


def passages(first_token: int = 0, seed: int = 0) -> Entries:
    """Words as frequent as in a language: some in most texts, most in few."""
    random = np.random.default_rng(seed)
    chances = 1 / np.arange(1, 5_001) ** 0.8
    tokens = [np.unique(random.choice(5_000, 40, p=chances / chances.sum())) for _ in range(COUNT)]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in tokens])])
    arrays = {
        "tokens": (np.concatenate(tokens) + first_token).astype(np.int32),
        "weights": random.gamma(2, 0.5, int(offsets[-1])).astype(np.float32),
    }
    return Entries(offsets, arrays)


def published(held: Entries, folder, settings) -> index_lib.Index:
    ids = [f"p{row}" for row in range(len(held))]
    embeddings = encoding.Embeddings(held, ids, helpers.CONTRACT, "checkpoint", "sparse")
    published_index.publish(folder, embeddings, settings, keep=1)
    return published_index.load(folder)


@pytest.mark.parametrize(
    "first_token",
    [pytest.param(0, id="BERT's", marks=pytest.mark.slow), pytest.param(245_000, id="XLM-R's")],
)
def test_it_finds_most_of_what_exact_search_finds(first_token, tmp_path):
    held = passages(first_token)
    index = published(held, tmp_path, seismic_index.Seismic())
    queries = passages(first_token, seed=1)[:50]
    scores, rows = index.search(queries, 10)
    exact_scores, exact_rows = exact_index.top_k(queries, held, 10, "sparse")
    assert index_lib.recall_against(rows, exact_rows) > 0.9 and index.recall > 0.9
    both = rows == exact_rows
    assert both.mean() > 0.5
    # The library has 16 bits of a weight; what is returned has all of them.
    np.testing.assert_allclose(scores[both], exact_scores[both], rtol=1e-6)


def test_tokens_may_be_in_any_order_and_queries_empty(tmp_path):
    held = passages()
    order = np.concatenate(
        [np.arange(a, b)[::-1] for a, b in zip(held.offsets[:-1], held.offsets[1:], strict=True)]
    )
    turned = Entries(held.offsets, {name: array[order] for name, array in held.arrays.items()})
    index = published(turned, tmp_path, seismic_index.Seismic())
    three = held[:3]
    queries = Entries(np.array([0, 0, *three.offsets[1:]]), three.arrays)  # the first has no token
    _, rows = index.search(queries, 1)
    assert rows[:, 0].tolist() == [index_lib.NO_ROW, 0, 1, 2]
    assert index.search(Entries(np.zeros(1, np.int64), three[:0].arrays), 1)[1].shape == (0, 1)


def test_without_the_library_its_passages_are_searched_exactly(tmp_path, monkeypatch):
    held = passages()
    published(held, tmp_path, seismic_index.Seismic())
    monkeypatch.setitem(sys.modules, "seismic", None)
    with pytest.raises(seismic_index.SeismicMissing, match="pip install pyseismic-lsr"):
        published_index.load(tmp_path)
    index = published_index.load(tmp_path, fall_back_to_exact=True)
    queries = held[:20]
    for ours, exact in zip(
        index.search(queries, 5), exact_index.top_k(queries, held, 5, "sparse"), strict=True
    ):
        np.testing.assert_array_equal(ours, exact)


def test_a_file_that_it_does_not_read_is_damaged(tmp_path):
    held = passages()[:20]
    settings = seismic_index.Seismic()
    record = index_lib.IndexRecord([f"p{row}" for row in range(20)], helpers.CONTRACT)
    settings.build(held, record).save(tmp_path)
    (tmp_path / "inverted.index.seismic").write_bytes(b"\x01" * 100)
    with pytest.raises(index_lib.IndexDamaged, match=r"inverted\.index\.seismic.*Build it again"):
        settings.load(tmp_path, record)


@pytest.mark.parametrize("given", [{"query_cut": 0}, {"heap_factor": 0.0}, {"block_share": 1.5}])
def test_settings_out_of_range_are_refused(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        seismic_index.Seismic(**given)
