"""What vectors find that are cut to their first dimensions."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_style import evaluate_short_vectors
from t5x_style.interfaces.contract import ContractError
from t5x_style.interfaces.representation import DENSE, MULTI_VECTOR, Entries, RepresentationError
from t5x_style.retrieval import embedding_shards
from t5x_style.retrieval.token_vectors import cutting
from tests.kits import retrieval_helpers as helpers

CONTRACT = dataclasses.replace(helpers.CONTRACT, dimension=3)
# Two dimensions say what a text is about; the third leads both queries to passage p4.
PASSAGES = np.array([[4, 0, 0], [0, 4, 0], [-4, 0, 0], [0, -4, 0], [0.1, 0.1, 4]], np.float32)
QUERIES = np.array([[1, 0, 2], [0, 1, 2]], np.float32)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def as_kind(vectors, kind):
    """Unchanged, or as the second of two vectors of tokens; the first is of the other sign."""
    if kind == DENSE:
        return unit(vectors)
    both = np.stack([-unit(vectors), unit(vectors)], axis=1).reshape(-1, 3)
    return Entries(2 * np.arange(len(vectors) + 1), {"vectors": both})


class Encoder:
    """Knows the vectors of two queries."""

    contract, fingerprint = CONTRACT, "encoder"

    def encode(self, side, source, kind):
        assert side == "query" and source == (["q0", "q1"], "how to read a csv file", 8, "")
        return as_kind(QUERIES, kind)


def source(ids, texts, length, prefix):
    return ids, texts[0], length, prefix


@pytest.fixture
def measured(tmp_path):
    """Measures an encoder with vectors of the passages of a small collection."""
    corpus = helpers.write_corpus(tmp_path / "corpus")
    ids = [passage[0] for passage in helpers.PASSAGES]

    def run(encoder=None, lengths=(2,), depth=5, kind=DENSE, **kept):
        folder = str(tmp_path / f"vectors {kind}")
        storage = embedding_shards.Storage(shard_size=2, dtype="float32", **kept)
        with embedding_shards.ShardWriter(folder, "v", storage, ids, [kind]) as writer:
            for number in writer.missing():
                start, end = storage.bounds(len(ids))[number]
                writer.write(number, {kind: as_kind(PASSAGES, kind)[start:end]})
            writer.finish(CONTRACT, "encoder")
        outputs = evaluate_short_vectors.evaluate_short_vectors(
            corpus, "test", encoder or Encoder(), source, folder, lengths, depth, ["MRR@3"],
            str(tmp_path), kind,
        )  # fmt: skip
        return json.loads((tmp_path / outputs["scores"]).read_text())

    return run


def test_whole_vectors_and_each_length_are_measured(measured, capsys):
    found = measured()
    assert list(found) == ["3", "2"]
    assert found["3"]["metrics"]["MRR@3"] == [0.5, 0.5]  # p4 comes first
    assert found["2"]["metrics"]["MRR@3"] == [1.0, 1.0]
    assert found["2"]["passages"] == 5 and found["2"]["queries"] == ["q0", "q1"]
    shown = capsys.readouterr()
    assert "2 of 3 dimensions: {'MRR@3': 1.0}" in shown.err
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["│", "3", "│", "12", "│", "0.5000", "│"] in rows
    assert ["│", "2", "│", "8", "│", "1.0000", "│"] in rows
    assert any("+0.5000 (+0.500 to +0.500)" in line for line in shown.out.splitlines())


def test_vectors_of_tokens_are_cut_alike(measured):
    """A query's vectors have the best cosines, of their signs, with the passage's that it asks."""
    found = measured(kind=MULTI_VECTOR, lengths=(2, 1))
    assert list(found) == ["3", "2", "1"]
    assert found["3"]["metrics"]["MRR@3"] == [0.5, 0.5]
    assert found["2"]["metrics"]["MRR@3"] == [1.0, 1.0]


def test_cut_vectors_of_tokens_have_the_length_of_whole_ones():
    vectors = np.array([[3, 4, 12], [0, 0, 1], [0, 0, 0]], np.float32) / 13
    found = cutting.cut(Entries(np.array([0, 1, 3]), {"vectors": vectors}), 2)
    np.testing.assert_allclose(found.arrays["vectors"], [[0.6, 0.8], [0, 0], [0, 0]], rtol=1e-6)
    np.testing.assert_array_equal(found.offsets, [0, 1, 3])
    np.testing.assert_array_equal(vectors[0], np.float32([3, 4, 12]) / 13)


@pytest.mark.parametrize("kept", [{"pool_factor": 2}, {"token_dtype": "int8"}])
def test_vectors_that_are_kept_in_less_space_are_refused(measured, kept):
    with pytest.raises(RepresentationError, match="expected vectors of tokens kept with"):
        measured(kind=MULTI_VECTOR, **kept)


def test_a_kind_without_vectors_is_refused(tmp_path):
    corpus = helpers.write_corpus(tmp_path)
    with pytest.raises(RepresentationError, match=r"\['dense', 'multi_vector'\], found 'sparse'"):
        evaluate_short_vectors.check(corpus, "test", (2,), 5, ["MRR@3"], "sparse")


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
