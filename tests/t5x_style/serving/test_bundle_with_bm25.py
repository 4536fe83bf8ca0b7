"""A served bundle with BM25: its modes, their scores, why a passage was found, and updates."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from t5x_style.evaluation import fusion as evaluated
from t5x_style.interfaces.representation import KINDS
from t5x_style.retrieval import analysis
from t5x_style.retrieval.bm25 import Bm25Index
from t5x_style.retrieval.lexical import bm25_fusion
from t5x_style.retrieval.lexical.bm25_fusion import Fusion, FusionError
from t5x_style.serving import bundle, bundle_update, bundling
from t5x_style.serving.bundle import BundleError
from t5x_style.serving.bundle_update import Changes
from t5x_style.serving.opened.bundle_service import BundleService
from t5x_style.serving.service import BM25, HYBRID, Encoded, RequestError
from tests.kits import retrieval_helpers as helpers
from tests.t5x_style.serving import bundle_kit

FUSION = Fusion(0.4, 1000)
QUESTION = bundle_kit.QUESTION
ALL = [KINDS, ("dense",), ("sparse",), ("multi_vector",)]


@pytest.fixture(scope="module", params=ALL, ids=["three kinds", *KINDS])
def folder(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bundle")
    return bundle_kit.publish(root, fusion=FUSION, kinds=request.param)


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[BundleService]:
    made = BundleService(folder / "versions/1")
    yield made
    made.close()


def asked(service: BundleService, text: str = QUESTION) -> Encoded:
    tokens = service.tokenize("query", text)
    encoded = service.submit("query", tokens, service.facts.kinds).result()
    return dataclasses.replace(encoded, text=text)


def words() -> Bm25Index:
    texts = [one.content for one in bundle_kit.PASSAGES]
    return Bm25Index(texts, [one.id for one in bundle_kit.PASSAGES])


def by_id(hits) -> dict[str, float]:
    return {hit.id: hit.score for hit in hits}


def expected_sums(service: BundleService) -> dict[str, float]:
    """Of the model's list and BM25's, as an evaluation adds them."""
    bare = dataclasses.replace(service._search, fusion=None)
    mode = HYBRID if HYBRID in bare.modes else service.facts.kinds[0]
    ids = [one.id for one in bundle_kit.PASSAGES]
    model = [(ids[row], score) for row, score, _ in bare.search(asked(service), mode, 5, None)]
    scores = words().score(QUESTION)
    lexical = [(ids[row], float(scores[row])) for row in np.argsort(-scores) if scores[row]]
    return dict(evaluated.linear({"q": model}, {"q": lexical}, FUSION.weight, 5)["q"])


def test_modes_are_the_kinds_bm25_and_all_as_one(service) -> None:
    assert service.facts.modes == (*service.facts.kinds, BM25, HYBRID)
    assert service.needs(BM25) == ()
    assert set(service.needs(HYBRID)) == set(service.facts.kinds)


def test_bm25_needs_no_model(service) -> None:
    hits = service.search(Encoded(text=QUESTION), BM25, 5)
    scores = words().score(QUESTION)
    expected = {bundle_kit.PASSAGES[row].id: scores[row] for row in np.flatnonzero(scores)}
    assert by_id(hits) == pytest.approx(expected, abs=1e-5)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(set(hit.scores) == {BM25} for hit in hits)
    assert not service.search(Encoded(text="zebra"), BM25, 5)


def test_all_as_one_adds_what_the_evaluation_added(service) -> None:
    hits = service.search(asked(service), HYBRID, 5)
    assert by_id(hits) == pytest.approx(expected_sums(service), abs=1e-5)
    for hit in hits:
        assert set(hit.scores) == {*service.needs(HYBRID), BM25}


@pytest.mark.parametrize("mode", [BM25, HYBRID])
def test_a_source_is_searched_alone(service, mode) -> None:
    hits = service.search(asked(service), mode, 5, "water/")
    everywhere = by_id(service.search(asked(service), mode, 5))
    assert {hit.id for hit in hits} == {"a", "b"} & everywhere.keys()
    if mode != HYBRID:  # whose scale is that of the passages that are compared
        assert by_id(hits) == pytest.approx({hit.id: everywhere[hit.id] for hit in hits}, abs=1e-5)
    with pytest.raises(RequestError, match="with which none begins"):
        service.search(asked(service), mode, 5, "fire")


def test_evidence_of_a_vector_and_bm25_are_stems_that_add_up(service) -> None:
    hit = service.search(asked(service), HYBRID, 1)[0]
    why = service.evidence(service.tokenize("query", QUESTION), asked(service), hit.id)
    parts = [one.query_weight * one.passage_weight for one in why.words]
    assert parts == sorted(parts, reverse=True)
    kind = "sparse" if "sparse" in service.facts.kinds else BM25
    assert sum(parts) == pytest.approx(hit.scores[kind], abs=1e-4)


def test_nothing_is_compiled_after_the_warm_up(folder) -> None:
    made = BundleService(folder / "versions/1")
    assert made.warm_up() > 0
    count = made.programs.compiled
    made.search(asked(made), HYBRID, 3)
    assert made.programs.compiled == count
    made.close()


def test_an_update_counts_words_again(folder, tmp_path) -> None:
    made = Path(shutil.copytree(folder, tmp_path / "bundle"))
    new = {"_id": "f", "text": "The sea, the sea and the river."}
    (tmp_path / "changes.jsonl").write_text(json.dumps(new) + '\n{"_id": "b", "delete": true}\n')
    done = bundle_update.update(made, Changes.read(tmp_path / "changes.jsonl"))
    service = BundleService(done.version)
    kept = [one for one in bundle_kit.PASSAGES if one.id != "b"]
    texts, ids = [*(one.content for one in kept), new["text"]], [*(one.id for one in kept), "f"]
    scores = bm25_fusion.over(texts, ids, FUSION).words.score(QUESTION)
    expected = {ids[row]: scores[row] for row in np.flatnonzero(scores)}
    hits = service.search(Encoded(text=QUESTION), BM25, 9)
    service.close()
    assert by_id(hits) == pytest.approx(expected, abs=1e-5) and "f" in expected


def test_a_model_that_reads_passages_is_refused(tmp_path) -> None:
    reads = {"answer": SimpleNamespace(kind="answer")}
    model = SimpleNamespace(contract=helpers.CONTRACT, restored=object(), functions=reads)
    index = SimpleNamespace(kind="dense")
    with pytest.raises(BundleError, match="the scores that it gives them, found one with BM25"):
        bundling.publish(tmp_path, "run", model, index, "tokenizer", None, fusion=FUSION)


def test_how_bm25_is_added_is_read_with_care(folder, tmp_path) -> None:
    """The hash is right here: what is damaged otherwise is found before."""
    made = Path(shutil.copytree(folder, tmp_path / "bundle")) / "versions/1"
    assert (made / bundle.INDEXES / BM25).is_dir()
    assert analysis.LanguageAnalyzer(Fusion.load(made).language).facts == {"stemmer": "english"}
    (made / bm25_fusion.FILE).write_text('{"weight": 7, "depth": 1}')
    with pytest.raises(FusionError):
        Fusion.load(made)
