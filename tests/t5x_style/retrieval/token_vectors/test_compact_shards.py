"""Compact vectors of tokens in the store: manifests, kills, what is refused, and searches."""

import json
from pathlib import Path

import numpy as np
import pytest

from t5x_style.checkpoints import restored_model
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.encode_corpus import check, encode_corpus
from t5x_style.evaluation import hybrid_search
from t5x_style.evaluation.evaluation_suite import EvaluationSuite
from t5x_style.interfaces.index import IndexDamaged
from t5x_style.interfaces.representation import KINDS, MULTI_VECTOR, RepresentationError
from t5x_style.retrieval import (
    embedding_shards,
    encoding,
    exact_index,
    hybrid,
    muvera_index,
    published_index,
    representation_files,
    similarity,
    versioned_folder,
)
from t5x_style.retrieval.token_vectors import int8, pooling
from tests.kits.toys import three_kinds

COUNT = 50
TEXTS = three_kinds.texts(COUNT)  # one to six vectors each; one text has none
KIND = (MULTI_VECTOR,)


def storage(**settings) -> embedding_shards.Storage:
    return embedding_shards.Storage(**{"shard_size": 12, "dtype": "float16"} | settings)


COMPACT = storage(pool_factor=2, token_dtype="int8")


@pytest.fixture(scope="module")
def model() -> restored_model.Trained:
    return three_kinds.trained(Partitioner(MeshShape(8, 1, 1)))


def encode(model, folder: Path, kept=COMPACT, kinds=KIND, source=None) -> Path:
    source = source or three_kinds.Texts(TEXTS)
    encode_corpus(model, source, "embed_passage", kept, str(folder), kinds)
    return folder


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    return encode(model, tmp_path_factory.mktemp("compact"), kinds=KINDS)


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """All vectors, as the model gives them."""
    made = encode(model, tmp_path_factory.mktemp("whole"), storage(dtype="float32"))
    return embedding_shards.read(made, KIND)[0][MULTI_VECTOR][:]


def bytes_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_what_is_read_is_pooled_and_rounded(model, folder, whole, tmp_path):
    pooled = pooling.pooled(whole, 2)
    expected = int8.quantised(pooled.arrays["vectors"])[:]
    for made in (folder, encode(model, tmp_path)):
        found = embedding_shards.read(made, KIND)[0][MULTI_VECTOR]
        np.testing.assert_array_equal(found.offsets, pooled.offsets)
        np.testing.assert_allclose(found[:].arrays["vectors"], expected, atol=1e-6)
        rows = np.random.default_rng(0).permutation(COUNT)
        np.testing.assert_array_equal(
            found[rows].arrays["vectors"], found[:][rows].arrays["vectors"]
        )
    assert 0 < len(expected) < len(whole.arrays["vectors"]) and 0 in np.diff(pooled.offsets)
    shard = folder / "shards/00001"
    kept = np.load(shard / "multi_vector_vectors.npy")
    assert kept.dtype == np.int8 and np.load(shard / representation_files.SCALES).dtype == "f4"
    assert np.load(shard / "vectors.npy").dtype == np.float16  # of texts: as `dtype` says


def test_manifests_say_so_and_are_as_before_otherwise(model, folder, tmp_path):
    facts = {"pool_factor": 2, "token_dtype": "int8"}
    for name in ("manifest.json", "shards/00000/manifest.json"):
        assert json.loads((folder / name).read_text())["tokens"] == facts
    plain = encode(model, tmp_path / "plain", storage())
    factor_1 = encode(model, tmp_path / "one", storage(pool_factor=1, token_dtype=None))
    assert bytes_of(plain) == bytes_of(factor_1)
    assert "tokens" not in json.loads((plain / "manifest.json").read_text())


@pytest.mark.parametrize(
    "expected", [{"pool_factor": 2}, {"pool_factor": 2, "token_dtype": "int8"}]
)
def test_expectations_that_are_met(folder, expected):
    assert encoding.load_embeddings(folder, MULTI_VECTOR, expected).kind == MULTI_VECTOR


def test_other_expectations_are_refused(model, folder, tmp_path):
    indexes = [exact_index.load(str(folder))]
    plain = encode(model, tmp_path, storage())
    for where, expected, message in (
        (folder, {"pool_factor": 1}, r"kept with \{'pool_factor': 1\}, found .*'pool_factor': 2"),
        (folder, {"token_dtype": None}, "'token_dtype': None"),
        (folder, {"factor": 2}, r"\{'factor': 2\}"),
        (plain, {"pool_factor": 2}, "'pool_factor': 2.*encode_corpus"),
    ):
        with pytest.raises(RepresentationError, match=message):
            embedding_shards.read(where, KIND, expected)
        with pytest.raises(RepresentationError, match=message):
            hybrid.load(str(where), indexes, KIND, expected=expected)


def test_storage_that_is_not_known_here_is_refused(folder, tmp_path):
    manifest = json.loads((folder / "manifest.json").read_text())
    for tokens in ({"pool_factor": 2, "token_dtype": "int4"}, {"dropped": 0.5}):
        changed = manifest | {"tokens": tokens, "files": {}}
        (tmp_path / "manifest.json").write_text(json.dumps(changed))
        with pytest.raises(RepresentationError, match="Check out the code that made them"):
            embedding_shards.read(tmp_path, KIND)


class Interrupted(three_kinds.Texts):
    """Fails at the fourth shard."""

    def part(self, start: int, end: int) -> three_kinds.Texts:
        if start == 36:
            raise KeyboardInterrupt
        return super().part(start, end)


def test_a_run_that_was_stopped_ends_with_the_same_bits(model, folder, tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        encode(model, tmp_path, kinds=KINDS, source=Interrupted(TEXTS))
    cut = tmp_path / "shards/00000" / representation_files.SCALES
    cut.write_bytes(cut.read_bytes()[:-1])
    encode(model, tmp_path, kinds=KINDS)
    assert "00000: written again" in capsys.readouterr().err
    assert bytes_of(tmp_path) == bytes_of(folder)
    path = tmp_path / "shards/00002" / representation_files.SCALES
    path.unlink()
    with pytest.raises(IndexDamaged, match=r"multi_vector_scales\.npy: missing"):
        embedding_shards.read(tmp_path, KIND)


@pytest.mark.parametrize(
    "other", [storage(), storage(pool_factor=3, token_dtype="int8"), storage(pool_factor=2)]
)
def test_shards_that_are_kept_otherwise_are_made_again(model, tmp_path, capsys, other):
    encode(model, tmp_path)
    capsys.readouterr()
    encode(model, tmp_path, other)
    assert capsys.readouterr().err.count("it is of another checkpoint, contract or corpus") == 5


def test_shards_do_not_depend_on_the_mesh_or_their_size(model, folder, tmp_path):
    one = encode(three_kinds.trained(Partitioner(MeshShape(2, 2, 2))), tmp_path / "mesh")
    size = encode(
        model, tmp_path / "size", storage(shard_size=7, pool_factor=2, token_dtype="int8")
    )
    expected = embedding_shards.read(folder, KIND)[0][MULTI_VECTOR][:]
    for made in (one, size):
        found = embedding_shards.read(made, KIND)[0][MULTI_VECTOR][:]
        np.testing.assert_array_equal(found.offsets, expected.offsets)
        # a number at the middle between two steps may be rounded either way
        steps = np.abs(expected.arrays["vectors"]).max(axis=1, keepdims=True) / 127
        gap = np.abs(found.arrays["vectors"] - expected.arrays["vectors"])
        assert (gap <= steps * 1.001).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pool_factor": 0}, "pool_factor: expected at least 1, found 0"),
        ({"token_dtype": "int4"}, "token_dtype: expected one of .*'int8'.*found 'int4'"),
        ({"token_dtype": "float32"}, "token_dtype: expected one of"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"Storage.{message}"):
        storage(**settings)


@pytest.mark.parametrize(
    ("function", "kinds"), [("embed_query", KINDS), ("embed_passage", ["dense", "sparse"])]
)
def test_what_has_no_vectors_of_passages_is_not_compacted(model, tmp_path, function, kinds):
    for kept in (storage(pool_factor=2), storage(token_dtype="int8")):
        message = "for the vectors of passages' tokens: expected passages"
        with pytest.raises(RepresentationError, match=message):
            encode_corpus(model, three_kinds.Texts(TEXTS), function, kept, str(tmp_path), kinds)
        with pytest.raises(RepresentationError, match=message):
            check(function, kinds, kept)
    check(function, kinds, storage())


def collection(folder: Path) -> str:
    """Query n has the tokens of passage n, which answers it."""
    (folder / "qrels").mkdir()
    passages = [{"_id": f"p{n}", "title": "", "text": f"text {n}"} for n in range(COUNT)]
    queries = [{"_id": f"q{n}", "text": f"question {n}"} for n in range(COUNT)]
    for name, rows in (("corpus", passages), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    judged = [f"q{n}\tp{n}\t1" for n in range(COUNT)]
    (folder / "qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    return str(folder)


class Queries(three_kinds.Texts):
    """Query n has the tokens of passage n."""

    def __init__(self) -> None:
        super().__init__(TEXTS)
        self.ids = [f"q{n}" for n in range(COUNT)]


def test_an_evaluation_ranks_by_max_sim_over_what_is_kept(model, folder, tmp_path):
    searched = hybrid.load(str(folder), [exact_index.load(str(folder))], KINDS)
    weights = {MULTI_VECTOR: 1.0}
    made = hybrid_search.HybridSearch(
        "hybrid", model, searched, [Queries()], method="weighted", prior=weights, weights=weights
    )
    run = EvaluationSuite(collection(tmp_path), [made], 10).run("hybrid", "test")
    queries = model.encode("query", Queries(), MULTI_VECTOR)
    kept = embedding_shards.read(folder, KIND)[0][MULTI_VECTOR][:]
    scores = similarity.scores(MULTI_VECTOR, queries, kept)
    for number in range(COUNT):
        if len(queries[number : number + 1].arrays["vectors"]):
            best = np.sort(scores[number])[::-1][:10]
            found = [score for _, score in run[f"q{number}"]]
            np.testing.assert_allclose(found, best, rtol=1e-5)


@pytest.mark.parametrize("settings", [muvera_index.Muvera(), exact_index.ExactMultiVector()])
def test_indexes_keep_int8(folder, tmp_path, settings):
    embeddings = encoding.load_embeddings(folder, MULTI_VECTOR)
    built = published_index.publish(tmp_path, embeddings, settings, keep=1)
    version = versioned_folder.current(tmp_path)
    assert np.load(version / "multi_vector_vectors.npy", mmap_mode="r").dtype == np.int8
    assert (version / representation_files.SCALES).is_file() and built.recall > 0.9
    queries = embeddings.passages[:20]
    found = published_index.load(tmp_path).search(queries, 5)
    for one, other in zip(found, built.search(queries, 5), strict=True):
        np.testing.assert_array_equal(one, other)
    exact = similarity.scores(MULTI_VECTOR, queries, embeddings.passages[:])
    listed = np.take_along_axis(exact, np.maximum(found[1], 0), axis=1)
    there = found[1] >= 0
    np.testing.assert_allclose(found[0][there], listed[there], rtol=1e-5)
