"""A model of several kinds on a collection that has no index: the sum of all scores, exactly."""

import dataclasses
import json

import pytest

from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.encode_corpus import encode_corpus
from t5x_style.evaluation import text_search
from t5x_style.evaluation.evaluation_suite import EvaluationSuite
from t5x_style.evaluation.hybrid_search import HybridSearch
from t5x_style.interfaces.contract import Combination, ContractError
from t5x_style.interfaces.representation import DENSE, KINDS, MULTI_VECTOR, SPARSE
from t5x_style.retrieval import embedding_shards, exact_index, hybrid
from tests.kits.toys import three_kinds

COUNT = 40
TEXTS = three_kinds.texts(COUNT)
WEIGHTS = {DENSE: 0.5, SPARSE: 0.3, MULTI_VECTOR: 0.2}


def numbered(ids, texts, length, prefix):
    """The tokens that the number at the end of a text means."""
    source = three_kinds.Texts([TEXTS[int(text.split()[-1])] for text in texts])
    source.ids = list(ids)
    return source


@pytest.fixture(scope="module")
def model():
    return three_kinds.trained(Partitioner(MeshShape(8, 1, 1)))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("collection")
    for name, letter, word in (("corpus", "p", "text"), ("queries", "q", "question")):
        rows = [{"_id": f"{letter}{n}", "text": f"{word} {n}"} for n in range(COUNT)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "qrels").mkdir()
    judged = [f"q{n}\tp{n}\t1" for n in range(COUNT)]
    lines = ["query-id\tcorpus-id\tscore", *judged]
    (folder / "qrels/test.tsv").write_text("\n".join(lines) + "\n")
    return str(folder)


def combined(folder, contract, weights) -> str:
    combination = Combination(tuple(WEIGHTS), weights, COUNT)
    folder.mkdir(exist_ok=True)
    dataclasses.replace(contract, combination=combination).save(folder)
    return str(folder)


@pytest.mark.parametrize("weights", [WEIGHTS, None])
def test_it_lists_what_a_hybrid_over_all_passages_lists(
    model, corpus, weights, tmp_path, monkeypatch
):
    monkeypatch.setattr(text_search, "_SCORES", 7 * COUNT)  # queries in several blocks
    folder = combined(tmp_path / "combined", model.contract, weights)
    storage = embedding_shards.Storage(shard_size=32, dtype="float32")
    stored = str(tmp_path / "stored")
    passages = numbered([f"p{n}" for n in range(COUNT)], [f"text {n}" for n in range(COUNT)], 0, "")
    encode_corpus(model, passages, "embed_passage", storage, stored, KINDS)
    indexes = [exact_index.load(stored, kind) for kind in (DENSE, SPARSE)]
    searched = hybrid.load(stored, indexes, KINDS, candidates=COUNT)
    queries = numbered(
        [f"q{n}" for n in range(COUNT)], [f"question {n}" for n in range(COUNT)], 0, ""
    )
    method = "weighted" if weights else "reciprocal_rank"
    systems = [
        text_search.TextSearch("from_texts", model, numbered, folder),
        HybridSearch("indexed", model, searched, [queries], method, WEIGHTS, weights),
        text_search.TextSearch("vector", model, numbered),
    ]
    suite = EvaluationSuite(corpus, systems, 10)
    from_texts, indexed = suite.run("from_texts", "test"), suite.run("indexed", "test")
    assert from_texts.keys() == indexed.keys() and len(from_texts) == COUNT
    for query, hits in indexed.items():
        found = from_texts[query]
        assert [passage for passage, _ in found] == [passage for passage, _ in hits]
        assert [score for _, score in found] == pytest.approx([s for _, s in hits], abs=1e-6)
    assert suite.run("vector", "test") != from_texts


def test_a_combination_of_another_model_is_refused(model, tmp_path):
    other = dataclasses.replace(model.contract, query_length=model.contract.query_length + 1)
    folder = combined(tmp_path, other, WEIGHTS)
    with pytest.raises(ContractError, match="query_length"):
        text_search.TextSearch("from_texts", model, numbered, folder)
