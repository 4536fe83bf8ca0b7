"""What every index promises, asked of each type after it was published and opened again.

One of the types is of the tests alone (`tests.kits.toys.int8_index`), and named in no file of ours.
"""

import dataclasses
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest

from t5x_style import retrieval
from t5x_style.build_index import build_index
from t5x_style.configuration import gin_reader
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces import representation
from t5x_style.interfaces.contract import ContractError
from t5x_style.retrieval import (
    encoding,
    exact_index,
    published_index,
    scann_index,
    sharded_index,
    versioned_folder,
)
from tests.kits import retrieval_helpers as helpers
from tests.kits.toys import int8_index

TYPES = {
    "exact": exact_index.Exact(),
    "sharded": sharded_index.Sharded(chunk=7),
    "sharded in bfloat16": sharded_index.Sharded(dtype="bfloat16"),
    "scann": scann_index.Scann(1_000, 0, 1.0, 100),
    "scann with a tree": scann_index.Scann(0, 8, 0.9, 100),
    "of the tests": int8_index.Int8(),
}
FINISHED_RUN = Path(__file__).parents[1] / "workflow/finished_run/run.tar.xz"
EXACT = ("exact", "sharded", "scann")
COUNT = 203  # does not divide by the devices
IDS = [f"p{row}" for row in range(COUNT)]
VECTORS = helpers.vectors(COUNT)
EMBEDDINGS = encoding.Embeddings(VECTORS, IDS, helpers.CONTRACT, "checkpoint")


@pytest.fixture(name="name", scope="module", params=TYPES)
def each_type(request):
    return request.param


@pytest.fixture(scope="module")
def folder(name, tmp_path_factory):
    path = tmp_path_factory.mktemp("index")
    published_index.publish(path, EMBEDDINGS, TYPES[name], keep=1)
    return path


@pytest.fixture(scope="module")
def index(folder):
    return published_index.load(folder)


def test_it_says_what_it_holds(index):
    assert isinstance(index, index_lib.Index)
    assert (index.kind, index.contract) == ("dense", helpers.CONTRACT)
    assert (list(index.ids), index.checkpoint) == (IDS, "checkpoint")


def test_hits_are_those_of_exact_search_best_first(name, index):
    queries = helpers.vectors(37, seed=5)
    scores, rows = index.search(queries, 10)
    assert (scores.shape, scores.dtype) == ((37, 10), np.float32)
    assert (rows.shape, rows.dtype) == ((37, 10), np.int32)
    assert (np.diff(scores) <= 0).all()
    products = np.take_along_axis(queries @ VECTORS.T, rows, axis=1)
    np.testing.assert_allclose(scores, products, atol=1e-5 if name in EXACT else 0.03)
    exact_rows = exact_index.top_k(queries, VECTORS, 10)[1]
    if name in EXACT:
        np.testing.assert_array_equal(rows, exact_rows)
    assert index_lib.recall_against(rows, exact_rows) > 0.85


def test_recall_is_measured_when_it_is_built_and_kept(name, index, folder):
    assert index.recall == 1.0 if name in EXACT else 0.8 < index.recall <= 1.0
    manifest = json.loads((versioned_folder.current(folder) / "manifest.json").read_text())
    assert manifest["recall"] == {"at": 10, "sample": COUNT, "value": index.recall}


def test_equal_scores_are_in_the_order_of_rows(name, tmp_path):
    doubled = np.repeat(VECTORS[:10], 2, axis=0)
    embeddings = encoding.Embeddings(doubled, IDS[:20], helpers.CONTRACT)
    published_index.publish(tmp_path, embeddings, TYPES[name], keep=1)
    scores, rows = published_index.load(tmp_path).search(VECTORS[:10], 20)
    tied = (scores[:, :-1] == scores[:, 1:]) & (rows[:, 1:] != index_lib.NO_ROW)
    assert tied.sum() >= 10 and (np.diff(rows)[tied] > 0).all()
    np.testing.assert_array_equal(rows[:, :2], [[2 * row, 2 * row + 1] for row in range(10)])


def test_more_hits_than_passages_are_padded(name, index):
    scores, rows = index.search(VECTORS[:2], COUNT + 9)
    assert scores.shape == rows.shape == (2, COUNT + 9)
    assert (rows[:, COUNT:] == index_lib.NO_ROW).all() and np.isneginf(scores[:, COUNT:]).all()
    assert ((rows == index_lib.NO_ROW) == np.isneginf(scores)).all()
    if name != "scann with a tree":  # which does not look at all of its leaves
        assert sorted(rows[0, :COUNT]) == list(range(COUNT))


@pytest.mark.parametrize("count", [0, 1, 300])
def test_any_number_of_queries(index, count):
    queries = helpers.vectors(count, seed=6)
    scores, rows = index.search(queries, 3)
    assert scores.shape == rows.shape == (count, 3)
    if count:
        np.testing.assert_array_equal(rows[-1:], index.search(queries[-1:], 3)[1])


@pytest.mark.parametrize(
    "queries,k,message",
    [
        (np.full((2, 16), np.nan, np.float32), 1, "NaN or Inf in row 0 .2 of 2"),
        (np.zeros((2, 8), np.float32), 1, r"\[Q, 16\].*found \[2, 8\]"),
        (np.zeros(16, np.float32), 1, r"found \[16\]"),
        (np.zeros((2, 16), np.float64), 1, "float32 queries, found float64"),
        (np.zeros((2, 16), np.float32), 0, "k of at least 1, found 0"),
    ],
)
def test_bad_queries_are_refused(index, queries, k, message):
    with pytest.raises(index_lib.QueryError, match=message):
        index.search(queries, k)


def test_queries_of_another_model_or_kind_are_refused(index):
    index_lib.check_contract(index, helpers.CONTRACT, "the index")
    other = dataclasses.replace(helpers.CONTRACT, pooling="mean")
    with pytest.raises(ContractError, match="pooling"):
        index_lib.check_contract(index, other, "the index")
    with pytest.raises(ContractError, match="kind 'dense', expected 'sparse'"):
        index_lib.check_contract(index, helpers.CONTRACT, "the index", kind="sparse")
    with pytest.raises(ContractError, match="of checkpoint checkpoint"):
        index_lib.check_checkpoint(index, "other", "the index")


def test_what_is_opened_finds_what_was_built(name, index, tmp_path):
    helpers.write_embeddings(tmp_path / "vectors", VECTORS, IDS, shard_size=70)
    built = published_index.from_embeddings(str(tmp_path / "vectors"), TYPES[name])
    assert built.recall == index.recall and type(built) is type(index)
    for ours, theirs in zip(built.search(VECTORS, 5), index.search(VECTORS, 5), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_damage_is_found(index, folder, tmp_path):
    target = tmp_path / "index"
    target.symlink_to(folder)
    for path in sorted(versioned_folder.current(target).glob("*.npy"))[:1]:
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(index_lib.IndexDamaged, match=path.name):
            published_index.load(target)
        path.write_bytes(whole)


def test_an_index_of_low_recall_is_not_published(name, tmp_path):
    with pytest.raises(published_index.RecallError, match="at least 1.1.*measured"):
        published_index.publish(tmp_path, EMBEDDINGS, TYPES[name], 1, minimum_recall=1.1)
    assert versioned_folder.published(tmp_path) == []


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_sharded_search_is_exact_on_any_number_of_devices(devices, monkeypatch):
    local = jax.local_devices()[:devices]
    monkeypatch.setattr(jax, "local_devices", lambda: local)
    record = index_lib.IndexRecord(IDS, helpers.CONTRACT)
    index = sharded_index.Sharded(chunk=20).build(VECTORS, record)
    queries = helpers.vectors(301, seed=7)
    scores, rows = index.search(queries, 9)
    exact_scores, exact_rows = exact_index.top_k(queries, VECTORS, 9)
    np.testing.assert_array_equal(rows, exact_rows)
    np.testing.assert_allclose(scores, exact_scores, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other.index.Faiss", "other.index is not imported.*--gin_allow=other"),
        ("subprocess.Popen", "expected the path of a subclass of interfaces.index.IndexType"),
        ("t5x_style.retrieval.exact_index.Gone", "expected the path of a subclass"),
        ("t5x_style.retrieval.gone.Index", "expected the path of a subclass"),
        ("annoy", "expected the path of a subclass"),
        (".os.path", "expected the path of a subclass"),
    ],
)
def test_an_unknown_type_is_refused(tmp_path, name, message):
    settings = {"args": "touch never"} if name == "subprocess.Popen" else {}
    manifest = {"kind": name, "settings": settings, "recall": {"value": 1.0}}
    with versioned_folder.new_version(tmp_path, manifest, keep=1) as version:
        (version / "ids.json").write_text("[]")
    with pytest.raises(published_index.IndexTypeError, match=f"type '{name}'.*{message}"):
        published_index.load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk": 7, "banks": 3}, "'banks': 3}.* unexpected keyword argument 'banks'"),
        ({"searched_share": 2.0}, "Scann does not take .*missing 3 required"),
        (dataclasses.asdict(TYPES["scann"]) | {"searched_share": 2.0}, r"expected in \(0, 1\]"),
    ],
)
def test_settings_that_a_type_does_not_take_are_refused(tmp_path, settings, message):
    kind = "t5x_style.retrieval.sharded_index.Sharded" if "chunk" in settings else "scann"
    manifest = {"kind": kind, "settings": settings, "recall": {"value": 1.0}}
    with versioned_folder.new_version(tmp_path, manifest, keep=1):
        pass
    with pytest.raises(
        published_index.IndexTypeError, match=f"v.*: an index of type '{kind}'.*{message}.*again"
    ):
        published_index.load(tmp_path)


def test_a_package_that_a_type_needs_is_named(tmp_path, monkeypatch):
    (tmp_path / "of_faiss.py").write_text("import faiss_gpu.not_installed")
    monkeypatch.setattr(retrieval, "__path__", [*retrieval.__path__, str(tmp_path)])
    manifest = {"kind": "t5x_style.retrieval.of_faiss.Faiss", "settings": {}}
    with versioned_folder.new_version(tmp_path / "index", manifest, keep=1):
        pass
    with pytest.raises(ModuleNotFoundError, match="faiss_gpu"):
        published_index.load(tmp_path / "index")


GIN = """\
from __gin__ import dynamic_registration
include 'gin_configs/runs/indexes/any.gin'
from t5x_style import build_index
from tests.kits.toys import int8_index
build_index.build_index.index = @int8_index.Int8()
int8_index.Int8.scale = 100.0
"""


def test_gin_chooses_a_type_that_the_engine_does_not_know(tmp_path):
    helpers.write_embeddings(tmp_path / "vectors", VECTORS, IDS, shard_size=70)
    (tmp_path / "own.gin").write_text(GIN)
    command = [sys.executable, "-m", "t5x_style.build_index", f"--gin_file={tmp_path}/own.gin"]
    command += [f"--gin.EMBEDDINGS={tmp_path}/vectors", f"--gin.MODEL_DIR={tmp_path}/index"]
    done = subprocess.run([*command, "--gin_allow=tests"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "203 passages, recall@10 against exact search" in done.stderr
    version = versioned_folder.current(tmp_path / "index")
    manifest = json.loads((version / "manifest.json").read_text())
    assert (manifest["kind"], manifest["settings"]) == (
        "tests.kits.toys.int8_index.Int8",
        {"scale": 100.0},
    )
    index = published_index.load(tmp_path / "index")
    assert isinstance(index, int8_index.Int8Index) and index.scale == 100.0


def test_an_index_that_an_old_run_left_is_opened(tmp_path):
    with tarfile.open(FINISHED_RUN) as archive:
        archive.extractall(tmp_path, filter="data")
    folders = list(tmp_path.glob(".store/versions/build_index-*"))
    assert folders
    for index in map(published_index.load, folders):
        assert isinstance(index, scann_index.ScannIndex) and index.recall > 0.9
        queries = np.ones((1, index.contract.dimension), np.float32)
        assert (index.search(queries, 3)[1] != index_lib.NO_ROW).all()


OLD_GIN = """from __gin__ import dynamic_registration
from t5x_style import build_index
from t5x_style.model_dependent_data import index_builder
from t5x_style.retrieval import scann_index
build_index.build_index.settings = @scann_index.ScannSettings()
index_builder.Refresher.settings = @scann_index.ScannSettings()
scann_index.ScannSettings.leaves = 3
scann_index.load.folder = 'index'
"""


def test_old_gin_files_and_overrides_are_understood(tmp_path):
    (tmp_path / "old.gin").write_text(OLD_GIN)
    old = gin_reader.read([str(tmp_path / "old.gin")])
    assert sorted(
        binding.target + "." + binding.parameter for binding in old.bindings.values()
    ) == [
        "t5x_style.build_index.build_index.index",
        "t5x_style.model_dependent_data.index_builder.Refresher.index",
        "t5x_style.retrieval.published_index.load.folder",
        "t5x_style.retrieval.scann_index.Scann.leaves",
    ]
    overrides = [("scann_index.load.fall_back_to_exact", "True")]
    present = gin_reader.read(["gin_configs/runs/indexes/search.gin"], overrides)
    target = "t5x_style.retrieval.published_index.load"
    assert present.bindings["", target, "fall_back_to_exact"].value is True


def test_a_folder_of_scanns_is_what_it_was(tmp_path):
    helpers.write_embeddings(tmp_path / "vectors", VECTORS, IDS, shard_size=70)
    build_index(str(tmp_path / "vectors"), TYPES["scann"], 1, 0.9, str(tmp_path / "index"))
    version = versioned_folder.current(tmp_path / "index")
    manifest = json.loads((version / "manifest.json").read_text())
    assert manifest.pop("files").keys() == {
        *("contract.json", "dataset.npy", "ids.json"),
        *("scann_assets.pbtxt", "scann_config.pb"),
    }
    assert manifest == {
        "kind": "scann",
        "checkpoint": "checkpoint",
        "count": COUNT,
        "dimension": 16,
        "settings": {
            "brute_force_below": 1_000,
            "leaves": 0,
            "searched_share": 1.0,
            "reorder": 100,
        },
        "recall": {"at": 10, "sample": COUNT, "value": 1.0},
        "version": 1,
    }


def test_an_index_of_another_kind_than_the_vectors_is_refused(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Sparse(int8_index.Int8):
        kind = representation.SPARSE

    message = r"Sparse\(scale=127.0\) holds .* 'sparse', but the embeddings are of kind 'dense'"
    with pytest.raises(representation.RepresentationError, match=message):
        published_index.publish(tmp_path, EMBEDDINGS, Sparse(), keep=1)
