"""What vectors find that are cut to their first dimensions."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_style import evaluate_short_vectors
from t5x_style.interfaces.contract import ContractError
from t5x_style.retrieval import embedding_shards
from tests.kits import retrieval_helpers as helpers

CONTRACT = dataclasses.replace(helpers.CONTRACT, dimension=3)
# Two dimensions say what a text is about; the third leads both queries to passage p4.
PASSAGES = np.array([[4, 0, 0], [0, 4, 0], [-4, 0, 0], [0, -4, 0], [0.1, 0.1, 4]], np.float32)
QUERIES = np.array([[1, 0, 2], [0, 1, 2]], np.float32)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Encoder:
    """Knows the vectors of two queries."""

    contract, fingerprint = CONTRACT, "encoder"

    def encode(self, side, source, kind="dense"):
        assert side == "query" and source == (["q0", "q1"], "how to read a csv file", 8, "")
        return unit(QUERIES)


def source(ids, texts, length, prefix):
    return ids, texts[0], length, prefix


@pytest.fixture
def measured(tmp_path):
    """Measures an encoder with vectors of the passages of a small collection."""
    corpus = helpers.write_corpus(tmp_path / "corpus")
    ids = [passage[0] for passage in helpers.PASSAGES]
    storage = embedding_shards.Storage(shard_size=2, dtype="float32")
    with embedding_shards.ShardWriter(tmp_path / "vectors", "v", storage, ids) as writer:
        for number in writer.missing():
            start, end = storage.bounds(len(ids))[number]
            writer.write(number, {"dense": unit(PASSAGES)[start:end]})
        writer.finish(CONTRACT, "encoder")

    def run(encoder=None, lengths=(2,), depth=5):
        outputs = evaluate_short_vectors.evaluate_short_vectors(
            corpus, "test", encoder or Encoder(), source, str(tmp_path / "vectors"), lengths, depth,
            ["MRR@3"], str(tmp_path),
        )  # fmt: skip
        return json.loads((tmp_path / outputs["scores"]).read_text())

    return run


def test_whole_vectors_and_each_length_are_measured(measured, capsys):
    found = measured()
    assert list(found) == ["3", "2"]
    assert found["3"]["metrics"]["MRR@3"] == [0.5, 0.5]  # p4 comes first
    assert found["2"]["metrics"]["MRR@3"] == [1.0, 1.0]
    assert found["2"]["passages"] == 5 and found["2"]["queries"] == ["q0", "q1"]
    assert "2 of 3 dimensions: {'MRR@3': 1.0}" in capsys.readouterr().err


def test_cut_vectors_are_compared_as_whole_ones_are():
    vectors = np.array([[3, 4, 5], [0, 0, 1]], np.float32)
    cut = evaluate_short_vectors.cut(vectors, 2, CONTRACT)
    np.testing.assert_allclose(cut, [[0.6, 0.8], [0, 0]], rtol=1e-6)
    dot = dataclasses.replace(CONTRACT, normalise=False, similarity="dot")
    np.testing.assert_array_equal(evaluate_short_vectors.cut(vectors, 2, dot), vectors[:, :2])


@pytest.mark.parametrize(
    "lengths,message",
    [((3,), "fewer dimensions than the 3"), ((2, 2), "distinct"), ((0,), "found \\[0\\]")],
)
def test_lengths_that_cannot_be_are_refused(measured, lengths, message):
    with pytest.raises(ValueError, match=message):
        measured(lengths=lengths)


def test_vectors_of_another_model_are_refused(measured):
    other = Encoder()
    other.fingerprint = "another"
    with pytest.raises(ContractError, match="checkpoint encoder, but checkpoint another"):
        measured(other)
    other.contract = dataclasses.replace(CONTRACT, pooling="mean")
    with pytest.raises(ContractError, match="pooling: expected 'mean', found 'cls'"):
        measured(other)
