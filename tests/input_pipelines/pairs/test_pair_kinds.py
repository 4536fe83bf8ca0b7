"""How pairs are cut: against a slow reading of the passages, whose tokens are all different."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipelines.batches import token_groups
from input_pipelines.pairs.pair_corpus import PairCorpus
from input_pipelines.pairs.pair_kinds import (
    Cut,
    Examples,
    Neighbours,
    PairKind,
    RandomCrops,
    Sentences,
    TitleToBody,
)
from input_pipelines.store import layouts
from input_pipelines.store.token_store import Passages, StoreError
from tests.kits.pair_stores import Text, corpus_of
from tests.kits.tiny_stores import CLS, SEP

WORDS = st.lists(st.integers(1, 3), min_size=1, max_size=9)
TEXTS = st.lists(
    st.tuples(st.lists(WORDS, min_size=1, max_size=4), st.just([]) | WORDS),
    min_size=1,
    max_size=8,
).map(lambda found: [Text(f"p{i}", *parts) for i, parts in enumerate(found)])
LAYOUTS = st.sampled_from([layouts.TEXT, layouts.TITLE_AND_BODY])


def split(passages: Passages) -> list[list[int]]:
    ends = np.cumsum(passages.lengths).tolist()
    return [passages.tokens[a:b].tolist() for a, b in itertools.pairwise([0, *ends])]


def cut(kind: PairKind, corpus: PairCorpus, seed: int = 0) -> tuple[Examples, Cut, np.ndarray]:
    """All examples of a kind as pairs, and the rows of their positives."""
    examples = kind.examples(corpus, 1, False)
    picked = np.arange(len(examples))
    documents = examples.pairs.positives[:, :1]

    def uniform(stream: int) -> np.ndarray:
        return np.random.default_rng([seed, stream]).random(len(picked))

    return examples, kind.cut(corpus, examples, picked, documents, uniform), documents[:, 0]


def place_of(query: list[int], row: list[int], words: np.ndarray, most: int) -> slice:
    """Where a query is in a row, which it has to be, in one piece and in whole words."""
    assert query[0] == CLS and query[-1] == SEP and 1 <= len(query) - 2 <= most
    start = row.index(query[1])
    place = slice(start, start + len(query) - 2)
    assert row[place] == query[1:-1] and SEP not in query[1:-1]
    assert words[place.start] and words[place.stop]
    return place


@settings(max_examples=60, deadline=None)
@given(
    texts=TEXTS, layout=LAYOUTS, seed=st.integers(0, 99), least=st.integers(1, 6),
    more=st.integers(0, 6), share=st.sampled_from([0.0, 0.5, 1.0]),
)  # fmt: skip
def test_crops_are_whole_words_in_one_piece_and_are_gone_where_removed(
    texts: list[Text], layout: str, seed: int, least: int, more: int, share: float
) -> None:
    corpus = corpus_of(texts, layout)
    found, made, rows = cut(RandomCrops(least, least + more, False, share), corpus, seed)
    body = corpus.texts_from
    usable = [
        row for row in range(len(texts))
        if corpus.ends[row] - body[row] > least
        and corpus.store.read([row]).word_starts[body[row] : corpus.ends[row]].sum() > 1
    ]  # fmt: skip
    assert rows.tolist() == usable == found.pairs.queries.tolist()
    removed = []
    for query, passage, row in zip(split(made.queries), split(made.passages), rows, strict=True):
        whole = corpus.texts.take(np.array([row]))
        tokens = whole.tokens.tolist()
        place = place_of(query, tokens, whole.word_starts, max(least + more, 3))
        assert place.start >= body[row] and len(query) - 2 < corpus.ends[row] - body[row]
        rest = tokens[: place.start] + tokens[place.stop :]
        assert passage in (tokens, rest)
        removed.append(passage == rest)
    if share in (0.0, 1.0):
        assert set(removed) <= {share == 1.0}


@settings(max_examples=40, deadline=None)
@given(texts=TEXTS, layout=LAYOUTS, seed=st.integers(0, 99))
def test_independent_crops_are_both_spans_of_one_passage(
    texts: list[Text], layout: str, seed: int
) -> None:
    corpus = corpus_of(texts, layout)
    _, made, rows = cut(RandomCrops(2, 7, True, 0.0), corpus, seed)
    for query, passage, row in zip(split(made.queries), split(made.passages), rows, strict=True):
        whole = corpus.texts.take(np.array([row]))
        for side in (query, passage):
            place = place_of(side, whole.tokens.tolist(), whole.word_starts, 7)
            assert 1 <= place.start < place.stop <= corpus.ends[row]


@settings(max_examples=60, deadline=None)
@given(
    texts=TEXTS, layout=LAYOUTS, seed=st.integers(0, 99), query_length=st.integers(6, 20),
    passage_length=st.integers(8, 64), share=st.sampled_from([0.0, 1.0]),
)  # fmt: skip
def test_sentences_are_removed_whole(
    texts: list[Text], layout: str, seed: int, query_length: int, passage_length: int, share: float
) -> None:
    corpus = corpus_of(texts, layout, query_length, passage_length)
    found, made, rows = cut(Sentences(2, share), corpus, seed)
    table = np.array(corpus.store.rows.sentences)  # type: ignore[attr-defined]
    ends = corpus.ends
    expected = [
        (row, start, end) for row, start, end in table.tolist()
        if end - start >= 2 and end <= ends[row] and end - start < ends[row] - corpus.bodies[row]
    ]  # fmt: skip
    assert found.detail is not None
    assert [(r, *d) for r, d in zip(rows.tolist(), found.detail.tolist(), strict=True)] == expected
    for query, passage, (row, start, end) in zip(
        split(made.queries), split(made.passages), expected, strict=True
    ):
        whole = corpus.texts.take(np.array([row]))
        tokens = whole.tokens.tolist()
        place = place_of(query, tokens, whole.word_starts, query_length - 2)
        assert place.start == start and place.stop <= end
        if end - start <= query_length - 2:
            assert place.stop == end
        assert passage == (tokens if share == 0 else tokens[:start] + tokens[end:])


@pytest.mark.parametrize("layout", [layouts.TEXT, layouts.TITLE_AND_BODY])
def test_titles_ask_for_their_bodies(layout: str) -> None:
    texts = [
        Text("a", [[1, 1]], [2], titled="x"), Text("b", [[1]], []), Text("c", [[3]], [1, 1]),
        Text("d", [[1, 2]], [2], titled="x"), Text("e", [[]], [1]),
    ]  # fmt: skip
    corpus = corpus_of(texts, layout)
    found, made, rows = cut(TitleToBody(), corpus)
    assert sorted(found.pairs.positives.tolist()) == [[0, 3], [2, -1]]
    assert "2 titles, of 3 of 5 passages" in found.found and found.shared
    frame = [CLS, SEP] if layout == layouts.TITLE_AND_BODY else [CLS]
    for query, passage, row in zip(split(made.queries), split(made.passages), rows, strict=True):
        tokens = corpus.texts.take(np.array([row])).tokens.tolist()
        size = sum(texts[row].title)
        assert query == [CLS, *tokens[1 : 1 + size], SEP]
        assert passage == frame + tokens[len(frame) + size :]


def test_a_title_of_many_passages_shows_sixteen_of_them() -> None:
    texts = [Text(f"p{i}", [[1]], [1], titled="same") for i in range(100)]
    found, *_ = cut(TitleToBody(), corpus_of(texts))
    (shown,) = found.pairs.positives.tolist()
    assert len(set(shown)) == 16 and max(shown) > 90


@pytest.mark.parametrize("layout", [layouts.TEXT, layouts.TITLE_AND_BODY])
def test_neighbours_follow_each_other_in_a_document(layout: str) -> None:
    texts = [
        Text("a#0", [[1] * 3], [1]), Text("a#1", [[2] * 20], [2]), Text("b#0", [[1]], [1]),
        Text("x", [[1, 1]], [1], titled="t"), Text("y", [[1]], [1], titled="t"),
        Text("z", [[1]], []), Text("zz", [[1]], []),
    ]  # fmt: skip
    corpus = corpus_of(texts, layout, query_length=9)
    assert corpus.following.tolist() == [1, -1, -1, 4, -1, -1, -1]
    found, made, rows = cut(Neighbours(), corpus)
    assert found.pairs.queries.tolist() == made.source.tolist() == [0, 3]
    assert rows.tolist() == [1, 4] and found.shared
    for query, passage, row in zip(split(made.queries), split(made.passages), [0, 3], strict=True):
        tokens = corpus.texts.take(np.array([row])).tokens.tolist()
        assert query == [CLS, *tokens[corpus.bodies[row] :]]
        assert passage == corpus.texts.take(np.array([row + 1])).tokens.tolist()
    without_tables = corpus_of(texts, layout, tables=False)
    assert without_tables.following.tolist() == [1, -1, -1, -1, -1, -1, -1]


def test_a_long_neighbour_asks_with_a_part_of_it() -> None:
    corpus = corpus_of([Text("a#0", [[2] * 20], [1]), Text("a#1", [[1]])], query_length=9)
    _, made, _ = cut(Neighbours(), corpus, seed=3)
    whole = corpus.texts.take(np.array([0]))
    place = place_of(split(made.queries)[0], whole.tokens.tolist(), whole.word_starts, 7)
    assert place.stop - place.start == 6


def test_a_word_longer_than_a_query_is_all_that_is_ever_cut() -> None:
    corpus = corpus_of([Text("a", [[20, 1]])], query_length=8)
    for seed in range(5):
        _, made, _ = cut(RandomCrops(2, 9, False, 0.0), corpus, seed)
        assert len(split(made.queries)[0]) <= 8


def test_rows_on_disk_and_in_memory_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [Text(f"p{i}", [[1, 2, 3] * (i + 1)], [1]) for i in range(9)]
    kept = corpus_of(texts, passage_length=20)
    monkeypatch.setattr("input_pipelines.pairs.text_arrays.IN_MEMORY_BYTES", 0)
    read = corpus_of(texts, passage_length=20)
    assert kept.texts.in_memory and not read.texts.in_memory
    rows = np.array([8, 0, 3, 3])
    for one, other in zip(kept.texts.take(rows), read.texts.take(rows), strict=True):
        np.testing.assert_array_equal(one, other)
    assert kept.texts.take(rows).lengths.tolist() == [20, 9, 20, 20]
    np.testing.assert_array_equal(kept.words, read.words)
    np.testing.assert_array_equal(kept.title_numbers, read.title_numbers)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomCrops(0, 3, False, 0.0), "min_tokens of at least 1"),
        (lambda: RandomCrops(4, 3, False, 0.0), "max_tokens not below, found 4 and 3"),
        (lambda: RandomCrops(1, 3, False, 1.5), "remove_probability: expected 0 to 1, found 1.5"),
        (lambda: RandomCrops(1, 3, True, 0.5), "nothing is removed from independent crops"),
        (lambda: Sentences(0, 0.5), "Sentences.min_tokens: expected 1 or more, found 0"),
        (lambda: Sentences(1, -1.0), "Sentences.remove_probability: expected 0 to 1"),
    ],
)
def test_kinds_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kind", [Sentences(1, 0.0), TitleToBody()])
def test_a_store_without_tables_says_how_to_get_them(kind: PairKind) -> None:
    corpus = corpus_of([Text("a", [[1, 1]], [1])], tables=False)
    with pytest.raises(
        StoreError, match="memory does not say where .*runs/stores/passages_in_parts.gin"
    ):
        kind.examples(corpus, 1, False)


def test_rows_that_are_no_passages_are_refused() -> None:
    with pytest.raises(StoreError, match="expected passages of layout 'text' or .*'translation:8'"):
        corpus_of([Text("a", [[1, 1]])], "translation:8")


def test_crops_need_no_table() -> None:
    corpus = corpus_of([Text("a", [[1, 1, 1]], [1])], tables=False)
    assert len(RandomCrops(1, 2, False, 0.0).examples(corpus, 1, False)) == 1
    assert token_groups.NONE not in corpus.words
