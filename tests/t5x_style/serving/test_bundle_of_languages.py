"""A bundle of a MARGE: chunks of documents, searched in each language."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

from input_pipelines.batches import packed_text
from input_pipelines.marge import chunk_passages
from input_pipelines.store.token_store import TokenStore
from t5x_style.interfaces.representation import DENSE, PASSAGE
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.retrieval.exact_index import ExactIndex
from t5x_style.serving import bundling
from t5x_style.serving.opened.bundle_service import BundleService
from tests.kits import chunk_stores
from tests.t5x_style.serving import writing_kit


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The service of a bundle; ids of the chunks; their vectors, not of unit length."""
    root, length = tmp_path_factory.mktemp("languages"), writing_kit.LENGTH
    documents = writing_kit.DOCUMENTS
    tokenizer = chunk_stores.make_tokenizer(root / "t", documents, writing_kit.LANGUAGES)
    store = chunk_stores.make_store(root / "s", documents, tokenizer, length)
    folder = root / chunk_passages.write_chunks(store, str(root))["corpus"]
    texts = packed_text.EncodeSource(
        store, length=length, segments=2, rows=8, segment_length=length, tokenizer=tokenizer
    )
    plain, model = (writing_kit.marge_of(tokenizer, normalise=one) for one in (False, True))
    ids = TokenStore.open(store).ids
    index = ExactIndex(model.encode(PASSAGE, texts), ids, model.contract, model.fingerprint, DENSE)
    version = bundling.publish(root / "bundle", "run", model, index, tokenizer, Passages(folder))
    with contextlib.closing(BundleService(Path(version))) as service:
        yield service, ids, plain.encode(PASSAGE, texts)


def encoded(service, text):
    tokens = service.tokenize("query", text)
    return service.submit("query", tokens, service.facts.kinds).result()


def test_each_language_is_a_source(made):
    service, ids, _ = made
    assert list(service.facts.sources) == ["de", "en"]
    query = encoded(service, writing_kit.DOCUMENTS["en/news/1"])
    for language in ("de", "en"):
        hits = service.search(query, DENSE, 100, language)
        assert {hit.id for hit in hits} == {one for one in ids if one.startswith(language)}
        assert {hit.source for hit in hits} == {language}
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    best = hits[0]
    assert (best.id, best.text) == ("en/news/1#0", writing_kit.DOCUMENTS["en/news/1"])


def test_scores_are_the_relevance_of_training(made):
    service, ids, vectors = made
    asked = list(ids).index("en/news/1#0")
    lengths = np.linalg.norm(vectors, axis=1)
    cosines = vectors @ vectors[asked] / lengths / lengths[asked]
    assert lengths.min() > 3  # of LayerNorm, as g is trained
    query = encoded(service, writing_kit.DOCUMENTS["en/news/1"])
    found = {hit.id: hit.score for hit in service.search(query, DENSE, 100)}
    assert found == pytest.approx(dict(zip(ids, cosines.tolist(), strict=True)), abs=1e-5)


def test_it_does_not_hold_what_writes_texts(made):
    service, _, _ = made
    assert set(service.programs.names) == {"embed_query", "embed_passage"}
    assert service.reader is None
