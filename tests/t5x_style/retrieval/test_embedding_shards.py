"""The folder of a corpus's vectors: what it gives back, damage, other versions, and kills."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from t5x_style.checkpoints.restored_model import Trained
from t5x_style.distributed import startup
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.encode_corpus import encode_corpus
from t5x_style.interfaces import index as index_lib
from t5x_style.retrieval import embedding_shards, encoding, exact_index
from t5x_style.retrieval.text_collector import TextCollector
from tests.kits import retrieval_helpers as helpers
from tests.kits import virtual_devices

REPOSITORY = Path(__file__).resolve().parents[3]
COUNT = 50
IDS = [f"p{i}" for i in range(COUNT)]
STORAGE = embedding_shards.Storage(shard_size=12, dtype="float32")
EIGHT = MeshShape(8, 1, 1)


@pytest.fixture
def folder(tmp_path):
    helpers.write_embeddings(tmp_path, helpers.vectors(COUNT), IDS, shard_size=12)
    return tmp_path


def test_the_folder_gives_back_what_was_written(folder):
    loaded = encoding.load_embeddings(folder)
    vectors, expected = loaded.passages, helpers.vectors(COUNT)
    assert (loaded.ids, loaded.contract, vectors.shape) == (IDS, helpers.CONTRACT, (COUNT, 16))
    np.testing.assert_array_equal(vectors[:], expected)
    for rows in (slice(0, 5), slice(10, 27), slice(48, None), slice(7, 7)):
        np.testing.assert_array_equal(vectors[rows], expected[rows])
    rows = np.random.default_rng(0).permutation(COUNT)[:20]
    np.testing.assert_array_equal(vectors[rows], expected[rows])
    with pytest.raises(IndexError, match="step 1"):
        vectors[::2]
    _, found = exact_index.load(str(folder)).search(expected, 1)
    np.testing.assert_array_equal(found[:, 0], np.arange(COUNT))


@pytest.mark.parametrize("dtype,step", [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_half_the_space_costs_rounding(tmp_path, dtype, step):
    helpers.write_embeddings(tmp_path, helpers.vectors(COUNT), IDS, 20, dtype)
    vectors = encoding.load_embeddings(tmp_path).passages
    assert vectors.dtype == np.float32 and vectors[:5].dtype == np.float32
    np.testing.assert_allclose(vectors[:], helpers.vectors(COUNT), rtol=step, atol=1e-6)
    name = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    np.testing.assert_array_equal(vectors[:], helpers.vectors(COUNT).astype(name))
    stored = np.load(tmp_path / "shards/00000/vectors.npy")
    assert stored.dtype.itemsize == 2


def test_settings_and_values_that_cannot_be_kept_are_refused(tmp_path):
    with pytest.raises(ValueError, match="shard_size: expected at least 1, found 0"):
        embedding_shards.Storage(0, "float32")
    with pytest.raises(ValueError, match="dtype: expected one of .*found 'int8'"):
        embedding_shards.Storage(1, "int8")
    with pytest.raises(ValueError, match="exceed float16's range"):
        helpers.write_embeddings(tmp_path, 1e6 * helpers.vectors(COUNT), IDS, dtype="float16")
    writer = embedding_shards.ShardWriter(tmp_path, "v", STORAGE, IDS)
    with writer, pytest.raises(ValueError, match="expected 12 dense representations, found 3"):
        writer.write(0, {"dense": helpers.vectors(3)})


@pytest.mark.parametrize("name", ["vectors.npy", "ids.json"])
def test_damage_is_found_by_readers(folder, name):
    path = folder / "shards/00001" / name
    data = path.read_bytes()
    path.write_bytes(data[:-4])
    with pytest.raises(index_lib.IndexDamaged, match=f"{name}: expected {len(data)} bytes"):
        encoding.load_embeddings(folder)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(index_lib.IndexDamaged, match=f"{name}: its bytes changed"):
        encoding.load_embeddings(folder)
    path.unlink()
    with pytest.raises(index_lib.IndexDamaged, match=f"{name}: missing"):
        encoding.load_embeddings(folder)


def test_an_unfinished_mixed_or_old_folder_is_refused(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    helpers.write_embeddings(other, helpers.vectors(COUNT, seed=1), IDS, 12, version="other")
    manifest = json.loads((folder / "manifest.json").read_text())
    own = (other / "shards/00002").rename(folder / "shards/stray")
    (folder / "shards/00002").rename(folder / "shards/aside")
    own.rename(folder / "shards/00002")
    with pytest.raises(index_lib.IndexDamaged, match=r"00002/manifest\.json"):
        encoding.load_embeddings(folder)
    file = folder / "shards/00002/manifest.json"
    entry = {"bytes": file.stat().st_size, "sha256": embedding_shards.versioned_folder.sha256(file)}
    manifest["files"]["shards/00002/manifest.json"] = entry
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(index_lib.IndexDamaged, match="found other: the vectors of another model"):
        encoding.load_embeddings(folder)
    (folder / "manifest.json").write_text(json.dumps({"count": COUNT, "files": {}}))
    with pytest.raises(index_lib.IndexDamaged, match="older layout"):
        encoding.load_embeddings(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(index_lib.IndexDamaged, match="not written to its end"):
        encoding.load_embeddings(folder)


@jax.jit
def embed(group):
    """[B, S, 16]: a unit vector that depends on the token of the segment."""
    token = jnp.take_along_axis(group["tokens"], group["cls_at"], axis=1).astype(jnp.float32)
    vectors = jnp.sin(token[..., None] * jnp.arange(1, 17) / 7) + 0.01
    return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)


def model(mesh=EIGHT, fingerprint="checkpoint", contract=helpers.CONTRACT, calls=None):
    def counted(group):
        if calls is not None:
            calls.append(1)
        return embed(group)

    functions = helpers.embedding_functions(passage=counted, query=counted)
    return Trained(functions, contract, Partitioner(mesh), fingerprint)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file by name, but the stage's own."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def encode(folder: Path, **changes) -> int:
    """Runs the stage; returns how many batches were embedded."""
    calls: list[int] = []
    source = changes.pop("source", None) or helpers.Source(IDS, rows=8)
    storage = changes.pop("storage", STORAGE)
    encode_corpus(model(calls=calls, **changes), source, "embed_passage", storage, str(folder))
    return len(calls)


def test_a_second_run_makes_only_what_is_missing_or_damaged(tmp_path, capsys):
    assert encode(tmp_path) == 5
    whole = bytes_of(tmp_path)
    assert encode(tmp_path) == 0 and bytes_of(tmp_path) == whole
    path = tmp_path / "shards/00003/vectors.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (tmp_path / "shards/00001/manifest.json").unlink()
    (tmp_path / "shards/00004.tmp").mkdir()
    (tmp_path / "manifest.json").unlink()
    capsys.readouterr()
    assert encode(tmp_path) == 2 and bytes_of(tmp_path) == whole
    told = capsys.readouterr().err
    assert "00003: written again: " in told and "its bytes changed" in told
    assert "00001: written again: " in told and "00004.tmp: written again: left by a run" in told
    assert "3 of 5 shards are there" in told


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "another"},
        {"contract": dataclasses.replace(helpers.CONTRACT, temperature=1.0)},
        {"source": helpers.Source(IDS, rows=16)},
        {"storage": embedding_shards.Storage(12, "float16")},
    ],
    ids=["checkpoint", "contract", "source", "dtype"],
)
def test_shards_of_another_version_are_not_mixed_in(tmp_path, capsys, change):
    encode(tmp_path)
    (tmp_path / "manifest.json").unlink()
    assert encode(tmp_path, **change) == 5
    assert capsys.readouterr().err.count("it is of another checkpoint, contract or corpus") == 5
    encoding.load_embeddings(tmp_path)


def test_another_size_of_shards_starts_afresh(tmp_path):
    encode(tmp_path)
    assert (
        encode(tmp_path, storage=embedding_shards.Storage(20, "float32")) == 5
    )  # 20 texts are more than a batch
    assert len(encoding.load_embeddings(tmp_path).passages) == COUNT


def test_one_device_and_eight_write_the_same(tmp_path):
    for name, mesh in (("eight", EIGHT), ("split", MeshShape(2, 2, 2))):
        encode(tmp_path / name, mesh=mesh)
    eight, split = (encoding.load_embeddings(tmp_path / name) for name in ("eight", "split"))
    np.testing.assert_allclose(eight.passages[:], split.passages[:], atol=1e-6)
    assert eight.ids == split.ids == IDS


def test_shards_are_made_without_holding_the_corpus(tmp_path, monkeypatch):
    sizes: list[int] = []
    finish = TextCollector.finish
    monkeypatch.setattr(
        TextCollector, "finish", lambda self: sizes.append(len(self._seen)) or finish(self)
    )
    encode(tmp_path)
    assert sizes == [12, 12, 12, 12, 2]


def run(folder: Path, hold_at: int | None = None, devices: int = 1, **env: str) -> subprocess.Popen:
    """This file as a process that encodes; it stops before shard `hold_at` until it is killed."""
    flags = virtual_devices.flags(devices)
    env = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(REPOSITORY)} | env
    command = [
        sys.executable,
        "-m",
        "tests.t5x_style.retrieval.test_embedding_shards",
        str(folder),
        str(hold_at),
    ]
    return subprocess.Popen(
        command, env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_killed_run_continues_and_ends_with_the_same_bits(tmp_path):
    output, error = run(tmp_path / "whole").communicate(timeout=120)
    assert "made 5" in output, error
    killed = run(tmp_path / "killed", hold_at=3)
    assert killed.stdout.readline() == "held\n"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=120)
    left = bytes_of(tmp_path / "killed")
    assert "shards/00000/manifest.json" in left and "manifest.json" not in left
    output, error = run(tmp_path / "killed").communicate(timeout=120)
    assert "shards are there" in error and "made 5" not in output
    assert bytes_of(tmp_path / "killed") == bytes_of(tmp_path / "whole")


def test_two_processes_write_what_one_does(tmp_path):
    encode(tmp_path / "one")
    helpers.write_embeddings(tmp_path / "two", helpers.vectors(COUNT), IDS, 12, version="other")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    # only process 0 sees the folder, in which every shard has to be written again
    folders = [tmp_path / "two", tmp_path / "elsewhere"]
    both = [
        run(folder, devices=4, JAX_PROCESS_ID=str(number), **shared)
        for number, folder in enumerate(folders)
    ]
    for process in both:
        output, error = process.communicate(timeout=120)
        assert "made 5" in output, error
    one, two = (encoding.load_embeddings(tmp_path / name) for name in ("one", "two"))
    np.testing.assert_allclose(two.passages[:], one.passages[:], atol=1e-6)
    assert two.ids == one.ids and not folders[1].exists()


class Held(helpers.Source):
    """Stops before a shard once the first is written, as long as the process lives."""

    def part(self, start: int, end: int) -> helpers.Source:
        number = start // STORAGE.shard_size
        if str(number) == sys.argv[2]:
            while not (Path(sys.argv[1]) / "shards/00000").exists():
                time.sleep(0.01)  # it is written in the background
            print("held", flush=True)
            signal.pause()
        return super().part(start, end)


if __name__ == "__main__":
    startup.start()
    mesh = MeshShape(data=-1, fsdp=1, tensor=1)
    print("made", encode(Path(sys.argv[1]), mesh=mesh, source=Held(IDS, rows=8)))
