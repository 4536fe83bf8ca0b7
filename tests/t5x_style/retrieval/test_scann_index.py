"""ScaNN: recall, determinism, publishing, and folders that must not be loaded."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from t5x_style.build_index import build_index
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import ContractError
from t5x_style.retrieval import (
    encoding,
    exact_index,
    published_index,
    scann_index,
    versioned_folder,
)
from tests.kits import retrieval_helpers as helpers

TREE = scann_index.Scann(brute_force_below=100, leaves=0, searched_share=0.5, reorder=100)
COUNT = 1_000
IDS = [f"p{i}" for i in range(COUNT)]


def publish(folder, vectors, ids=IDS, keep=2):
    embeddings = encoding.Embeddings(vectors, ids, helpers.CONTRACT)
    return published_index.publish(folder, embeddings, TREE, keep)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("index")
    publish(path, helpers.vectors(COUNT))
    return path


@pytest.fixture
def copied(folder, tmp_path):
    """The published version, to be damaged."""
    shutil.copytree(folder, tmp_path / "index")
    return tmp_path / "index"


def test_finds_what_exact_search_finds(folder):
    index = published_index.load(folder)
    queries = helpers.vectors(50, seed=5)
    scores, rows = index.search(queries, 10)
    exact_scores, exact_rows = exact_index.top_k(queries, helpers.vectors(COUNT), 10)
    assert index.recall > 0.9
    assert index_lib.recall_against(rows, exact_rows) > 0.9
    np.testing.assert_allclose(scores[:, 0], exact_scores[:, 0], atol=1e-5)
    assert index.ids == IDS and index.contract == helpers.CONTRACT
    assert isinstance(index, index_lib.Index)


def test_a_handful_of_passages_is_compared_in_full(tmp_path):
    small = helpers.vectors(5)
    index = publish(tmp_path, small, IDS[:5])
    scores, rows = index.search(small, 9)
    assert index.recall == 1.0 and scores.shape == (5, 9)
    np.testing.assert_array_equal(rows[:, 0], np.arange(5))
    assert (rows[:, 5:] == index_lib.NO_ROW).all() and np.isneginf(scores[:, 5:]).all()


def test_the_same_vectors_give_the_same_files(folder, tmp_path):
    publish(tmp_path, helpers.vectors(COUNT), keep=1)
    one, other = (
        versioned_folder.read_manifest(versioned_folder.current(f)) for f in (folder, tmp_path)
    )
    assert one["files"] == other["files"] and one["recall"] == other["recall"]
    assert one["recall"]["sample"] == 256


@pytest.mark.parametrize(
    "queries,k,message",
    [
        (np.full((1, 16), np.nan, np.float32), 3, "NaN"),
        (np.zeros((1, 8), np.float32), 3, r"\[Q, 16\]"),
        (np.zeros((1, 16), np.float64), 3, "float64"),
        (np.zeros((1, 16), np.float32), -1, "k of at least 1"),
    ],
)
def test_bad_queries_are_refused(folder, queries, k, message):
    with pytest.raises(index_lib.QueryError, match=message):
        published_index.load(folder).search(queries, k)


def test_no_queries_give_no_results(folder):
    assert published_index.load(folder).search(np.zeros((0, 16), np.float32), 3)[1].shape == (0, 3)


def test_a_folder_with_a_pickle_is_refused(copied):
    (versioned_folder.current(copied) / "scann_docids.pkl").write_bytes(b"cos\nsystem\n")
    with pytest.raises(index_lib.IndexDamaged, match="scann_docids.pkl: ScaNN would unpickle"):
        published_index.load(copied)


@pytest.mark.parametrize("name", ["hashed_dataset.npy", "ids.json", "contract.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_found_before_scann_reads_it(copied, name, damage):
    path = versioned_folder.current(copied) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    if damage == "remove":
        path.unlink()
    with pytest.raises(index_lib.IndexDamaged, match=name):
        published_index.load(copied)


def test_paths_in_the_folder_are_relative(folder, copied, tmp_path):
    copied.rename(tmp_path / "moved")
    queries = helpers.vectors(4, seed=6)
    one, other = published_index.load(folder), published_index.load(tmp_path / "moved")
    np.testing.assert_array_equal(one.search(queries, 5)[1], other.search(queries, 5)[1])
    assert b"/" not in (versioned_folder.current(folder) / "scann_assets.pbtxt").read_bytes()


def test_a_cpu_without_the_instructions(folder, tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor: 0\nflags\t\t: fpu sse2 avx\n")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(scann_index.UnsupportedCpu, match=r"\['avx', 'fma'\].*\['fma'\]"):
        scann_index.check_cpu(str(cpuinfo))
    cpuinfo.write_text("flags\t\t: fma avx\n")
    scann_index.check_cpu(str(cpuinfo))

    def refuse():
        raise scann_index.UnsupportedCpu("no")

    monkeypatch.setattr(scann_index, "_scann", refuse)
    with pytest.raises(scann_index.UnsupportedCpu):
        published_index.load(folder)
    index = published_index.load(folder, fall_back_to_exact=True)
    queries = helpers.vectors(4, seed=6)
    expected = exact_index.top_k(queries, helpers.vectors(COUNT), 5)[1]
    np.testing.assert_array_equal(index.search(queries, 5)[1], expected)


def test_settings_out_of_range_are_refused():
    for change in (
        {"searched_share": 0.0},
        {"searched_share": 1.5},
        {"reorder": 0},
        {"leaves": -1},
    ):
        values = {"brute_force_below": 0, "leaves": 0, "searched_share": 0.5, "reorder": 10}
        with pytest.raises(ValueError, match="expected"):
            scann_index.Scann(**{**values, **change})


def test_the_stage_publishes_and_keeps_the_old_version_when_recall_is_low(tmp_path):
    helpers.write_embeddings(tmp_path / "embeddings", helpers.vectors(COUNT), IDS, shard_size=700)
    source, target = str(tmp_path / "embeddings"), str(tmp_path / "index")
    assert build_index(source, TREE, 2, 0.9, target) == {"index": "."}
    poor = scann_index.Scann(0, 500, 0.002, 1)
    with pytest.raises(published_index.RecallError, match="at least 0.99.*searched_share"):
        build_index(source, poor, 2, 0.99, target)
    assert versioned_folder.published(target) == [1] and published_index.load(target).recall > 0.9


# A process whose files may not grow beyond some bytes, or that may not write.
FAILING = """
import os, resource, signal, sys
from pathlib import Path
from tests.kits import retrieval_helpers as helpers
from tests.t5x_style.retrieval import test_scann_index as here
from t5x_style.retrieval import scann_index
scann_index._scann()  # is imported before this process is no one any more
folder, how = Path(sys.argv[1]), sys.argv[2]
if how == "room":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))
else:
    os.chmod(folder / "versions", 0o555)
    if os.geteuid() == 0:
        os.setuid(65534)
try:
    here.publish(folder, helpers.vectors(here.COUNT, seed=3))
except ValueError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        pytest.param(
            "room",
            r"PublishError .*2\.tmp cannot be written .*bytes are free there",
            marks=pytest.mark.slow,
        ),
        ("permission", r"PublishError .*versions cannot be written .*Permission denied"),
    ],
)
def test_a_folder_without_room_or_permission_keeps_what_it_has(copied, how, message):
    with tempfile.TemporaryDirectory() as open_to_all:  # tmp_path is the owner's alone
        os.chmod(open_to_all, 0o755)
        shutil.copytree(copied, target := Path(open_to_all) / "index")
        command = [sys.executable, "-c", FAILING, str(target), how]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (target / "versions").chmod(0o755)
        assert re.search(message, done.stdout) and str(target) in done.stdout, done
        assert versioned_folder.published(target) == [1] and published_index.load(target).ids == IDS
        assert not list((target / "versions").glob("*.tmp"))


def test_an_index_of_another_model_is_refused(folder):
    import dataclasses

    other = dataclasses.replace(helpers.CONTRACT, tokenizer_fingerprint="another")
    with pytest.raises(ContractError, match="tokenizer_fingerprint"):
        index_lib.check_contract(published_index.load(folder), other, str(folder))
