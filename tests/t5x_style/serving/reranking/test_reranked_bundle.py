"""A served re-ranker: its scores, its order of BM25's hits, updates, and what it does not make."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from t5x_style.checkpoints.restored_model import Trained
from t5x_style.evaluation import fusion as evaluated
from t5x_style.interfaces.contract import Contract
from t5x_style.retrieval import versioned_folder
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.retrieval.bm25 import Bm25Index
from t5x_style.serving import bundle, bundle_update, bundling, saved_model
from t5x_style.serving.bundle import BundleError
from t5x_style.serving.bundle_update import Changes
from t5x_style.serving.opened.bundle_service import BundleService
from t5x_style.serving.service import BM25, RERANKED, Encoded, RequestError
from tests.t5x_style.serving import bundle_kit
from tests.t5x_style.serving.reranking import reranker_kit
from tests.t5x_style.serving.reranking.reranker_kit import FUSION, reranked

QUESTION = "where does the river go, and the sea"  # longer than the re-ranker reads
TEXTS = [one.content for one in bundle_kit.PASSAGES]
IDS = [one.id for one in bundle_kit.PASSAGES]


@pytest.fixture(scope="module", name="made")
def make_bundle(tmp_path_factory) -> tuple[Path, Trained]:
    return reranker_kit.publish(tmp_path_factory.mktemp("reranker"))


@pytest.fixture(scope="module")
def service(made) -> Iterator[BundleService]:
    with contextlib.closing(BundleService(made[0] / "versions/1")) as opened:
        yield opened


@pytest.fixture(scope="module")
def logits(made) -> np.ndarray:
    tokenizer = str(made[0].parent / "parts/tokenizer")
    return reranker_kit.logits(made[1], tokenizer, QUESTION, TEXTS)


def expected(logits: np.ndarray) -> list[tuple[str, float]]:
    """The list of an evaluation."""
    scores = Bm25Index(TEXTS, IDS).score(QUESTION)
    found = [row for row in np.argsort(-scores, kind="stable").tolist() if scores[row]]
    assert len(found) > FUSION.depth
    first = {"q": [(IDS[row], float(scores[row])) for row in found]}
    scored = [(IDS[row], float(logits[row])) for row in found[: FUSION.depth]]
    ordered = {"q": sorted(scored, key=lambda hit: -hit[1])}
    lists = ordered, evaluated.head(first, FUSION.depth)
    return evaluated.with_rest(evaluated.linear(*lists, FUSION.weight, 5), first, 5)["q"]


def test_scores_are_those_of_training(service, logits) -> None:
    reranker = service.reranker
    asked = service.tokenize("query", QUESTION)
    assert asked.cut_off > 0
    for one, logit in zip(bundle_kit.PASSAGES, logits, strict=True):
        found = service.tokenize("passage", one.content)
        pair = reranker.pair(asked, found)
        assert pair.cut_off == asked.cut_off + found.cut_off
        assert reranker.score(pair).result() == pytest.approx(float(logit), abs=1e-5)
    assert np.ptp(logits) > 0.1


def test_token_types_matter_here(made, logits) -> None:
    """Else the test above would not see that they are wrong."""
    _, model = made
    ids = np.full((1, 20), 9, np.int32)
    ids[0, [0, 6, 19]] = 1, 2, 2
    sep = model.restored.functions["score"]
    group = dict(saved_model.token_group(ids, np.ones_like(ids)))
    zeros = {**group, "token_types": np.zeros_like(ids)}
    ones = {**group, "token_types": (np.arange(20) > 6).astype(np.int32)[None]}
    assert abs(float(sep(zeros)[0, 0]) - float(sep(ones)[0, 0])) > 1e-3


def test_the_order_is_that_of_the_evaluation(service, logits) -> None:
    assert service.facts.modes == (BM25, RERANKED) and service.facts.kinds == ()
    assert service.needs(RERANKED) == () and service.facts.reranks
    hits = reranked(service, QUESTION, 5)
    wanted = expected(logits)
    assert [hit.id for hit in hits] == [name for name, _ in wanted]
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in wanted], abs=1e-5)
    words = Bm25Index(TEXTS, IDS).score(QUESTION)
    for place, hit in enumerate(hits):
        row = IDS.index(hit.id)
        assert hit.scores[BM25] == pytest.approx(words[row], abs=1e-5)
        assert (RERANKED in hit.scores) == (place < FUSION.depth)
        if place < FUSION.depth:
            assert hit.scores[RERANKED] == pytest.approx(float(logits[row]), abs=1e-5)


def test_bm25_alone(service) -> None:
    scores = Bm25Index(TEXTS, IDS).score(QUESTION)
    hits = service.search(Encoded(text=QUESTION), BM25, 2)
    assert [hit.score for hit in hits] == pytest.approx(np.sort(scores)[:-3:-1].tolist(), abs=1e-5)
    assert not reranked(service, "zebra", 2)


def test_a_source_is_searched_alone(service) -> None:
    def search(source):
        yield service.search(Encoded(text=QUESTION), BM25, 5, source)
        yield reranked(service, QUESTION, 5, source)

    for hits in search("water/"):
        assert {hit.id for hit in hits} == {"a", "b"}
    with pytest.raises(RequestError, match="with which none begins"):
        next(search("fire"))
    with pytest.raises(RequestError, match="with which none begins"):
        reranked(service, QUESTION, 5, "fire")


def test_unknown_modes_and_what_it_lacks_are_refused(service) -> None:
    with pytest.raises(RequestError, match=r"one of \['bm25', 'reranked'\], found 'dense'"):
        service.needs("dense")
    with pytest.raises(RequestError, match="found one with no representations"):
        service.map()
    assert service.reader is None


def test_evidence_are_stems(service) -> None:
    asked = service.tokenize("query", QUESTION)
    why = service.evidence(asked, Encoded(text=QUESTION), "a")
    assert [word.piece for word in why.words] and why.max_sim is None


def test_nothing_is_compiled_after_the_warm_up(made) -> None:
    with contextlib.closing(BundleService(made[0] / "versions/1")) as opened:
        assert opened.warm_up() > 0
        count = opened.programs.compiled
        reranked(opened, QUESTION, 3)
        assert opened.programs.compiled == count


def test_a_search_needs_its_pairs_scored(service) -> None:
    with pytest.raises(RequestError, match="expected 'bm25' without a re-ranker"):
        service.search(Encoded(text=QUESTION), RERANKED, 3)


def test_an_update_counts_words_again_and_encodes_nothing(made, tmp_path) -> None:
    copy = Path(shutil.copytree(made[0], tmp_path / "bundle"))
    new = {"_id": "f", "text": "The sea, the sea and the river."}
    (tmp_path / "changes.jsonl").write_text(json.dumps(new) + '\n{"_id": "b", "delete": true}\n')
    done = bundle_update.update(copy, Changes.read(tmp_path / "changes.jsonl"))
    assert (done.encoded, done.deleted, done.unchanged) == (0, 1, 4)
    with contextlib.closing(BundleService(done.version)) as opened:
        hits = reranked(opened, QUESTION, 9)
    assert "f" in {hit.id for hit in hits} and "b" not in {hit.id for hit in hits}


def test_the_folder_says_what_it_is(made) -> None:
    version = versioned_folder.current(made[0])
    assert "A re-ranker of BM25's hits among 5 passages" in (version / bundle.CARD).read_text()
    assert Contract.load(version).similarity == "score"
    assert not list((version / bundle.REPRESENTATIONS).iterdir())


@pytest.mark.parametrize("fusion", [None, dataclasses.replace(FUSION, reranked=None)])
def test_without_how_its_scores_count_there_is_nothing_to_put_in_order(tmp_path, fusion) -> None:
    with pytest.raises(BundleError, match="expected an index, or a re-ranker and how its scores"):
        reranker_kit.publish(tmp_path, fusion)


def test_a_fusion_of_a_reranker_is_none_of_an_index(made, tmp_path) -> None:
    tokenizer, model, _ = bundle_kit.folders(tmp_path / "parts")
    index = bundle_kit.combined(model, tokenizer, bundle_kit.PASSAGES)
    parts = model, index, str(tokenizer), Passages(tmp_path / "parts")
    with pytest.raises(BundleError, match="found an index, Fusion"):
        bundling.publish(tmp_path / "bundle", "run", *parts, fusion=FUSION)


def test_a_reranker_has_programs_and_no_saved_model(made) -> None:
    found = saved_model.portable(made[1].restored)
    assert list(found.functions) == ["score"]
