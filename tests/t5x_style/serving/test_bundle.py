"""Folders of bundles: what opening one refuses."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from input_pipelines.tokenizers import tokenization
from t5x_style.interfaces.contract import Contract, ContractError
from t5x_style.interfaces.index import NO_ROW, IndexDamaged
from t5x_style.interfaces.representation import DENSE
from t5x_style.retrieval import (
    published_index,
    representation_files,
    scann_index,
    versioned_folder,
)
from t5x_style.retrieval.beir_collection import Passage, Passages
from t5x_style.retrieval.encoding import Embeddings
from t5x_style.retrieval.exact_index import ExactIndex
from t5x_style.retrieval.scann_index import Scann, UnsupportedCpu
from t5x_style.serving import bundle, bundling
from t5x_style.serving.bundle import BundleError
from t5x_style.serving.opened.bundle_service import BundleService
from t5x_style.serving.programs import ProgramError, Programs
from tests.t5x_style.serving import bundle_kit


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_kit.publish(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def version(made: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    shutil.copytree(made, tmp_path / "bundle")
    return tmp_path / "bundle/versions/1"


def rewrite(version: Path, **changes) -> None:
    """Another manifest, whose hashes are those of the files."""
    manifest = json.loads((version / "manifest.json").read_text()) | changes
    names = list(manifest.pop("files"))
    versioned_folder.write_manifest(version, manifest, names)


def test_it_holds_no_gin_and_no_pickle(made) -> None:
    names = {path.suffix for path in made.rglob("*") if path.is_file()}
    assert names == {"", ".json", ".jsonl", ".md", ".npy", ".safetensors", ".stablehlo", ".txt"}
    for path in made.rglob("*.npy"):
        assert b"\x80\x04" not in path.read_bytes()[:12]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnsupportedCpu("choose another index"), "them: ScaNN does not run on this machine\n"),
        (None, "them: ScaNN finds 0.000 of the exact top 10, less than 0.9\n"),
    ],
)
def test_without_a_useful_index_every_vector_is_compared(
    made, tmp_path, monkeypatch, capsys, error, message
) -> None:
    version = made / "versions/1"

    def train(vectors, index):
        if error is not None:
            raise error

    def search(index, queries, k):
        return np.full((len(queries), k), -np.inf), np.full((len(queries), k), NO_ROW)

    monkeypatch.setattr(scann_index, "_train", train)
    monkeypatch.setattr(scann_index.ScannIndex, "search", search)
    held = {"dense": representation_files.read(version / "representations", "dense")}
    parts = Contract.load(version), version / "programs", version / "tokenizer"
    content = bundle.Content("run", *parts, bundle_kit.PASSAGES, held, "checkpoint")
    found = bundle.publish(tmp_path / "bundle", content, exact_below=3)
    assert not (found / "indexes").exists()
    said = capsys.readouterr().err
    assert "no index of its 5 dense vectors" in said and message in said
    service = BundleService(found)
    assert isinstance(service._search.indexes["dense"], ExactIndex)
    service.close()


@pytest.mark.parametrize(
    "name",
    [
        "programs/embed_query.stablehlo",
        "programs/parameters.safetensors",
        "corpus.jsonl",
        "tokenizer/tokenizer.json",
        "representations/vectors.npy",
        "contract.json",
    ],
)
def test_a_flipped_byte_is_found(version, name) -> None:
    content = bytearray((version / name).read_bytes())
    content[len(content) // 2] ^= 1
    (version / name).write_bytes(content)
    with pytest.raises(IndexDamaged, match="its bytes changed"):
        BundleService(version)


def test_a_version_that_was_half_written_is_found(version) -> None:
    (version / "corpus.jsonl").unlink()
    with pytest.raises(IndexDamaged, match="missing, though the manifest lists it"):
        BundleService(version)
    (version / "manifest.json").unlink()
    with pytest.raises(IndexDamaged, match="not written to its end"):
        BundleService(version)


@pytest.mark.parametrize("name", ["../../outside.json", "/etc/hostname", "a/../../b"])
def test_a_name_that_climbs_out_is_refused(version, name) -> None:
    manifest = json.loads((version / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": "0"}
    (version / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="expected names of files inside"):
        BundleService(version)


def test_a_link_is_refused(version, tmp_path) -> None:
    moved = tmp_path / "elsewhere.jsonl"
    (version / "corpus.jsonl").rename(moved)
    (version / "corpus.jsonl").symlink_to(moved)
    with pytest.raises(BundleError, match="found a link"):
        BundleService(version)


def test_a_linked_folder_is_refused(version, tmp_path) -> None:
    moved = tmp_path / "elsewhere"
    (version / "programs").rename(moved)
    (version / "programs").symlink_to(moved)
    with pytest.raises(BundleError, match="programs: expected a file or a folder, found a link"):
        BundleService(version)


@pytest.mark.parametrize("name", ["programs/fill.stablehlo", "representations/more/a.npy"])
def test_a_file_that_is_not_listed_is_refused(version, name) -> None:
    path = version / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"whatever")
    with pytest.raises(BundleError, match=f"{name}: expected files that manifest.json lists"):
        BundleService(version)
    path.unlink()
    path.symlink_to(version / "card.md")
    with pytest.raises(BundleError, match=f"{name}: expected a file or a folder, found a link"):
        BundleService(version)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"format": 2}, "format 1, found 2"), ({"kinds": ["dense", "x"]}, r"found \['x'\]")],
)
def test_what_this_code_does_not_know_is_refused(version, changes, message) -> None:
    rewrite(version, **changes)
    with pytest.raises(BundleError, match=message):
        BundleService(version)


def test_another_manifest_is_refused(version) -> None:
    versioned_folder.write_manifest(version, {"count": 1}, [])
    with pytest.raises(BundleError, match="kennel export --bundle=RUN"):
        BundleService(version)


def test_the_contract_of_another_model_is_refused(version) -> None:
    contract = Contract.load(version)
    dataclasses.replace(contract, tokenizer_fingerprint="other").save(version)
    rewrite(version)
    with pytest.raises(ContractError, match="tokenizer_fingerprint"):
        BundleService(version)


def test_a_program_that_cannot_be_read_is_refused(version) -> None:
    (version / "programs/embed_query.stablehlo").write_bytes(b"from a later version")
    rewrite(version)
    with pytest.raises(ProgramError, match="cannot read this program"):
        BundleService(version)
    with pytest.raises(ProgramError, match="expected programs"):
        Programs(version / "tokenizer")


def test_passages_with_one_id_are_refused(tmp_path) -> None:
    twice = [*bundle_kit.PASSAGES[:-1], bundle_kit.PASSAGES[0]]
    with pytest.raises(BundleError, match="the id 'a' twice"):
        bundle_kit.publish(tmp_path, listed=twice)
    assert versioned_folder.published(tmp_path / "bundle") == []


def test_a_damaged_bundle_is_not_taken_for_one_without_changes(version, tmp_path) -> None:
    folder = tmp_path / "bundle"
    assert (bundle.origin(folder), bundle.changes(folder)) == (bundle_kit.ORIGIN, 0)
    assert (bundle.origin(tmp_path), bundle.changes(tmp_path)) == ("", 0)

    def refused(match: str) -> None:
        for ask in (bundle.origin, bundle.changes, bundle.require_unchanged):
            with pytest.raises(IndexDamaged, match=f"(?s){match}.*--discard_changes"):
                ask(folder)

    (folder / "CURRENT").write_text("7\n")
    refused("names version '7'")
    (folder / "CURRENT").unlink()
    refused(r"CURRENT: not found.*complete versions are \[1\]")
    (folder / "CURRENT").write_text("1\n")
    (version / "manifest.json").write_text("{")
    refused("not a manifest")


def test_vectors_of_a_scann_index_are_copied(tmp_path, monkeypatch) -> None:
    tokenizer, trained, _ = bundle_kit.folders(tmp_path / "parts")
    texts = [tokenization.join_title(one.title, one.text) for one in bundle_kit.PASSAGES]
    vectors = bundle_kit.represented(trained, tokenizer, texts, "passage")[DENSE]
    ids = [one.id for one in bundle_kit.PASSAGES]
    embeddings = Embeddings(vectors, ids, trained.contract, "checkpoint")
    published_index.publish(tmp_path / "index", embeddings, Scann(9, 0, 0.5, 10), 1)

    def encode(*_: object) -> None:
        raise AssertionError("the index has the vectors")

    monkeypatch.setattr(bundling, "encode", encode)
    passages = Passages(tmp_path / "parts")
    parts = trained, published_index.load(tmp_path / "index"), str(tokenizer), passages
    version = bundling.publish(tmp_path / "bundle", "run", *parts)
    stored = representation_files.read(version / bundle.REPRESENTATIONS, DENSE)
    np.testing.assert_array_equal(stored[:], vectors)


def test_many_passages_get_an_index(tmp_path) -> None:
    passages = [Passage(str(n), "", f"salt of the sea {n}", "") for n in range(100)]
    made = bundle_kit.publish(tmp_path, passages, exact_below=50)
    service = BundleService(made / "versions/1")
    try:
        query = service.submit("query", service.tokenize("query", "salt"), ["dense"]).result()
        assert len(service.search(query, "dense", 3)) == 3
        assert (made / "versions/1/indexes/dense/CURRENT").is_file()
    finally:
        service.close()
