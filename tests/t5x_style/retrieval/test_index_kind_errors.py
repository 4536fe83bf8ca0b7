"""Sparse and multi-vector queries, passages and folders that no index takes."""

import numpy as np
import pytest

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.representation import ENTRIES, Entries, RepresentationError, none_of
from t5x_style.retrieval import encoding, exact_index, published_index, versioned_folder
from tests.kits import retrieval_helpers as helpers
from tests.kits.toys.random_entries import entries

TYPES = {"sparse": exact_index.ExactSparse(), "multi_vector": exact_index.ExactMultiVector()}


def test_exact_indexes_refuse_queries_they_cannot_answer():
    def ask(kind, queries, k=3):
        made = entries(kind, 5, empty=0)
        index = exact_index.ExactIndex(made, list("abcde"), helpers.CONTRACT, kind=kind)
        with pytest.raises(index_lib.QueryError) as error:
            index.search(queries, k)
        return str(error.value)

    weights = {"tokens": np.array([1, 2, 3], np.int32), "weights": np.zeros(3, np.float32)}
    broken = weights | {"weights": np.array([1, np.inf, 1], np.float32)}
    wide = Entries(np.array([0, 1]), {"vectors": np.zeros((1, 7), np.float32)})
    doubles = Entries(np.array([0, 1]), {"vectors": np.zeros((1, 4))})
    offsets = np.array([0, 1, 3])
    assert "found float32[3, 16]" in ask("sparse", helpers.vectors(3))
    assert "'tokens': 'int32'" in ask("sparse", wide)
    assert "found {'vectors': 'float64[1, 4]'}" in ask("multi_vector", doubles)
    negative = weights | {"tokens": np.array([1, -2, 3], np.int32)}
    assert "token ids from 0 on, found -2" in ask("sparse", Entries(offsets, negative))
    assert "expected rising offsets" in ask("sparse", Entries(np.array([1, 2, 3]), weights))
    assert "expected rising offsets" in ask("sparse", Entries(np.array([0, 1, 2]), weights))
    assert "expected rising offsets" in ask("sparse", Entries(np.array([0, 4, 3]), weights))
    flat = Entries(offsets, {"vectors": np.zeros(3, np.float32)})
    assert "arrays of rank 2, found {'vectors': 'float32[3]'}" in ask("multi_vector", flat)
    assert "vectors of 4 dimensions, those of the index, found 7" in ask("multi_vector", wide)
    assert "NaN or Inf in row 1 (1 of 2 rows)" in ask("sparse", Entries(offsets, broken))
    assert "k of at least 1, found 0" in ask("sparse", Entries(offsets, weights), 0)


@pytest.mark.parametrize("kind", ENTRIES)
def test_passages_that_cannot_be_indexed_are_refused(kind, tmp_path):
    type_of_index = TYPES[kind]

    def publish(passages, ids=None, kind=kind):
        given = ids or [f"p{n}" for n in range(len(passages))]
        made = encoding.Embeddings(passages, given, helpers.CONTRACT, kind=kind)
        published_index.publish(tmp_path, made, type_of_index, keep=1)

    good = entries(kind, 9)
    with pytest.raises(RepresentationError, match=f"'{kind}', but the embeddings .* 'dense'"):
        publish(helpers.vectors(5), kind="dense")
    with pytest.raises(ValueError, match=f"expected {kind} entries.* found float32"):
        publish(helpers.vectors(5))
    with pytest.raises(ValueError, match="expected 9 ids"):
        publish(good, ids=["a"])
    with pytest.raises(ValueError, match="1 repeated"):
        publish(good, ids=[*"abcdefgh", "a"])
    with pytest.raises(ValueError, match="found 3 passages without any entry"):
        publish(Entries(np.zeros(4, np.int64), none_of(kind).arrays))
    name = "weights" if kind == "sparse" else "vectors"
    broken = {**good.arrays, name: good.arrays[name].copy()}
    broken[name][good.offsets[6]] = np.nan
    at = int(np.searchsorted(good.offsets, good.offsets[6], side="right")) - 1
    with pytest.raises(ValueError, match=rf"passage 'p{at}' \(row {at}\) holds NaN"):
        publish(Entries(good.offsets, broken))
    with pytest.raises(ValueError, match="found 9 passages that are all 0"):
        publish(Entries(good.offsets, {**good.arrays, name: good.arrays[name] * 0}))
    with pytest.raises(ValueError, match="expected one of the kinds .* found 'colour'"):
        exact_index.ExactIndex(good, [*"abcdefghi"], helpers.CONTRACT, kind="colour")
    assert versioned_folder.published(tmp_path) == []


@pytest.mark.parametrize("kind", ENTRIES)
def test_damage_is_found(kind, tmp_path):
    made = encoding.Embeddings(entries(kind, 9), [*"abcdefghi"], helpers.CONTRACT, kind=kind)
    published_index.publish(tmp_path, made, TYPES[kind], keep=1)
    version = versioned_folder.current(tmp_path)
    record = index_lib.IndexRecord(made.ids, made.contract)
    np.save(version / f"{kind}_offsets.npy", made.passages.offsets + 1)
    with pytest.raises(index_lib.IndexDamaged, match="_offsets.npy: its bytes changed"):
        published_index.load(tmp_path)
    with pytest.raises(index_lib.IndexDamaged, match="expected rising offsets from 0 to the num"):
        TYPES[kind].load(version, record)
