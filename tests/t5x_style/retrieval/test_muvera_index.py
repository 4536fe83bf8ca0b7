"""MUVERA: its long vectors are those of the paper, and propose what MaxSim would find."""

import json

import numpy as np
import pytest

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.representation import Entries
from t5x_style.retrieval import (
    encoding,
    exact_index,
    muvera_index,
    published_index,
    scann_index,
    similarity,
    versioned_folder,
)
from tests.kits import retrieval_helpers as helpers
from tests.kits.toys.random_entries import entries

COUNT, SIZE = 1_000, 16


def texts(count: int, seed: int = 0) -> Entries:
    """Three to twelve unit vectors of each text, near some topics of it."""
    random = np.random.default_rng(seed)
    topics = np.random.default_rng(99).normal(size=(60, SIZE))
    counts = random.integers(3, 13, count)
    chosen = [topics[random.choice(60, 2)[random.integers(0, 2, n)]] for n in counts]
    vectors = np.concatenate(chosen) + 0.5 * random.normal(size=(counts.sum(), SIZE))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Entries(offsets, {"vectors": vectors.astype(np.float32)})


def published(held: Entries, folder, settings) -> index_lib.Index:
    ids = [f"p{row}" for row in range(len(held))]
    embeddings = encoding.Embeddings(held, ids, helpers.CONTRACT, "checkpoint", "multi_vector")
    published_index.publish(folder, embeddings, settings, keep=1)
    return published_index.load(folder)


def plain(side: str, vectors: np.ndarray, divisions: muvera_index.Divisions) -> np.ndarray:
    """The long vector of one text, cell by cell as section 2.1 has it."""
    parts = []
    for planes, projection in zip(divisions.planes, divisions.projections, strict=True):
        bits = [[int(v @ plane > 0) for plane in planes.T] for v in vectors]
        for cell in range(2 ** planes.shape[1]):
            wanted = [cell >> bit & 1 for bit in range(planes.shape[1])]
            differ = [sum(a != b for a, b in zip(own, wanted, strict=True)) for own in bits]
            inside = [v for v, d in zip(vectors, differ, strict=True) if d == 0]
            if side == "query":
                one = sum(inside, np.zeros(vectors.shape[1]))
            else:
                one = np.mean(inside, axis=0) if inside else vectors[int(np.argmin(differ))]
            parts.append(one @ projection)
    return np.concatenate(parts)


@pytest.mark.parametrize("side", ["query", "passage"])
def test_long_vectors_are_those_of_the_paper(side):
    settings = muvera_index.Muvera(divisions=3, bits=3, projected=2)
    divisions = settings.divide(4)
    held = entries("multi_vector", 40)  # some have no vector
    found = divisions.encode(side, held)
    assert found.shape == (40, 3 * 8 * 2) and found.dtype == np.float32
    for number in range(40):
        own = held[number : number + 1].arrays["vectors"]
        expected = plain(side, own, divisions) if len(own) else np.zeros(48)
        np.testing.assert_allclose(found[number], expected, atol=1e-5)


def test_their_inner_products_estimate_max_sim():
    divisions = muvera_index.Muvera().divide(SIZE)
    held, queries = texts(200), texts(20, seed=1)
    estimated = divisions.encode("query", queries) @ divisions.encode("passage", held).T / 20
    exact = similarity.scores("multi_vector", queries, held)
    correlations = [np.corrcoef(a, b)[0, 1] for a, b in zip(estimated, exact, strict=True)]
    assert np.mean(correlations) > 0.8


def test_the_same_settings_make_the_same_divisions():
    """Those of version 1 of `build_index`; if they have to differ, its version is raised."""
    made = muvera_index.Muvera().divide(64)
    planes = [1.117622, -1.3871249, -0.4265716, -0.80358726]
    np.testing.assert_allclose(made.planes[0, 0], planes, rtol=1e-6)
    signs = [-1, -1, -1, 1, -1, 1, -1, -1, 1, 1, 1, -1, -1, 1, 1, 1]
    np.testing.assert_array_equal(4 * made.projections[0, 0], signs)


@pytest.mark.parametrize("projected", [4, 9])
def test_vectors_are_not_projected_to_as_many_dimensions_as_they_have(projected):
    divisions = muvera_index.Muvera(divisions=3, bits=2, projected=projected).divide(4)
    assert divisions.dimension == 3 * 4 * 4
    single = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    sides = zip(("query", "passage"), single, strict=True)
    offsets = np.arange(6)
    queries, held = (divisions.encode(side, Entries(offsets, {"vectors": v})) for side, v in sides)
    # a passage of one vector has it in all cells, so that the estimate is exact
    np.testing.assert_allclose(queries @ held.T, 3 * single[0] @ single[1].T, atol=1e-5)


DENSE = {"exact": exact_index.Exact(), "scann": scann_index.Scann(100, 0, 0.8, 200)}


@pytest.mark.parametrize("dense", DENSE)
def test_it_finds_most_of_what_exact_search_finds(dense, tmp_path):
    settings = muvera_index.Muvera(candidates=100, dense=DENSE[dense])
    index = published(texts(COUNT), tmp_path, settings)
    queries = texts(30, seed=1)
    scores, rows = index.search(queries, 10)
    exact_scores, exact_rows = exact_index.top_k(queries, texts(COUNT), 10, "multi_vector")
    assert index_lib.recall_against(rows, exact_rows) > 0.9 and index.recall > 0.9
    both = rows == exact_rows
    np.testing.assert_allclose(scores[both], exact_scores[both], rtol=1e-5)
    manifest = json.loads((versioned_folder.current(tmp_path) / "manifest.json").read_text())
    assert manifest["settings"]["dense"]["kind"].endswith({"exact": "Exact"}.get(dense, dense))


@pytest.mark.parametrize("given", [{"divisions": 0}, {"bits": 11}, {"candidates": 0}])
def test_settings_out_of_range_are_refused(given):
    with pytest.raises(ValueError, match="1 to 10 bits"):
        muvera_index.Muvera(**given)
