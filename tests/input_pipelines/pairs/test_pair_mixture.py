"""Mixtures over small collections, and mixtures that cannot be."""

from pathlib import Path

import pytest

from input_pipelines.pairs.pair_kinds import LabelledPairs
from input_pipelines.pairs.pair_shares import counts_of
from tests.kits.pair_mixtures import (
    Files,
    kinds_of,
    make,
    mixture,
    texts_of,
    warnings_of,
    write_files,
)
from tests.kits.pair_stores import FIRST, Text, some_texts, write_texts


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("pairs"))


def test_three_passages_are_a_batch_of_three(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = warnings_of(monkeypatch)
    few = write_texts(tmp_path / "few", some_texts(3))
    pairs = mixture(files, passages=few, weights={"crops": 1}, batch=64)
    pipeline = make(pairs)
    assert pipeline.pairs.batch == 3
    assert said[0].startswith("pairs: a batch has 3 pairs instead of 64, since there are no more")
    assert "3 of 3 passages with two words" in said[0]
    assert pipeline.query_rows.rows <= 3 and pipeline.passage_rows.rows <= 3
    for step in range(5):
        assert len(texts_of(pipeline.batch(step)["query"])) == 3


@pytest.mark.parametrize(("copies", "warned"), [(30, True), (15, True), (14, False)])
def test_passages_that_are_all_equal_are_said(
    copies: int, warned: bool, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch does not show it: a different crop is removed from each copy."""
    said = warnings_of(monkeypatch)
    texts = [Text(f"p{i}", [[1] * 6]) for i in range(copies)]
    texts += [Text(f"q{i}", [[1] * (7 + i)]) for i in range(30 - copies)]
    equal = write_texts(tmp_path / "equal", texts, vocabulary=FIRST + 6)
    pipeline = make(mixture(files, passages=equal, weights={"crops": 1}, batch=16))
    assert len({str(text[-1]) for text in texts_of(pipeline.batch(0)["passage"])}) > 1
    found = [one for one in said if "hold the same tokens" in one]
    if warned:
        assert found and f"{copies} of 30 passages" in found[0] and "Remove the copies" in found[0]
    else:
        assert not found


def test_kinds_without_examples_give_their_share_to_others(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = warnings_of(monkeypatch)
    texts = [Text(f"p{i}", [[1, 1, 1, 1], [1, 2]]) for i in range(8)]
    plain = write_texts(tmp_path / "plain", texts)
    kinds = {**kinds_of(files), "labelled": LabelledPairs(None, None)}
    opened = mixture(files, passages=plain, kinds=kinds, batch=6).open()
    assert opened.counts == {"crops": 3, "two": 1, "sentences": 2}
    left_out = [text.split(",")[0] for text in said]
    assert left_out == ["pairs: no labelled", "pairs: no titles", "pairs: no neighbours"]
    assert "the others get its share: no labelled query (queries None" in said[0]


@pytest.mark.parametrize(
    ("texts", "kind", "message"),
    [
        ([[[3]]] * 4, "crops", "crops: 0 of 4 passages with two words or more and more than 2"),
        ([[[1, 1]]] * 4, "titles", "titles: 0 titles, of 0 of 4 passages with a body"),
        ([[[1, 1]]] * 4, "sentences", "sentences: 0 of 4 sentences"),
        ([[[1, 1]]] * 4, "neighbours", "neighbours: 0 of 4 passages with a next one of the same"),
    ],
)
def test_nothing_to_make_pairs_of_says_what_was_found(
    tmp_path: Path, files: Files, texts: list, kind: str, message: str
) -> None:
    made = [Text(f"p{i}", sentences) for i, sentences in enumerate(texts)]
    store = write_texts(tmp_path / "store", made)
    with pytest.raises(
        ValueError, match=f"expected examples of one kind at least, found {message}"
    ):
        mixture(files, passages=store, weights={kind: 1}).open()


def test_titles_only_make_no_pair_of_title_and_body(tmp_path: Path, files: Files) -> None:
    store = write_texts(tmp_path / "store", [Text(f"p{i}", [], [1, 2]) for i in range(4)])
    with pytest.raises(ValueError, match="titles: 0 titles, of 0 of 4 passages with a body"):
        mixture(files, passages=store, weights={"titles": 1}).open()
    assert mixture(files, passages=store, weights={"crops": 1}).open().batch == 4


def test_similar_queries_are_part_of_the_fingerprint(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = warnings_of(monkeypatch)
    one, other = (mixture(files, weights={"labelled": 1}, batch=6, similar=n) for n in (1, 4))
    assert (
        one.open().fingerprint
        == mixture(files, weights={"labelled": 1}, batch=6).open().fingerprint
    )
    assert one.open().fingerprint != other.open().fingerprint
    assert "pairs: 3 similar queries together instead of 4" in " ".join(said)
    assert sorted(other.open().step(0).example) != sorted(other.open().step(1).example)


def test_an_empty_file_has_no_labelled_query(tmp_path: Path, files: Files) -> None:
    empty = tmp_path / "negatives.jsonl"
    empty.touch()
    kinds = {"labelled": LabelledPairs(files.queries, str(empty))}
    with pytest.raises(ValueError, match="labelled: no labelled query .*negatives.jsonl"):
        mixture(files, kinds=kinds, weights={"labelled": 1}).open()


def test_one_pair_has_no_negative(tmp_path: Path, files: Files) -> None:
    store = write_texts(tmp_path / "one", some_texts(1))
    with pytest.raises(ValueError, match="a batch of one pair has no negative.*crops: 1 of 1"):
        mixture(files, passages=store, weights={"crops": 1}).open()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": {"crops": 0, "titles": 0.0}}, "expected a weight above 0"),
        ({"weights": {}}, r"expected a weight above 0, .* found \{\}"),
        ({"weights": {"crops": -1}}, r"numbers of 0 or more, found \{'crops': -1\}"),
        ({"weights": {"crop": 1}}, r"expected names of kinds, \['crops', .*found \['crop'\]"),
        ({"batch": 0}, r"PairMixture\.batch: expected a whole number above 0"),
        ({"group_size": 0}, r"PairMixture\.group_size: expected a whole number above 0"),
        ({"similar": 0}, r"PairMixture\.similar: expected a whole number above 0"),
        ({"query_length": 2}, r"PairMixture\.query_length: expected 3 tokens or more"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(files: Files, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixture(files, **change)


@pytest.mark.parametrize(
    ("sizes", "weights", "batch", "expected"),
    [
        ({"a": 9, "b": 9}, {"a": 1, "b": 1}, 6, {"a": 3, "b": 3}),
        ({"a": 2, "b": 9}, {"a": 1, "b": 1}, 6, {"a": 2, "b": 4}),
        ({"a": 0, "b": 9}, {"a": 1, "b": 1}, 6, {"b": 6}),
        ({"a": 1, "b": 2, "c": 99}, {"a": 3, "b": 2, "c": 1}, 12, {"a": 1, "b": 2, "c": 9}),
        ({"a": 2, "b": 3}, {"a": 1, "b": 1}, 64, {"a": 2, "b": 3}),
        ({"a": 9, "b": 9}, {"a": 1, "b": 99}, 6, {"b": 6}),
    ],
)
def test_shares_by_weight_as_far_as_there_are_examples(
    sizes: dict, weights: dict, batch: int, expected: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = warnings_of(monkeypatch)
    assert counts_of(sizes, dict.fromkeys(sizes, "some"), weights, batch) == expected
    assert bool(said) == (expected != {"a": 3, "b": 3})
