"""The map of a corpus: its projection equals a plain SVD, and is computed once."""

import json
import threading

import numpy as np
import pytest

from t5x_style.retrieval.beir_collection import Passages
from t5x_style.serving.opened import corpus_map
from t5x_style.serving.opened.passage_sources import LISTED, Sources
from t5x_style.serving.service import CorpusMap


def vectors_of(passages: int, width: int, seed: int = 0) -> np.ndarray:
    """[passages, width] float32 whose variances differ, so that the components are unique."""
    made = np.random.default_rng(seed).standard_normal((passages, width))
    return (made * np.linspace(3, 1, width) + 5).astype(np.float32)


def expected_points(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates up to the sign of each axis, and explained shares, by a plain SVD."""
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    points = left[:, :2] * sizes[:2]
    return points / np.abs(points).max(), sizes[:2] ** 2 / (sizes**2).sum()


@pytest.mark.parametrize("chunk", [7, 4096])
def test_it_equals_a_plain_svd_up_to_signs(monkeypatch, chunk) -> None:
    monkeypatch.setattr(corpus_map, "_CHUNK", chunk)
    vectors = vectors_of(50, 6)
    points, explained = corpus_map.project(vectors, np.arange(50))
    expected, shares = expected_points(vectors)
    signs = np.sign((points * expected).sum(0))
    np.testing.assert_allclose(points, expected * signs, atol=6e-5)
    np.testing.assert_allclose(explained, shares, rtol=1e-5)
    assert (points.dtype, explained.dtype) == (np.float32, np.float32)
    assert np.abs(points).max() == 1


def test_signs_do_not_depend_on_the_order_of_rows() -> None:
    vectors = vectors_of(40, 5)
    order = np.random.default_rng(1).permutation(40)
    points, _ = corpus_map.project(vectors, np.arange(40))
    again, _ = corpus_map.project(vectors, np.arange(40))
    shuffled, _ = corpus_map.project(vectors[order], np.arange(40))
    np.testing.assert_array_equal(points, again)
    np.testing.assert_allclose(shuffled, points[order], atol=1.1e-4)


def test_signs_are_those_of_the_largest_entry() -> None:
    axes = corpus_map._signed(np.asarray([[-0.8, 0.1], [0.6, 0.9]]))
    np.testing.assert_array_equal(axes, [[0.8, 0.1], [-0.6, 0.9]])


def test_of_more_passages_evenly_spaced_ones_are_projected() -> None:
    vectors = vectors_of(100, 4)
    rows = corpus_map.spaced_rows(100, 30)
    assert len(rows) == len(set(rows)) == 30 and rows[0] == 0 and set(np.diff(rows)) == {3, 4}
    points, _ = corpus_map.project(vectors, rows)
    alone, _ = corpus_map.project(vectors[rows], np.arange(30))
    np.testing.assert_array_equal(points, alone)
    assert len(corpus_map.spaced_rows(corpus_map.LIMIT + 1)) == corpus_map.LIMIT


@pytest.mark.parametrize("passages", [1, 5])
def test_vectors_that_are_the_same_are_one_point(passages) -> None:
    vectors = np.tile(vectors_of(1, 8), (passages, 1))
    points, explained = corpus_map.project(vectors, np.arange(passages))
    assert points.shape == (passages, 2) and not points.any() and not explained.any()


def test_two_passages_and_one_dimension_are_on_a_line() -> None:
    for vectors in (vectors_of(2, 6), vectors_of(9, 1)):
        points, explained = corpus_map.project(vectors, np.arange(len(vectors)))
        assert points.shape == (len(vectors), 2)
        assert np.abs(points[:, 0]).max() == 1 and not points[:, 1].any()
        np.testing.assert_allclose(explained, [1, 0], atol=1e-6)


def passages_of(folder, sources) -> Passages:
    rows = [
        {"_id": f"p{n}", "title": f"Title {n}", "text": f"text {n} " * 40, "source": source}
        for n, source in enumerate(sources)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "corpus.jsonl").write_text(lines, encoding="utf-8")
    return Passages(folder)


def test_points_have_the_facts_of_their_passages(tmp_path) -> None:
    sources = ["b", "", "a", "b", "a", "a"]
    passages = passages_of(tmp_path, sources)
    found = corpus_map.draw(vectors_of(6, 3), passages, Sources(sources), limit=3)
    assert list(found.ids) == ["p0", "p2", "p4"]
    assert list(found.titles) == ["Title 0", "Title 2", "Title 4"]
    assert all(len(text) <= corpus_map.CHARACTERS for text in found.texts)
    assert found.texts[0].startswith("text 0 text 0 ") and found.texts[0].endswith(" 0…")
    assert [found.sources[group] for group in found.groups] == ["b", "a", "a"]
    assert found.points.shape == (3, 2) and found.groups.dtype == np.int32


def test_many_sources_are_grouped_as_they_are_offered_for_a_choice(tmp_path) -> None:
    sources = [f"{'ab'[n % 2]}/{n}" for n in range(LISTED + 1)] + ["", "ab"]
    grouped = Sources(sources)
    assert grouped.listed == ("a/", "ab", "b/")
    assert [grouped.listed_of(one) for one in ("a/0", "b/1", "ab", "", "c/1")] == [
        *("a/", "b/", "ab"),
        *("", ""),
    ]
    assert Sources(["x/1", "y"]).listed_of("x/1") == "x/1"
    assert Sources([f"{n}/" for n in range(LISTED + 1)]).listed_of("3/") == ""


def test_a_beginning_is_one_line_and_cut_at_a_word() -> None:
    assert corpus_map.beginning(" a\n b ") == "a b"
    assert corpus_map.beginning("a" * 100, 10) == "a" * 9 + "…"
    assert corpus_map.beginning("aaaa bbbb cccc", 10) == "aaaa bbbb…"
    assert len(corpus_map.beginning("word " * 100)) <= corpus_map.CHARACTERS


def test_it_is_computed_once_for_all_who_wait() -> None:
    made, let_go, calls = object(), threading.Event(), []

    def compute() -> CorpusMap:
        calls.append(threading.current_thread())
        assert let_go.wait(10)
        return made  # type: ignore[return-value]

    lazy = corpus_map.LazyMap(compute)
    assert calls == []  # before the first request
    futures = [lazy() for _ in range(5)]
    assert not futures[0].done() and not futures[0].cancel()
    let_go.set()
    assert {id(one.result(10)) for one in futures} == {id(made)}
    assert lazy().result(0) is made
    assert len(calls) == 1 and calls[0] is not threading.current_thread()


def test_a_computation_that_failed_starts_again() -> None:
    results = [OSError("the disk is gone"), None]

    def compute() -> CorpusMap:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[return-value]

    lazy = corpus_map.LazyMap(compute)
    with pytest.raises(OSError, match="the disk is gone"):
        lazy().result(10)
    assert lazy().result(10) is None
