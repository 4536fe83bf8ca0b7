"""Two spans of a document: which documents have them, and where they are cut."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipelines.pairs.document_spans import Documents, DocumentSpans
from input_pipelines.pairs.pair_corpus import PairCorpus
from input_pipelines.pairs.pair_kinds import Cut
from input_pipelines.pairs.pair_mixture import PairMixture
from input_pipelines.store import layouts
from input_pipelines.store.token_store import Passages
from tests.kits import pair_mixtures
from tests.kits.pair_stores import Text, corpus_of, some_texts, write_texts
from tests.kits.tiny_stores import CLS, SEP

WORDS = st.lists(st.integers(1, 3), min_size=0, max_size=9)
DOCUMENTS = st.lists(
    st.lists(st.tuples(WORDS, st.just([]) | WORDS), min_size=1, max_size=4), min_size=1, max_size=6
).map(
    lambda found: [
        Text(f"d{d}#{p}", [body], title)
        for d, document in enumerate(found)
        for p, (body, title) in enumerate(document)
    ]
)
LAYOUTS = st.sampled_from([layouts.TEXT, layouts.TITLE_AND_BODY])


def split(passages: Passages) -> list[list[int]]:
    ends = np.cumsum(passages.lengths).tolist()
    return [passages.tokens[a:b].tolist() for a, b in itertools.pairwise([0, *ends])]


def cut(kind: DocumentSpans, corpus: PairCorpus, seed: int = 0) -> tuple[Documents, Cut]:
    """A pair of each document."""
    found = kind.examples(corpus, 1, False)
    picked = np.arange(len(found))

    def uniform(stream: int) -> np.ndarray:
        return np.random.default_rng([seed, stream]).random(len(picked))

    return found, kind.cut(corpus, found, picked, found.pairs.positives[:, :1], uniform)


def cuts_of(starts: np.ndarray, start: int, end: int, least: int) -> list[int]:
    """Word starts that leave `least` tokens of start .. end - 1 on both sides."""
    return [
        at for at in range(start, end) if starts[at] and least <= at - start <= end - start - least
    ]


@settings(max_examples=40, deadline=None)
@given(texts=DOCUMENTS, layout=LAYOUTS, least=st.integers(1, 5), seed=st.integers(0, 99))
def test_spans_are_two_bodies_or_the_two_parts_of_one(
    texts: list[Text], layout: str, least: int, seed: int
) -> None:
    corpus = corpus_of(texts, layout)
    bodies: dict[str, list[tuple[list[int], list[int]]]] = {}
    for row, text in enumerate(texts):
        whole = corpus.texts.take(np.array([row]))
        start, end = int(corpus.bodies[row]), int(corpus.ends[row])
        if end - start >= least:
            body = whole.tokens[start:end].tolist()
            places = [at - start for at in cuts_of(whole.word_starts, start, end, least)]
            bodies.setdefault(text.name.split("#")[0], []).append((body, places))
    usable = [spans for spans in bodies.values() if len(spans) > 1 or spans[0][1]]
    found, made = cut(DocumentSpans(least), corpus, seed)
    assert len(found) == len(usable) and not found.shared
    assert f"{len(usable)} of {len({text.name.split('#')[0] for text in texts})} doc" in found.found
    for one, other, spans in zip(split(made.queries), split(made.passages), usable, strict=True):
        assert all(side[0] == CLS and side[-1] == SEP for side in (one, other))
        pair = one[1:-1], other[1:-1]
        if len(spans) > 1:
            places = [[body for body, _ in spans].index(side) for side in pair]
            assert places[0] != places[1]
        else:
            ((body, places),) = spans
            assert pair[0] + pair[1] == body and len(pair[0]) in places


def test_all_pairs_of_spans_and_all_places_come() -> None:
    corpus = corpus_of([Text(f"a#{p}", [[1, 1, 1]]) for p in range(3)] + [Text("b", [[2, 1, 2]])])
    firsts = {tuple(corpus.texts.take(np.array([row])).tokens.tolist()): row for row in range(3)}
    pairs, sizes = set(), set()
    for seed in range(40):
        _, made = cut(DocumentSpans(1), corpus, seed)
        (one, first), (other, _) = split(made.queries), split(made.passages)
        pairs.add((firsts[tuple(one)], firsts[tuple(other)]))
        sizes.add(len(first) - 2)
    assert pairs == set(itertools.permutations(range(3), 2)) and sizes == {2, 3}


def test_spans_fit_both_sides() -> None:
    texts = [Text(f"a#{p}", [[2, 1, 3, 1, 2, 1, 1, 3, 1]]) for p in range(2)]
    corpus = corpus_of(texts, query_length=8, passage_length=12)
    _, made = cut(DocumentSpans(2), corpus)
    assert made.queries.lengths.max() <= 8 and made.passages.lengths.max() <= 12


def mixture(store: str, **changes: object) -> PairMixture:
    arguments: dict = {
        "passages": store, "kinds": {"spans": DocumentSpans(2)}, "weights": {"spans": 1},
        "batch": 8, "group_size": 1, "query_length": 24, "passage_length": 24, "seed": 3,
    }  # fmt: skip
    return PairMixture(**(arguments | changes))


def test_a_batch_holds_a_document_once_and_needs_no_known_positives(tmp_path: Path) -> None:
    store = write_texts(tmp_path / "s", some_texts(40), vocabulary=50)
    pairs = mixture(store)
    opened = pairs.open()
    assert opened.sizes == {"spans": 20} and not opened.may_know
    source = pair_mixtures.make(pairs)
    assert source.known_positives == 0
    seen = []
    for step in range(2):
        batch = source.batch(step)
        valid = batch["passage"]["segment_valid"]
        ids = batch["passage"]["example_id"][valid]
        assert sorted(ids) == sorted(batch["query"]["example_id"][batch["query"]["segment_valid"]])
        assert len(set(ids.tolist())) == 8 == len(set(batch["passage"]["document_id"][valid]))
        assert set(batch["query"]) & {"known"} == set()
        seen.extend(ids.tolist())
    assert len(set(seen)) == 16
    again = pair_mixtures.make(mixture(store)).batch(1)
    assert pair_mixtures.texts_of(again["query"]) == pair_mixtures.texts_of(batch["query"])


def test_documents_of_one_span_are_left_out_and_a_store_of_them_is_refused(tmp_path: Path) -> None:
    short = [Text(f"d{n}", [[1, 1]]) for n in range(6)]
    two = [Text(f"e{n}#{p}", [[1, 1]]) for n in range(3) for p in range(2)]
    kept = mixture(write_texts(tmp_path / "kept", short + two, vocabulary=50), batch=2).open()
    assert kept.sizes == {"spans": 3}
    nothing = mixture(write_texts(tmp_path / "none", short, vocabulary=50))
    with pytest.raises(ValueError, match="spans: 0 of 6 documents with two spans of 2 tokens"):
        nothing.open()


def test_one_document_is_refused_and_few_shrink_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [Text(f"e{n}#{p}", [[1, 1]]) for n in range(3) for p in range(2)]
    said = pair_mixtures.warnings_of(monkeypatch)
    assert mixture(write_texts(tmp_path / "three", texts, vocabulary=50)).open().batch == 3
    assert any("a batch has 3 pairs instead of 8" in line for line in said)
    single = mixture(write_texts(tmp_path / "one", texts[:2], vocabulary=50))
    with pytest.raises(ValueError, match="a batch of one pair has no negative"):
        single.open()


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="min_tokens: expected 1 or more, found 0"):
        DocumentSpans(0)
