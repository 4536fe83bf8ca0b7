"""Several kinds searched as one: candidates, exact scores, weights, reciprocal ranks, refusals."""

import dataclasses

import numpy as np
import pytest

from t5x_style.checkpoints.restored_model import Trained
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.interfaces.contract import ContractError
from t5x_style.interfaces.index import NO_ROW
from t5x_style.interfaces.representation import DENSE, KINDS, MULTI_VECTOR, SPARSE, Entries
from t5x_style.retrieval import (
    candidate_scores,
    encoding,
    exact_index,
    hybrid,
    similarity,
    versioned_folder,
)
from tests.kits.toys import three_kinds

COUNT = 50
WEIGHTS = {DENSE: 1.0, SPARSE: 0.3, MULTI_VECTOR: 1.0}


@pytest.fixture(scope="module")
def model() -> Trained:
    return three_kinds.trained(Partitioner(MeshShape(8, 1, 1)))


@pytest.fixture(scope="module")
def embedded(model, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("embeddings")
    return three_kinds.encoded(model, three_kinds.texts(COUNT), 12, folder)


@pytest.fixture(scope="module")
def queries(model) -> dict:
    source = three_kinds.Texts(three_kinds.texts(23)[::-1])
    return model.represent("query", source, KINDS)


def searched(embedded: str, *kinds: str, candidates: int = 1000) -> hybrid.Hybrid:
    indexes = [exact_index.load(embedded, kind) for kind in kinds]
    return hybrid.load(embedded, indexes, KINDS, candidates)


def all_scores(embedded: str, queries: dict) -> dict[str, np.ndarray]:
    return {
        kind: similarity.scores(
            kind, queries[kind], encoding.load_embeddings(embedded, kind).passages[:]
        )
        for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [1 << 24, 40])
def test_candidates_have_the_scores_of_exact_search(
    kind, numbers, embedded, queries, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(candidate_scores, "_NUMBERS", numbers)
    random = np.random.default_rng(0)
    rows = random.integers(-1, COUNT, (23, 9)).astype(np.int32)
    stored = encoding.load_embeddings(embedded, kind).passages
    found = candidate_scores.scores(kind, queries[kind], stored, rows)
    every = all_scores(embedded, queries)[kind]
    expected = np.take_along_axis(every, np.maximum(rows, 0), axis=1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[rows >= 0], expected[rows >= 0], rtol=1e-4, atol=1e-5)
    assert np.isneginf(found[rows == NO_ROW]).all() and (rows == NO_ROW).any()
    assert candidate_scores.scores(kind, queries[kind], stored, rows[:, :0]).shape == (23, 0)


class Read:
    """[T, d] on disk, as it were: keeps how many vectors were read at a time."""

    ndim = 2

    def __init__(self, vectors: np.ndarray):
        self.vectors, self.shape, self.most = vectors, vectors.shape, 0

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        self.most = max(self.most, len(rows))
        return self.vectors[rows]


def test_vectors_of_one_query_s_candidates_are_read_in_slices(monkeypatch: pytest.MonkeyPatch):
    """Else a thousand long candidates of one query fill the memory."""
    random = np.random.default_rng(0)
    lengths = random.integers(0, 6, 60)
    numbers = random.integers(-8, 9, (lengths.sum(), 4)).astype(np.float32)  # products are exact
    stored = Read(numbers)
    passages = Entries(np.concatenate([[0], np.cumsum(lengths)]), {"vectors": stored})
    asked = Entries(np.array([0, 3, 3, 10]), {"vectors": numbers[:10]})
    rows = random.integers(-1, 60, (3, 50)).astype(np.int32)
    whole = candidate_scores.scores(MULTI_VECTOR, asked, passages, rows)
    assert stored.most > 100
    stored.most = 0
    monkeypatch.setattr(candidate_scores, "_NUMBERS", 70)
    found = candidate_scores.scores(MULTI_VECTOR, asked, passages, rows)
    np.testing.assert_array_equal(found, whole)
    assert 0 < stored.most <= 70 / 4 + 5


def test_with_all_passages_as_candidates_it_is_exact(embedded, queries):
    scores, rows = searched(embedded, DENSE).search(queries, 60, WEIGHTS)
    every = all_scores(embedded, queries)
    total = sum(weight * every[kind].astype(np.float64) for kind, weight in WEIGHTS.items())
    wanted = -np.sort(-total, axis=1)
    np.testing.assert_allclose(scores[:, :COUNT], wanted, rtol=1e-4, atol=1e-4)
    found = np.take_along_axis(total, rows[:, :COUNT], axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert (rows[:, COUNT:] == NO_ROW).all()


def test_candidates_are_those_of_all_indexes_each_once(embedded, queries):
    of_two = searched(embedded, DENSE, SPARSE, candidates=5)
    rows = of_two.propose(queries, 3)
    alone = [
        exact_index.load(embedded, kind).search(queries[kind], 5)[1] for kind in (DENSE, SPARSE)
    ]
    for found, *proposed in zip(rows, *alone, strict=True):
        expected = set(np.concatenate(proposed).tolist()) - {NO_ROW}
        kept = found[found != NO_ROW].tolist()
        assert kept == sorted(expected)
    assert of_two.propose(queries, 9).shape[1] > rows.shape[1]  # as many as are asked for


def test_one_kind_alone_is_its_index(embedded, queries):
    scores, rows = searched(embedded, SPARSE).search(queries, 4, {SPARSE: 2.0})
    expected = exact_index.load(embedded, SPARSE).search(queries[SPARSE], 4)
    np.testing.assert_allclose(scores, 2 * expected[0], rtol=1e-5)
    np.testing.assert_array_equal(rows, expected[1])


def test_a_kind_of_weight_0_is_not_scored(embedded, queries, monkeypatch: pytest.MonkeyPatch):
    one, weights = searched(embedded, DENSE), {DENSE: 1.0, MULTI_VECTOR: 0.0}
    expected = one.search(queries, 5, {DENSE: 1.0})
    monkeypatch.setattr(candidate_scores, "_max_sim", None)
    for found in one.search(queries, 5, weights), hybrid.Combined(one, weights).search(queries, 5):
        np.testing.assert_array_equal(found, expected)


def test_every_file_is_checked_once(embedded, monkeypatch: pytest.MonkeyPatch):
    index, checked = exact_index.load(embedded, DENSE), []
    sha256 = versioned_folder.sha256
    monkeypatch.setattr(
        versioned_folder, "sha256", lambda path: checked.append(path) or sha256(path)
    )
    hybrid.load(embedded, [index], KINDS)
    assert len(checked) == len(set(checked)) > 8


def test_reciprocal_ranks():
    scores = {
        DENSE: np.array([[0.5, 0.9, -np.inf]], np.float32),
        SPARSE: np.array([[3.0, 3.0, -np.inf]], np.float32),
    }
    found = hybrid.reciprocal_ranks(scores)
    np.testing.assert_allclose(found[0, :2], [1 / 62 + 1 / 61, 1 / 61 + 1 / 62], rtol=1e-6)
    assert np.isneginf(found[0, 2])


def test_a_kind_ranks_only_what_has_something_in_common_with_the_query():
    """Else the first rows had the ranks of hits, whatever they are."""
    dense = np.array([[0.1, 0.2, 0.9, 0.0], [0.1, 0.2, 0.3, 0.4]], np.float32)
    few = np.array([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]], np.float32)
    for kind in (SPARSE, MULTI_VECTOR):
        found = hybrid.reciprocal_ranks({DENSE: dense, kind: few})
        np.testing.assert_allclose(found[0], [1 / 63, 1 / 62, 1 / 61, 1 / 64], rtol=1e-6)
        np.testing.assert_allclose(found[1], [1 / 64, 1 / 63, 1 / 62, 2 / 61], rtol=1e-6)


def test_a_query_without_weights_has_the_order_of_its_vector(embedded, queries):
    none = Entries(
        np.zeros_like(queries[SPARSE].offsets),
        {name: array[:0] for name, array in queries[SPARSE].arrays.items()},
    )
    one = searched(embedded, DENSE, SPARSE)
    both = hybrid.Combined(one, None, (DENSE, SPARSE))
    found = both.search({**queries, SPARSE: none}, 10)[1]
    np.testing.assert_array_equal(found, one.search(queries, 10, {DENSE: 1.0})[1])


def test_combined_by_weights_or_by_ranks(embedded, queries):
    one = searched(embedded, DENSE, SPARSE)
    by_weights = hybrid.Combined(one, {SPARSE: 0.4})
    assert by_weights.kinds == (SPARSE, DENSE)  # the dense index proposes
    for ours, plain in zip(
        by_weights.search(queries, 5), one.search(queries, 5, {SPARSE: 0.4}), strict=True
    ):
        np.testing.assert_array_equal(ours, plain)
    by_ranks = hybrid.Combined(one, None)
    assert set(by_ranks.kinds) == set(KINDS)
    rows = one.propose(queries, 5)
    ranked = hybrid.reciprocal_ranks(one.scores(queries, rows))
    best = np.take_along_axis(rows, np.argsort(-ranked, axis=1, kind="stable"), axis=1)[:, :5]
    np.testing.assert_array_equal(by_ranks.search(queries, 5)[1], best)
    with pytest.raises(hybrid.HybridError, match="of the kinds"):
        hybrid.Combined(searched(embedded, DENSE), {"colbert": 1.0})


def test_the_grid_sums_to_one():
    tried = list(hybrid.grid([DENSE, SPARSE, MULTI_VECTOR], 10))
    assert len(tried) == 66 == len({tuple(one.values()) for one in tried})
    assert all(sum(one.values()) == pytest.approx(1) for one in tried)


@pytest.mark.parametrize(
    "weights",
    [{}, {DENSE: 0.0}, {DENSE: -1.0}, {DENSE: 1.0, "thick": 1.0}, {DENSE: float("nan")}],
)
def test_weights_that_do_not_fit_are_refused(weights, embedded, queries):
    with pytest.raises(hybrid.HybridError, match="weights"):
        searched(embedded, DENSE).search(queries, 4, weights)


def test_a_weight_for_a_kind_that_is_not_there_is_refused(embedded, queries):
    index = exact_index.load(embedded, DENSE)
    of_one = hybrid.load(embedded, [index], [DENSE])
    with pytest.raises(hybrid.HybridError, match=r"kinds \['dense'\].*sparse"):
        of_one.search(queries, 4, {SPARSE: 1.0})


def test_indexes_that_do_not_belong_are_refused(embedded):
    index = exact_index.load(embedded, DENSE)
    with pytest.raises(hybrid.HybridError, match="different kinds"):
        hybrid.load(embedded, [index, index], KINDS)
    with pytest.raises(hybrid.HybridError, match="at least one"):
        hybrid.load(embedded, [], KINDS)
    with pytest.raises(hybrid.HybridError, match="each kind among"):
        hybrid.load(embedded, [index], [SPARSE])
    with pytest.raises(hybrid.HybridError, match="kinds"):
        hybrid.load(embedded, [index], ["thick"])
    stored = encoding.load_embeddings(embedded, DENSE)
    parts = exact_index.load(embedded, DENSE), stored.ids[::-1], stored.contract
    other = exact_index.ExactIndex(stored.passages, *parts[1:], stored.checkpoint)
    with pytest.raises(hybrid.HybridError, match="same order"):
        hybrid.load(embedded, [other], KINDS)
    of_another = dataclasses.replace(stored.contract, query_prefix="ask: ")
    foreign = exact_index.ExactIndex(stored.passages, stored.ids, of_another, stored.checkpoint)
    with pytest.raises(ContractError, match="query_prefix"):
        hybrid.load(embedded, [foreign], KINDS)


def test_no_queries(embedded, queries):
    none = {kind: one[:0] for kind, one in queries.items()}
    scores, rows = searched(embedded, DENSE, SPARSE).search(none, 4, WEIGHTS)
    assert scores.shape == rows.shape == (0, 4)
