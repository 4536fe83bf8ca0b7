"""A served bundle: the model's numbers, all modes of search, and why a passage was found."""

import dataclasses
import functools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipelines.tokenizers import tokenization
from t5x_style.interfaces.representation import KINDS, Entries
from t5x_style.retrieval import hybrid, similarity
from t5x_style.retrieval.exact_index import ExactIndex
from t5x_style.serving import encoded_texts, token_batches
from t5x_style.serving.opened import bundle_service, passage_search
from t5x_style.serving.opened.bundle_service import BundleService
from t5x_style.serving.opened.passage_sources import Sources
from t5x_style.serving.programs import Programs
from t5x_style.serving.service import HYBRID, Encoded, RequestError
from t5x_style.serving.text_tokens import TextTokenizer
from t5x_style.step import compile_events
from tests.kits import retrieval_helpers as helpers
from tests.t5x_style.serving import bundle_kit

TEXTS = [bundle_kit.QUESTION, "salt", "of the hills " * 20]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bundle")
    bundle_kit.publish(made)
    return made


@pytest.fixture(scope="module")
def service(root: Path):
    made = BundleService(root / "bundle/versions/1")
    yield made
    made.close()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory):
    return bundle_kit.folders(tmp_path_factory.mktemp("model") / "parts")


def encode(service: BundleService, side: str, texts: list[str], kinds=KINDS) -> list[Encoded]:
    return [
        future.result()
        for future in [service.submit(side, service.tokenize(side, one), kinds) for one in texts]
    ]


def numbers(one: Encoded, kind: str) -> np.ndarray:
    found = getattr(one, kind)
    return found[1] if kind == "sparse" else np.ravel(found)


@pytest.mark.parametrize("side", ["query", "passage"])
def test_texts_become_what_the_model_makes_of_them(service, parts, side) -> None:
    tokenizer, trained, _ = parts
    expected = bundle_kit.represented(trained, tokenizer, TEXTS, side)
    found = encoded_texts.as_representations(encode(service, side, TEXTS))
    assert set(found) == set(KINDS)
    for kind, one in expected.items():
        if not isinstance(one, Entries):
            np.testing.assert_allclose(found[kind], one, atol=1e-5)
            continue
        np.testing.assert_array_equal(found[kind].offsets, one.offsets)
        for name, array in one.arrays.items():
            np.testing.assert_allclose(found[kind].arrays[name], array, atol=1e-5, err_msg=kind)


def test_one_kind_alone_is_the_same(service) -> None:
    (every,) = encode(service, "query", TEXTS[:1])
    for kind in KINDS:
        (alone,) = encode(service, "query", TEXTS[:1], (kind,))
        assert [getattr(alone, other) is None for other in KINDS].count(False) == 1
        np.testing.assert_array_equal(numbers(alone, kind), numbers(every, kind), err_msg=kind)


def test_what_is_cut_off_is_counted(service) -> None:
    whole = service.tokenize("query", TEXTS[2])
    assert len(whole.ids) == bundle_kit.QUERY_LENGTH
    assert whole.cut_off > 20
    assert service.tokenize("query", "salt").cut_off == 0


def test_places_are_of_the_text_without_its_prefix(service) -> None:
    tokens = service.tokenize("query", "Salt water")
    words = [
        "Salt water"[slice(*place)]
        for place, piece in zip(tokens.places, tokens.pieces, strict=True)
        if place is not None and not piece.startswith("[")
    ]
    assert "".join(words) == "Saltwater"


@pytest.mark.parametrize("mode", [*KINDS, HYBRID])
def test_every_mode_finds_what_its_scores_say(service, parts, mode) -> None:
    tokenizer, trained, _ = parts
    index = bundle_kit.combined(trained, tokenizer, bundle_kit.PASSAGES)
    asked = bundle_kit.represented(trained, tokenizer, [bundle_kit.QUESTION], "query")
    scores = {
        kind: similarity.scores(kind, asked[kind], index.searched.passages[kind][:])
        for kind in KINDS
    }
    expected = scores[mode][0] if mode != HYBRID else hybrid.weighted(scores, index.weights)[0]
    (query,) = encode(service, "query", [bundle_kit.QUESTION], service.needs(mode))
    hits = service.search(query, mode, 3)
    best = np.argsort(-expected, kind="stable")[:3]
    if mode == "sparse":
        best = best[expected[best] > 0]  # nothing in common is no hit
    assert [hit.id for hit in hits] == [bundle_kit.PASSAGES[row].id for row in best]
    np.testing.assert_allclose([hit.score for hit in hits], expected[best], atol=1e-4)
    for hit, row in zip(hits, best, strict=True):
        assert hit.text == bundle_kit.PASSAGES[row].text
        for kind, score in hit.scores.items():
            assert score == pytest.approx(float(scores[kind][0, row]), abs=1e-4)


def test_a_source_is_searched_whole(service) -> None:
    (query,) = encode(service, "query", [bundle_kit.QUESTION])
    for mode in service.facts.modes:
        everything = service.search(query, mode, 10)
        water = service.search(query, mode, 10, "water/")
        scores = {hit.id: hit.score for hit in everything}
        assert {hit.id for hit in water} == {"a", "b"} & scores.keys()
        assert [hit.score for hit in water] == pytest.approx(
            [scores[hit.id] for hit in water], abs=1e-4
        )
    with pytest.raises(RequestError, match="found 'fire', with which none begins"):
        service.search(query, HYBRID, 3, "fire")


def test_more_hits_than_passages_are_all_passages(service) -> None:
    (query,) = encode(service, "query", [bundle_kit.QUESTION])
    assert len(service.search(query, "dense", 1000)) == len(bundle_kit.PASSAGES)


def test_evidence_adds_up_to_the_scores(service) -> None:
    question = service.tokenize("query", bundle_kit.QUESTION)
    (query,) = encode(service, "query", [bundle_kit.QUESTION])
    hit = service.search(query, HYBRID, 1)[0]
    why = service.evidence(question, query, hit.id)
    parts = [one.query_weight * one.passage_weight for one in why.words]
    assert parts == sorted(parts, reverse=True)
    assert sum(parts) == pytest.approx(hit.scores["sparse"], abs=1e-4)
    assert why.max_sim.max(axis=1).sum() == pytest.approx(hit.scores["multi_vector"], abs=1e-4)
    assert why.max_sim.shape == (len(why.query_pieces), len(why.passage_pieces))
    assert why.passage_pieces == list(why.passage.pieces[1:])  # [CLS] has no vector
    assert why.content == "Rivers The river runs to the sea, and the sea is wide." or hit.id != "a"


def test_what_there_is_not_is_refused(service) -> None:
    (query,) = encode(service, "query", ["salt"])
    question = service.tokenize("query", "salt")
    with pytest.raises(RequestError, match="expected a passage of the bundle, found 'z'"):
        service.evidence(question, query, "z")
    for asked in ("\u2028" * 10**6, "/tmp/\x00"):
        with pytest.raises(RequestError) as refused:
            service.evidence(question, query, asked)
        assert str(refused.value).isascii() and len(str(refused.value)) < 200
        with pytest.raises(RequestError) as refused:
            service.search(query, HYBRID, 3, asked)
        assert str(refused.value).isascii() and len(str(refused.value)) < 200
    with pytest.raises(RequestError, match="mode: expected one of .*'hybrid'.*, found 'fuzzy'"):
        service.needs("fuzzy")
    for k in (0, -1):
        with pytest.raises(RequestError, match=f"expected at least 1, found {k}"):
            service.search(query, "dense", k)
    with pytest.raises(RequestError, match="half of a surrogate pair at character 1"):
        service.tokenize("query", "a\ud800b")


def test_a_map_needs_dense_vectors(service, monkeypatch) -> None:
    found = service.map().result(60)
    assert list(found.ids) == [one.id for one in bundle_kit.PASSAGES]
    assert service.map().result(0) is found
    others = {kind: one for kind, one in service._search.passages.items() if kind != "dense"}
    monkeypatch.setattr(service, "_search", dataclasses.replace(service._search, passages=others))
    with pytest.raises(RequestError, match="found one with sparse, multi_vector"):
        service.map()


def test_passages_of_a_request_are_scored_as_those_of_the_index(service) -> None:
    (query,) = encode(service, "query", [bundle_kit.QUESTION])
    contents = [f"{one.title} {one.text}".strip() for one in bundle_kit.PASSAGES[:3]]
    found = service.similarity(query, encode(service, "passage", contents))
    hits = {hit.id: hit.score for hit in service.search(query, "dense", 10)}
    assert found == pytest.approx([hits[one] for one in "abc"], abs=1e-4)


def test_nothing_is_compiled_after_the_warm_up(root) -> None:
    service = BundleService(root / "bundle/versions/1")
    seconds: list[float] = []
    try:
        service.warm_up()
        compile_events.observe(service, lambda _, one: seconds.append(one))
        for texts in (["a"], TEXTS, TEXTS * 30):
            encode(service, "query", texts)
            encode(service, "passage", texts)
        (query,) = encode(service, "query", ["salt"])
        for mode in service.facts.modes:
            for k in (1, 300, 301):
                service.search(query, mode, k)
        assert not seconds
    finally:
        service.close()


def test_opening_stops_between_its_steps(root, service, monkeypatch) -> None:
    with pytest.raises(token_batches.Stopped):
        BundleService(root / "bundle/versions/1", stopped=lambda: True)
    searches: list[str] = []
    monkeypatch.setattr(service.batches, "warm_up", lambda *_: 0)
    monkeypatch.setattr(service, "search", lambda query, mode, k: searches.append(mode))
    with pytest.raises(token_batches.Stopped):
        service.warm_up(stopped=lambda: len(searches) == 2)
    assert len(searches) == 2


@pytest.mark.parametrize("candidates", [3, 200, 500])
def test_numbers_of_hits_share_the_widths_that_an_exact_index_compiles(candidates) -> None:
    """With many passages: those of the bundle above are fewer than the least width."""
    passages = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)
    contract = dataclasses.replace(helpers.CONTRACT, dimension=4)
    index = ExactIndex(passages, list(map(str, range(3000))), contract)
    vectors = Entries(np.arange(3001), {"vectors": passages})
    made = passage_search.PassageSearch(
        {"multi_vector": vectors}, {"dense": index}, None, candidates, Sources([""] * 3000)
    )
    query = Encoded(passages[0], None, passages[:2])
    for k in passage_search.SIZES:
        made.search(query, "multi_vector", k, None)
    seconds: list[float] = []
    compile_events.observe(index, lambda _, one: seconds.append(one))
    for k in (5, candidates + 100, candidates + 101):
        assert len(made.search(query, "multi_vector", k, None)) == k
    assert not seconds


def test_threads_compile_a_shape_once(root) -> None:
    made = Programs(root / "bundle/versions/1/programs")
    real = made._calls["embed_query"]
    lowered: list[object] = []
    counted = SimpleNamespace(lower=lambda *given: lowered.append(given) or real.lower(*given))
    made._calls["embed_query"] = counted
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: made.compile("embed_query", (3, 7)), range(4)))
    assert made.compiled == len(lowered) == 1


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_tokens_are_those_of_training(text: str) -> None:
    tokenizer, _, contract = _parts_once()
    served = TextTokenizer(Path(tokenizer), contract)
    trained = tokenization.Tokenizer(str(tokenizer))
    for side, prefix, length in (("query", "ask: ", 12), ("passage", "", 24)):
        (expected,) = trained.encode_batch([prefix + text], length)
        (found,) = served(side, [text])
        np.testing.assert_array_equal(found.ids, expected.tokens)
        assert found.cut_off == expected.cut_off


@functools.cache
def _parts_once():
    """Hypothesis takes no fixtures of functions."""
    return bundle_kit.folders(Path(tempfile.mkdtemp()) / "parts")


def test_pieces_of_a_longer_query_are_masks() -> None:
    tokens = bundle_service.Tokens(np.arange(2), ["[CLS]", "a"], [None, (0, 1)], 0)
    assert bundle_service._pieces_of(tokens, 4) == ["[CLS]", "a", "[MASK]", "[MASK]"]
    assert bundle_service._pieces_of(tokens, 1) == ["a"]
