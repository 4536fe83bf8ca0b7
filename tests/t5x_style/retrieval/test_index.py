"""Exact search, publishing, encoding and the embeddings folder."""

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import ContractError
from t5x_style.retrieval import (
    encoding,
    exact_index,
    representation_files,
    text_collector,
    versioned_folder,
)
from tests.kits import retrieval_helpers as helpers

IDS = [f"p{i}" for i in range(50)]


@pytest.fixture(name="exact")
def make_exact():
    return exact_index.ExactIndex(helpers.vectors(50), IDS, helpers.CONTRACT)


@pytest.mark.parametrize("passage_block,query_block", [(7, 3), (64, 256), (1, 1), (50, 5)])
def test_exact_search_equals_a_sort_of_all_scores(passage_block, query_block):
    passages, queries = helpers.vectors(50), helpers.vectors(11, seed=3)
    scores, rows = exact_index.top_k(
        queries, passages, 9, passage_block=passage_block, query_block=query_block
    )
    products = queries @ passages.T
    np.testing.assert_array_equal(rows, np.argsort(-products, axis=1, kind="stable")[:, :9])
    np.testing.assert_allclose(scores, np.sort(products)[:, ::-1][:, :9], atol=1e-6)


class OnDisk:
    """Vectors that are read in blocks of at most 20."""

    def __init__(self, array):
        self.array, self.shape, self.ndim, self.dtype = array, array.shape, 2, array.dtype

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        found = self.array[rows]
        assert len(found) <= 20
        return found


def test_vectors_are_written_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(representation_files, "_BLOCK", 20)
    monkeypatch.setattr(index_lib, "check_passages", lambda kind, passages, ids: None)
    vectors = helpers.vectors(50)
    exact_index.ExactIndex(OnDisk(vectors), IDS, helpers.CONTRACT).save(tmp_path)
    np.save(tmp_path / "whole.npy", vectors)
    assert (tmp_path / "vectors.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_ties_are_broken_by_row_across_blocks():
    passages = np.ones((10, 16), np.float32)
    _, rows = exact_index.top_k(passages[:2], passages, 6, passage_block=4)
    np.testing.assert_array_equal(rows, [[0, 1, 2, 3, 4, 5]] * 2)


def test_vectors_that_stay_on_the_device_give_the_same_and_are_not_copied(monkeypatch):
    monkeypatch.setitem(exact_index.PASSAGE_BLOCK, "dense", 64)
    vectors, ids = helpers.vectors(300), list(map(str, range(300)))
    on_disk, resident = (
        exact_index.ExactIndex(vectors, ids, helpers.CONTRACT, resident=one) for one in (0, 1)
    )
    for queries, k in ((1, 5), (7, 400)):
        found = zip(*(one.search(vectors[:queries], k) for one in (on_disk, resident)), strict=True)
        for one, other in found:
            np.testing.assert_array_equal(one, other)
    prepared = []
    real = exact_index._prepared
    monkeypatch.setattr(
        exact_index, "_prepared", lambda *given: prepared.append(given[2]) or real(*given)
    )
    resident.search(vectors[:1], 5)
    assert prepared == [1]  # the query


def test_more_hits_than_passages_are_padded(exact):
    scores, rows = exact.search(helpers.vectors(2), 60)
    assert scores.shape == rows.shape == (2, 60)
    assert (rows[:, 50:] == index_lib.NO_ROW).all() and np.isneginf(scores[:, 50:]).all()
    assert sorted(rows[0, :50]) == list(range(50))


def test_bad_embeddings_are_refused():
    good = helpers.vectors(3)
    broken = good.copy()
    broken[1, 2] = np.inf
    for vectors, ids, message in (
        (good, ["a", "b"], "expected 3 ids"),
        (good, ["a", "b", "a"], "distinct ids"),
        (broken, ["a", "b", "c"], "passage 'b' .row 1. holds NaN"),
        (good.astype(np.float16), ["a", "b", "c"], "float16"),
        (good[:0], [], "at least one passage"),
        (good[:, :4].copy(), ["a", "b", "c"], "contract says 16 dimensions"),
    ):
        with pytest.raises(ValueError, match=message):
            exact_index.ExactIndex(vectors, ids, helpers.CONTRACT)


def test_vectors_of_another_checkpoint_are_refused():
    ids = [f"p{n}" for n in range(3)]
    made = exact_index.ExactIndex(helpers.vectors(3), ids, helpers.CONTRACT, "one")
    index_lib.check_checkpoint(made, "one", "the index")
    with pytest.raises(ContractError, match="of checkpoint one, but checkpoint other embeds"):
        index_lib.check_checkpoint(made, "other", "the index")
    silent = exact_index.ExactIndex(helpers.vectors(3), ids, helpers.CONTRACT)
    index_lib.check_checkpoint(silent, "other", "the index")


def test_another_contract_is_refused(exact):
    other = dataclasses.replace(helpers.CONTRACT, pooling="mean", query_prefix="query: ")
    with pytest.raises(ContractError, match="(?s)pooling.*query_prefix"):
        index_lib.check_contract(exact, other, "the index")


def test_cosine_without_unit_vectors_is_refused():
    contract = dataclasses.replace(helpers.CONTRACT, normalise=False)
    with pytest.raises(ValueError, match="not normalised"):
        exact_index.ExactIndex(helpers.vectors(3), ["a", "b", "c"], contract)


def test_an_interrupted_publish_leaves_the_last_version(tmp_path):
    with versioned_folder.new_version(tmp_path, {}, keep=2) as version:
        (version / "file").write_text("one")
    with (
        pytest.raises(KeyboardInterrupt),
        versioned_folder.new_version(tmp_path, {}, keep=2) as version,
    ):
        (version / "file").write_text("half")
        raise KeyboardInterrupt
    assert not (tmp_path / "versions" / "2.tmp").exists()
    (tmp_path / "versions" / "2.tmp").mkdir()  # what a kill leaves
    assert (versioned_folder.current(tmp_path) / "file").read_text() == "one"
    for text in ("two", "three"):
        with versioned_folder.new_version(tmp_path, {}, keep=2) as version:
            (version / "file").write_text(text)
    assert versioned_folder.published(tmp_path) == [2, 3]
    assert (versioned_folder.current(tmp_path) / "file").read_text() == "three"
    assert not list(tmp_path.glob("versions/*.tmp"))


def test_a_second_writer_waits_and_leaves_the_files_of_the_first(tmp_path, monkeypatch):
    waits = threading.Event()
    monkeypatch.setattr(versioned_folder, "_waiting", lambda folder: waits.set())

    def write():
        with versioned_folder.new_version(tmp_path, {}, keep=2) as version:
            (version / "file").write_text("two")

    second = threading.Thread(target=write)
    with versioned_folder.new_version(tmp_path, {}, keep=2) as version:
        (version / "file").write_text("one")
        second.start()
        assert waits.wait(10)
        assert (version / "file").read_text() == "one"
    second.join()
    texts = [(tmp_path / f"versions/{one}/file").read_text() for one in (1, 2)]
    assert texts == ["one", "two"]
    assert not list(tmp_path.rglob("*.lock"))


def test_a_kill_between_rename_and_pointer_keeps_the_old_version_current(tmp_path, monkeypatch):
    with versioned_folder.new_version(tmp_path, {}, keep=2) as version:
        (version / "file").write_text("one")
    with monkeypatch.context() as patch:
        patch.setattr(
            versioned_folder,
            "write_atomically",
            _killed_at_pointer(versioned_folder.write_atomically),
        )
        with (
            pytest.raises(KeyboardInterrupt),
            versioned_folder.new_version(tmp_path, {}, keep=2) as version,
        ):
            (version / "file").write_text("two")
    assert (versioned_folder.current(tmp_path) / "file").read_text() == "one"
    with versioned_folder.new_version(tmp_path, {}, keep=2) as version:
        (version / "file").write_text("three")
    assert versioned_folder.current(tmp_path).name == "3"


def _killed_at_pointer(write):
    def killed(path, text):
        if path.name == versioned_folder.CURRENT:
            raise KeyboardInterrupt
        write(path, text)

    return killed


def test_a_pointer_to_nowhere_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="CURRENT"):
        versioned_folder.current(tmp_path)
    with versioned_folder.new_version(tmp_path, {}, keep=1) as version:
        (version / "file").write_text("one")
    (tmp_path / "CURRENT").write_text("7\n")
    with pytest.raises(index_lib.IndexDamaged, match=r"'7'.*\[1\]"):
        versioned_folder.current(tmp_path)


@jax.jit
def embed(group):
    """[B, S, 16]: the text's number in the first place, 1 in the second."""
    number = group["example_id"].astype(jnp.float32)
    return jnp.zeros((*number.shape, 16)).at[..., 0].set(number).at[..., 1].set(1.0)


@pytest.mark.parametrize("mesh", [None, MeshShape(8, 1, 1), MeshShape(2, 2, 2)])
def test_every_text_is_encoded_into_its_own_row(mesh):
    source = helpers.Source(IDS[:37], order=np.random.default_rng(0).permutation(37))
    partitioner = None if mesh is None else Partitioner(mesh)
    found = encoding.encode(embed, source, partitioner)
    assert found.dtype == np.float32 and found.shape == (37, 16)
    np.testing.assert_array_equal(found[:, 0], np.arange(37))


@pytest.mark.parametrize(
    "order,message",
    [
        ([0, 1, 3], "'p2' 0 times"),
        ([0, 1, 2, 3, 2], "'p2' 2 times"),
        ([0, 1, 2, 3, 4], "example_id 4"),
        ([], "holds no texts"),
    ],
)
def test_texts_missing_repeated_or_unknown_are_named(order, message):
    with pytest.raises(text_collector.EncodingError, match=message):
        encoding.encode(embed, helpers.Source(IDS[:4], order=order))


def test_a_vector_that_is_not_finite_is_named():
    def broken(group):
        return embed(group) / jnp.where(group["example_id"] == 2, 0.0, 1.0)[..., None]

    with pytest.raises(text_collector.EncodingError, match="1 texts hold NaN.*'p2'"):
        encoding.encode(jax.jit(broken), helpers.Source(IDS[:4]))


@pytest.mark.parametrize("rows", [3, 4, 6, 12])
@pytest.mark.parametrize("mesh", [MeshShape(8, 1, 1), MeshShape(2, 2, 2)])
def test_rows_that_do_not_divide_by_the_mesh_are_followed_by_free_ones(rows, mesh):
    shapes = set()

    @jax.jit
    def watched(group):
        shapes.add(group["tokens"].shape[0] % Partitioner(mesh).ways)
        return embed(group)

    found = encoding.encode(watched, helpers.Source(IDS[:37], rows=rows), Partitioner(mesh))
    np.testing.assert_array_equal(found[:, 0], np.arange(37))
    assert shapes == {0}


def test_free_rows_are_as_those_of_a_source():
    source = helpers.Source(IDS[:3], rows=3)
    (whole,) = helpers.Source(IDS[:3], rows=8).batches()
    (group,) = source.batches()
    found = encoding.fitting(group, Partitioner(MeshShape(8, 1, 1)))
    for name, array in whole.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype == array.dtype
    assert encoding.fitting(whole, Partitioner(MeshShape(8, 1, 1))) is whole
    assert encoding.fitting(group, None) is group


@pytest.mark.parametrize("field", ["segment_length", "prefix", "tokenizer_fingerprint"])
def test_a_source_tokenized_otherwise_is_refused(field):
    source = helpers.Source(IDS)
    encoding.check_source(source, helpers.CONTRACT, "query")
    setattr(source, field, 5 if field == "segment_length" else "other")
    with pytest.raises(ContractError, match=field.removeprefix("segment_")):
        encoding.check_source(source, helpers.CONTRACT, "query")


def test_several_cls_and_their_pooling_belong_together():
    source = helpers.Source(IDS)
    pooled = dataclasses.replace(helpers.CONTRACT, pooling="mcls")
    encoding.check_source(source, pooled, "query")  # a short one has one [CLS]
    with pytest.raises(ContractError, match=r"found cls_every None and pooling 'mcls'\. Set both"):
        encoding.check_source(source, pooled, "passage")
    source.cls_every = 256
    for side in ("query", "passage"):
        encoding.check_source(source, pooled, side)
        with pytest.raises(ContractError, match=f"embed_{side}.*found cls_every 256 and pooling"):
            encoding.check_source(source, helpers.CONTRACT, side)


def test_titles_that_stand_otherwise_are_refused():
    source = helpers.Source(IDS)
    encoding.check_source(source, helpers.CONTRACT, "passage")
    source.layout = "title_and_body"
    with pytest.raises(ContractError, match="passage_layout: expected 'text', found 'title_and"):
        encoding.check_source(source, helpers.CONTRACT, "passage")
    with pytest.raises(ContractError, match="for embed_query: expected the layout 'text'"):
        encoding.check_source(source, helpers.CONTRACT, "query")
    blocks = dataclasses.replace(helpers.CONTRACT, passage_layout="title_and_body")
    encoding.check_source(source, blocks, "passage")
