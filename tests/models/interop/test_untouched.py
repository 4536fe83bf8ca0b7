"""A published encoder without training: its vectors, and its marks, through our own stages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from input_pipelines.batches import packed_text
from input_pipelines.sources import beir
from input_pipelines.store import prepare
from input_pipelines.tokenizers import import_tokenizer
from models.interop import import_hf, published_contract
from t5x_style import initialise_model
from t5x_style.checkpoints import checkpoint_directory, restored_model
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.interfaces.contract import Contract, ContractError
from t5x_style.training import warm_start
from tests.kits import published_folders as folders
from tests.kits import virtual_devices
from tests.kits.interop import needs_interop
from tests.models.interop import test_published_encoder

UNUSED_PARTS = ("^pooler/", "^next_sentence/", "^classifier/", "^head/", "^decoder/")
PROMPTS = {"prompts": {"query": "query: ", "document": "passage: "}}
DOT = {"similarity_fn_name": "dot"}
CASES = {
    "mean": {},
    "cls": {"modes": ("cls_token",)},
    "not normalised": {"kinds": ("Transformer", "Pooling"), "settings": DOT},
    "prompts": {"settings": PROMPTS},
}


def stores(folder: Path, published: Path, passages: Path, prefixes: bool = True) -> dict[str, str]:
    """Tokenizer, passages and queries as the stages before `initialise_model` make them."""
    import_tokenizer.import_tokenizer(str(folder), str(published))
    contract = published_contract.read(str(published))
    found = {"tokenizer": str(folder / "tokenizer")}
    for kind, source, prefix in (
        ("passage", beir.BeirCorpus(str(passages), 100_000), contract.passage_prefix),
        ("query", beir.BeirQueries(str(passages), ("test",), 100_000), contract.query_prefix),
    ):
        where = folder / kind
        where.mkdir()
        prepare.prepare(
            str(where), source, found["tokenizer"], kind, "all", kind, contract.max_length,
            prefix if prefixes else "", 64, 1, 0,
        )  # fmt: skip
        found[kind] = str(where / "store")
    return found


def model(folder: Path, published: Path, made: dict[str, str]) -> restored_model.Trained:
    """The published encoder, through a model folder."""
    partitioner = Partitioner(MeshShape(8, 1, 1))
    with folders.objective(published, Path(made["tokenizer"])) as make:
        source = import_hf.HuggingFace(str(published), vocabulary_size(made["tokenizer"]))
        parts = warm_start.Initialise(source, {"": ""}, unused=UNUSED_PARTS)
        outputs = initialise_model.initialise_model(make, [parts], partitioner, 0, str(folder))
        assert outputs == {"checkpoint": "checkpoints", "model": "."}
        return restored_model.load(make, str(folder), partitioner)


def vocabulary_size(tokenizer: str) -> int:
    return int(json.loads((Path(tokenizer) / "vocabulary.json").read_text())["size"])


def source(store: str, tokenizer: str, length: int) -> packed_text.EncodeSource:
    return packed_text.EncodeSource(store, length, 4, 8, segment_length=length, tokenizer=tokenizer)


def assert_vectors_of_sentence_transformers(tmp_path: Path, published: Path, texts: Path) -> None:
    """Queries and passages of each length, in packed rows."""
    from sentence_transformers import SentenceTransformer

    made = stores(tmp_path, published, texts)
    ours = model(tmp_path / "model", published, made)
    theirs = SentenceTransformer(str(published), device="cpu")
    length = published_contract.max_length(str(published))
    assert length == theirs.max_seq_length
    rows = {
        name: [json.loads(line) for line in (texts / f"{name}.jsonl").read_text().splitlines()]
        for name in ("queries", "corpus")
    }
    queries = theirs.encode_query([row["text"] for row in rows["queries"]])
    passages = theirs.encode_document([f"{row['title']} {row['text']}" for row in rows["corpus"]])
    for side, expected in (("query", queries), ("passage", passages)):
        found = ours.encode(side, source(made[side], made["tokenizer"], length))
        assert found.shape == expected.shape and np.abs(expected).max() > 0.1
        np.testing.assert_allclose(found, expected, atol=1e-5)


@needs_interop
@pytest.mark.parametrize("case", CASES)
def test_vectors_are_those_of_sentence_transformers(case, tmp_path):
    published = folders.published(tmp_path / "made", **CASES[case])
    assert_vectors_of_sentence_transformers(tmp_path, published, tmp_path / "made/texts")


@needs_interop
def test_vectors_of_a_real_encoder_are_those_of_sentence_transformers(tmp_path):
    published = test_published_encoder.real()
    texts = folders.corpus(tmp_path / "texts")
    long = " ".join(folders.WORDS * 20)  # beyond its 256 tokens
    lines = (texts / "queries.jsonl").read_text().splitlines()
    row = json.loads(lines[0]) | {"text": long}
    (texts / "queries.jsonl").write_text("\n".join([json.dumps(row), *lines[1:]]) + "\n")
    lines = (texts / "corpus.jsonl").read_text().splitlines()
    row = json.loads(lines[0]) | {"text": long}
    (texts / "corpus.jsonl").write_text("\n".join([json.dumps(row), *lines[1:]]) + "\n")
    assert_vectors_of_sentence_transformers(tmp_path, published, texts)


def test_a_store_without_the_prompts_is_refused(tmp_path):
    published = folders.published(tmp_path / "made", settings=PROMPTS)
    made = stores(tmp_path, published, tmp_path / "made/texts", prefixes=False)
    ours = model(tmp_path / "model", published, made)
    with pytest.raises(ContractError, match="query_prefix: expected 'query: ', found ''"):
        ours.encode("query", source(made["query"], made["tokenizer"], folders.MAX_LENGTH))
    with pytest.raises(ContractError, match="passage_prefix: expected 'passage: ', found ''"):
        ours.encode("passage", source(made["passage"], made["tokenizer"], folders.MAX_LENGTH))


def test_a_model_folder_holds_no_moments_and_continues_where_it_was(tmp_path):
    published = folders.published(tmp_path / "made")
    made = stores(tmp_path, published, tmp_path / "made/texts")
    one = model(tmp_path / "model", published, made)
    assert Contract.load(tmp_path / "model").pooling == "mean"
    shapes = checkpoint_directory.read_meta(tmp_path / "model/checkpoints/0")["shapes"]
    assert set(shapes["optimizer"].values()) == {"int32[]"}, "no more than a count of steps"
    assert model(tmp_path / "model", published, made).fingerprint == one.fingerprint


def test_a_model_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"initialise_from: expected at least one source"):
        initialise_model.initialise_model(lambda **_: None, [], Partitioner(), 0, str(tmp_path))


def run(recipe: str, folder: Path, published: Path, *flags: str) -> dict[str, dict]:
    """Runs a recipe in a process of one device; its metrics.json."""
    command = [
        sys.executable,
        "-m",
        "launch.recipe",
        f"--gin_file=gin_configs/recipes/{recipe}.gin",
    ]
    command += [f"--gin.RUN_DIR={folder}", f"--gin.PUBLISHED={published}", *flags]
    environment = {**os.environ, "XLA_FLAGS": virtual_devices.flags()}
    done = subprocess.run(
        command, cwd=folders.REPOSITORY, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "published contract of" in done.stdout + done.stderr
    return json.loads((folder / "metrics.json").read_text())


@pytest.mark.slow
def test_the_recipe_puts_the_prompts_before_texts(tmp_path):
    """Encoding and evaluation would refuse stores without them."""
    published = folders.published(tmp_path / "made", settings=PROMPTS)
    found = run("untouched", tmp_path / "run", published, f"--gin.CORPUS={tmp_path}/made/texts")
    contract = found["facts"]["published"]["contract"]
    assert (contract["query_prefix"], contract["passage_prefix"]) == ("query: ", "passage: ")
    assert (contract["pooling"], contract["query_length"]) == ("mean", folders.MAX_LENGTH)
    assert found["n"] == len(folders.TEXTS) and set(found["systems"]) == {"bm25", "published"}


@pytest.mark.slow
def test_a_real_encoder_reaches_its_marks_on_scifact(shared, tmp_path):
    """The marks are those of ANCHORS.md there: 256 tokens, exact search."""
    corpus = shared / "data/ir_scifact"
    real = test_published_encoder.real()
    found = run("untouched", tmp_path / "run", real, f"--gin.CORPUS={corpus}")
    assert found["n"] == 300
    metrics = found["systems"]["published"]
    assert metrics["MRR@10"]["value"] == pytest.approx(0.6047, abs=0.005)
    assert metrics["nDCG@10"]["value"] == pytest.approx(0.6451, abs=0.005)
