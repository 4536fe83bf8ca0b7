"""Every kind of representation from one forward pass into shards and back, and what is refused."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from t5x_style.checkpoints import restored_model
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.encode_corpus import encode_corpus
from t5x_style.interfaces.index import IndexDamaged
from t5x_style.interfaces.objective import ModelFunction, dense_functions, embedding_function
from t5x_style.interfaces.representation import (
    KINDS,
    Entries,
    RepresentationError,
    function_name,
    side_of,
)
from t5x_style.retrieval import embedding_shards, encoding, exact_index, text_collector
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.serving import searcher
from t5x_style.step import jitted_functions
from tests.kits import retrieval_helpers as helpers
from tests.kits.toys import three_kinds

COUNT = 50
TEXTS = three_kinds.texts(COUNT)
STORAGE = embedding_shards.Storage(shard_size=12, dtype="float32")
FILES = {
    "dense": ["vectors.npy"],
    "sparse": ["sparse_offsets.npy", "sparse_tokens.npy", "sparse_weights.npy"],
    "multi_vector": ["multi_vector_offsets.npy", "multi_vector_vectors.npy"],
}


@pytest.fixture(scope="module")
def model():
    return three_kinds.trained(Partitioner(MeshShape(8, 1, 1)))


@pytest.fixture(scope="module")
def direct():
    """Kind -> name of an array -> [n, ...] of each text, which is called for alone."""
    made = three_kinds.restored()
    jitted = jitted_functions.jitted_functions(made.graphdef, made.functions)
    functions = jitted_functions.bound(jitted, made.params, made.variables)
    call = embedding_function(functions, "passage", KINDS)
    found = {"dense": [], "sparse": [], "multi_vector": []}
    for number in range(COUNT):
        group = three_kinds.group([[number]], TEXTS, 1, 1)
        arrays = jax.tree.map(lambda array: np.asarray(array)[0], call(group, kinds=KINDS))
        found["dense"].append({"vectors": arrays["dense"][0]})
        for kind in ("sparse", "multi_vector"):
            kept = arrays[kind].pop("segments") == 1
            found[kind].append({name: array[kept] for name, array in arrays[kind].items()})
    return found


def encode(model, folder: Path, kinds=KINDS, storage=STORAGE, source=None) -> None:
    source = source or three_kinds.Texts(TEXTS)
    encode_corpus(model, source, "embed_passage", storage, str(folder), kinds)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("all")
    encode(model, folder)
    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def of_text(kind: str, found, number: int) -> dict[str, np.ndarray]:
    one = found[np.array([number])]
    return dict(one.arrays) if isinstance(one, Entries) else {"vectors": one[0]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kinds", [KINDS, ("sparse",), ("multi_vector", "dense")])
def test_what_is_read_from_shards_is_what_direct_calls_give(model, direct, tmp_path, kinds, dtype):
    encode(model, tmp_path, kinds, embedding_shards.Storage(12, dtype))
    found, ids, contract, checkpoint = embedding_shards.read(tmp_path, kinds)
    assert list(found) == list(kinds) and ids == [f"p{n}" for n in range(COUNT)]
    assert (contract, checkpoint) == (model.contract, model.fingerprint)
    rounded = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, np.dtype(dtype))
    step = 0 if dtype == "float32" else float(ml_dtypes.finfo(rounded).eps)
    for kind in kinds:
        assert len(found[kind]) == COUNT
        for number, expected in enumerate(direct[kind]):
            arrays = of_text(kind, found[kind], number)
            assert arrays.keys() == expected.keys()
            for name, array in arrays.items():
                assert array.shape == expected[name].shape and array.dtype == expected[name].dtype
                np.testing.assert_allclose(array, expected[name], atol=1e-6, rtol=step)
    assert sum(len(one["tokens"]) for one in direct["sparse"]) > COUNT  # several of a text
    assert direct["sparse"][1]["tokens"].shape == (0,)  # special tokens alone
    assert direct["sparse"][4]["tokens"].tolist() == [7, 8]  # each once
    assert direct["multi_vector"][4]["vectors"].shape == (3, 4)


def test_all_kinds_come_out_of_one_forward_pass(tmp_path):
    model = three_kinds.trained(Partitioner(MeshShape(8, 1, 1)))
    before = three_kinds.ThreeKinds.passes
    encode(model, tmp_path)
    assert three_kinds.ThreeKinds.passes == before + 1  # traced once, for every batch


def test_what_is_not_asked_for_is_not_computed():
    made = three_kinds.restored()
    jitted = jitted_functions.jitted_functions(made.graphdef, made.functions)["embed_passage"].call
    group = three_kinds.group([[0]], TEXTS, 1, 1)
    sizes = {
        kinds: len(
            jitted.lower(made.params, made.variables, group, kinds=kinds).compile().as_text()
        )
        for kinds in (("dense",), KINDS)
    }
    assert sizes["dense",] < sizes[KINDS] / 1.5


def test_each_kind_has_its_own_files_and_dense_ones_are_as_before(model, folder, tmp_path):
    encode(model, tmp_path, ("dense",))
    plain, whole = bytes_of(tmp_path), bytes_of(folder)
    assert {Path(name).name for name in plain} == {
        *("contract.json", "manifest.json", "vectors.npy", "ids.json"),
    }
    assert {Path(name).name for name in whole} - {Path(name).name for name in plain} == {
        *FILES["sparse"],
        *FILES["multi_vector"],
    }
    assert all(whole[name] == plain[name] for name in plain if not name.endswith("manifest.json"))
    manifest = json.loads(plain["shards/00000/manifest.json"])
    assert list(manifest) == ["version", "count", "dimension", "dtype", "files"]
    assert list(json.loads(plain["manifest.json"])) == [
        *("version", "checkpoint", "count", "dimension", "dtype", "shards", "files"),
    ]
    assert json.loads(whole["manifest.json"])["kinds"] == list(KINDS)


@pytest.mark.parametrize("name", FILES["sparse"] + FILES["multi_vector"])
def test_damage_is_found_by_readers(folder, name):
    path = folder / "shards/00001" / name
    data = path.read_bytes()
    try:
        path.write_bytes(data[:-4])
        with pytest.raises(IndexDamaged, match=f"{name}: expected {len(data)} bytes"):
            embedding_shards.read(folder)  # whatever is read of it
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(IndexDamaged, match=f"{name}: its bytes changed"):
            embedding_shards.read(folder, ("sparse",))
        path.unlink()
        with pytest.raises(IndexDamaged, match=f"{name}: missing"):
            embedding_shards.read(folder, KINDS)
    finally:
        path.write_bytes(data)


class Interrupted(three_kinds.Texts):
    """Fails at the fourth shard."""

    def part(self, start: int, end: int) -> three_kinds.Texts:
        if start == 36:
            raise KeyboardInterrupt
        return super().part(start, end)


def test_a_run_that_was_stopped_ends_with_the_same_bits(model, folder, tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        encode(model, tmp_path, source=Interrupted(TEXTS))
    assert (tmp_path / "shards/00000").exists() and not (tmp_path / "manifest.json").exists()
    cut = tmp_path / "shards/00000/sparse_weights.npy"
    cut.write_bytes(cut.read_bytes()[:-1])
    encode(model, tmp_path)
    assert "00000: written again" in capsys.readouterr().err
    assert bytes_of(tmp_path) == bytes_of(folder)


def test_shards_of_other_kinds_or_contracts_are_made_again(model, folder, tmp_path, capsys):
    encode(model, tmp_path, ("dense",))
    capsys.readouterr()
    encode(model, tmp_path)
    assert capsys.readouterr().err.count("it is of another checkpoint, contract or corpus") == 5
    assert bytes_of(tmp_path) == bytes_of(folder)
    mesh = Partitioner(MeshShape(2, 2, 2))
    encode(three_kinds.trained(mesh, seed=1), tmp_path)
    assert capsys.readouterr().err.count("it is of another checkpoint, contract or corpus") == 5


def test_kinds_that_something_lacks_are_named(model, folder, tmp_path):
    encode(model, tmp_path / "sparse", ("sparse",))
    with pytest.raises(RepresentationError, match=r"holds .*\['sparse'\], asked for \['dense'\]"):
        encoding.load_embeddings(tmp_path / "sparse")  # as every index does that is built today
    advice = r"asked for \['multi_vector'\]: run .* kinds = \['sparse', 'multi_vector'\]"
    with pytest.raises(RepresentationError, match=advice):
        embedding_shards.read(tmp_path / "sparse", ("multi_vector",))
    for kinds in ([], ["colour"], ["sparse", "sparse"]):
        with pytest.raises(RepresentationError, match="'dense', 'sparse', 'multi_vector'"):
            encode(model, tmp_path / "none", kinds)
    with pytest.raises(RepresentationError, match=r"\['embed_passage', 'embed_query'\], found 'x'"):
        encode_corpus(model, three_kinds.Texts(TEXTS), "x", STORAGE, str(tmp_path / "none"))
    plain = restored_model.Trained(
        helpers.embedding_functions(passage=lambda group: None), model.contract, Partitioner(), ""
    )
    with pytest.raises(RepresentationError, match=r"a passage as \['dense'\]"):
        encode(plain, tmp_path / "none", ("dense", "sparse"))
    writer = embedding_shards.ShardWriter(tmp_path / "w", "v", STORAGE, ["a"], ("sparse",))
    with writer, pytest.raises(RepresentationError, match=r"\['sparse'\], found \['dense'\]"):
        writer.write(0, {"dense": np.zeros((1, 2), np.float32)})


def test_a_model_without_dense_vectors_cannot_be_asked(model, tmp_path):
    passages = Passages(helpers.write_corpus(tmp_path / "corpus"))
    table = np.eye(5, 16, dtype=np.float32)
    index = exact_index.ExactIndex(table, passages.ids, model.contract)
    sparse = {
        name: ModelFunction(one.call, one.inputs, "", "embed", one.side, ("sparse",))
        for name, one in model.functions.items()
    }
    alone = restored_model.Trained(sparse, model.contract, Partitioner(), "fingerprint")

    class Questions:
        length, prefix, fingerprint = 8, "", "fingerprint"

    with pytest.raises(RepresentationError, match=r"'query' as \['dense'\].*as \['sparse'\]"):
        searcher.Searcher(alone, index, Questions(), passages)
    with pytest.raises(RepresentationError, match=r"'passage' as \['dense'\].*as \['sparse'\]"):
        alone.encode("passage", three_kinds.Texts(TEXTS))


def broken(kind, **arrays):
    """A call whose representation of one kind has other arrays."""
    made = three_kinds.restored()
    call = functools.partial(
        jitted_functions.pure_function(made.graphdef, "embed_passage"), made.params, made.variables
    )

    def represent(group):
        found = call(group, kinds=KINDS)
        changed = {name: change(found[kind].get(name)) for name, change in arrays.items()}
        return {**found, kind: {**found[kind], **changed}}

    return jax.jit(represent)


@pytest.mark.parametrize(
    ("represent", "error", "message"),
    [
        (
            broken("sparse", weights=lambda array: array / 0),
            text_collector.EncodingError,
            r"sparse representations of \d+ texts hold NaN or Inf.*'p0'",
        ),
        (
            broken("multi_vector", vectors=lambda array: array * jnp.nan),
            text_collector.EncodingError,
            "multi_vector representations of .* hold NaN or Inf",
        ),
        (
            broken("sparse", tokens=jnp.zeros_like),
            text_collector.EncodingError,
            r"sparse representations of \d+ texts have a token twice",
        ),
        (
            broken("multi_vector", segments=lambda array: array + 2),
            text_collector.EncodingError,
            "an entry of a row belongs to segment [34], expected 1 to 2, the segments of a row",
        ),
        (
            broken("sparse", segments=lambda array: array - 1),
            text_collector.EncodingError,
            "an entry of a row belongs to segment -1, expected 1 to 2",
        ),
        (
            broken("sparse", ids=lambda _: jnp.zeros(3)),
            RepresentationError,
            r"\['segments', 'tokens', 'weights'\], found \['ids', 'segments'",
        ),
    ],
    ids=["inf", "nan", "twice", "segment", "negative", "arrays"],
)
def test_representations_that_are_none_are_refused(represent, error, message):
    source = three_kinds.Texts(TEXTS)
    with pytest.raises(error, match=message):
        list(encoding.represent_parts(represent, [source], COUNT))


def test_a_number_beyond_the_dtype_is_refused(tmp_path):
    storage = embedding_shards.Storage(2, "float16")
    arrays = {"tokens": np.arange(2, dtype=np.int32), "weights": np.array([1, 1e6], np.float32)}
    with embedding_shards.ShardWriter(tmp_path, "v", storage, ["a", "b"], ["sparse"]) as writer:
        with pytest.raises(ValueError, match=r"sparse_weights\.npy: .* exceed float16's range"):
            writer.write(0, {"sparse": Entries(np.array([0, 1, 2]), arrays)})
        with pytest.raises(ValueError, match="expected 2 sparse representations, found 1"):
            writer.write(0, {"sparse": Entries(np.array([0, 2]), arrays)})


def test_empty_sparse_texts_of_a_corpus_are_counted(model, tmp_path, capsys, caplog):
    encode(model, tmp_path / "one")
    assert "sparse: 2.0% of 50 texts have no weight; 3.2 terms a text" in capsys.readouterr().err
    assert "weights of words" not in caplog.text
    source = three_kinds.Texts([[2, 3] if n % 2 else one for n, one in enumerate(TEXTS)])
    for _ in range(2):  # the second finds all shards there
        encode(model, tmp_path / "half", ("sparse",), source=source)
        assert "sparse: 50.0% of 50 texts have no weight" in capsys.readouterr().err
        assert "50.0% of the texts have no weight, more than 5%" in caplog.text
        caplog.clear()
    encode(model, tmp_path / "dense", ("dense",))
    assert "no weight" not in capsys.readouterr().err


def test_a_folder_without_any_entry_is_read(tmp_path):
    nothing = {"tokens": np.zeros(0, np.int32), "weights": np.zeros(0, np.float32)}
    with embedding_shards.ShardWriter(tmp_path, "v", STORAGE, ["a"], ["sparse"]) as writer:
        assert writer.missing() == [0]
        writer.write(0, {"sparse": Entries(np.array([0, 0]), nothing)})
        writer.finish(helpers.CONTRACT, "checkpoint")
    found, ids, _, _ = embedding_shards.read(tmp_path, ("sparse",))
    assert (len(found["sparse"]), found["sparse"][:].arrays["tokens"].shape, ids) == (
        1,
        (0,),
        ["a"],
    )


def test_entries_are_read_in_slices_and_by_row(folder):
    found = embedding_shards.read(folder, KINDS)[0]["multi_vector"]
    whole = found[:]
    assert len(whole) == COUNT and whole.arrays["vectors"].shape == (whole.offsets[-1], 4)
    part = found[10:27]  # over the ends of shards
    np.testing.assert_array_equal(part.offsets, whole.offsets[10:28] - whole.offsets[10])
    rows = np.random.default_rng(0).permutation(COUNT)[:20]
    chosen = found[rows]
    for place, row in enumerate(rows.tolist()):
        expected = whole.arrays["vectors"][whole.offsets[row] : whole.offsets[row + 1]]
        np.testing.assert_array_equal(of_text("", chosen, place)["vectors"], expected)
        if 10 <= row < 27:
            np.testing.assert_array_equal(of_text("", part, row - 10)["vectors"], expected)
    assert len(found[7:7]) == 0 and found[7:7].arrays["vectors"].shape == (0, 4)
    with pytest.raises(IndexError, match="step 1"):
        found[::2]


def test_functions_declare_what_they_embed():
    assert [side_of(function_name(side)) for side in ("query", "passage")] == ["query", "passage"]
    for side, kinds, message in (
        (None, ("dense",), "side: expected one of"),
        ("image", ("dense",), "found 'image'"),
        ("query", (), "representations: expected"),
        ("query", ("dense", "colour"), "'colour'"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelFunction(lambda group: None, {}, "", "embed", side, kinds)
    with pytest.raises(ValueError, match="no side and no representations of kind 'score'"):
        ModelFunction(lambda group: None, {}, "", "score", "query")
    shape = three_kinds.GroupShape(1, 2, 1)
    functions = dense_functions(lambda group: group["tokens"], shape, shape)
    with pytest.raises(RepresentationError, match=r"embed a query as \['dense'\], a passage as"):
        embedding_function(functions, "passage", ["multi_vector"])
