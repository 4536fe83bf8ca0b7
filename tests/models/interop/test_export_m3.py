"""A trained M3 as a folder: read again, and computed by PyTorch as FlagEmbedding computes it."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.interop import export_hf, import_hf
from models.losses.joint_losses import JointLossConfig
from models.networks import bert, text_embedding
from models.objectives import m3
from t5x_style.interfaces.contract import Combination, Contract, ContractError, Vocabulary
from t5x_style.interfaces.objective import GroupShape
from t5x_style.interfaces.representation import DENSE, KINDS, MULTI_VECTOR, SIDES, SPARSE
from tests.kits import published_folders
from tests.kits.interop import needs_interop
from tests.parity import parity_kit

TEXTS = published_folders.TEXTS[1:4]
LENGTH = 16
WEIGHTS = dict.fromkeys(KINDS, 1.0)
# Of a separate environment: pip install FlagEmbedding==1.4.2
FLAG_PYTHON = os.environ.get("KENNEL_FLAG_PYTHON", "")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(published_folders.encoder(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def module(tokenizer: str) -> m3.M3:
    vocabulary = Vocabulary.load(tokenizer)
    config = bert.BertConfig(
        vocabulary.size, 16, 2, 2, 32, 32, dropout=0.0, attention_dropout=0.0,
        initializer_range=0.3, position_offset=vocabulary.pad + 1, type_vocab=1,
    )  # fmt: skip
    embedding = text_embedding.EmbeddingConfig("cls", True, "cosine", 0.02, LENGTH, LENGTH, "", "")
    shape = GroupShape(len(TEXTS), LENGTH, 1)
    made = m3.M3(
        config, embedding, vocabulary, shape, shape, JointLossConfig(WEIGHTS, WEIGHTS),
        group_size=1, vector_size=6, rngs=nnx.Rngs(0),
    )  # fmt: skip
    kernel = np.random.default_rng(0).normal(size=(16, 1))
    made.sparse.dense.kernel[...] = jnp.asarray(kernel, jnp.float32)  # it begins with zeros
    return made


@pytest.fixture(scope="module")
def folder(module: m3.M3, tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    stage, made = tmp_path_factory.mktemp("train"), tmp_path_factory.mktemp("export")
    module.contract().save(stage)
    written = export_hf.export(
        str(made),
        str(stage),
        parity_kit.Weights(module),
        module.config,
        module.vocabulary,
        tokenizer,
    )
    assert written == {"encoder": "encoder", "multi_vector": "multi_vector"}
    return made / "encoder"


def test_it_is_read_again(module: m3.M3, folder: Path) -> None:
    size = module.config.vocab_size
    found = import_hf.HuggingFace(str(folder), size, m3_heads=True).arrays()
    expected = parity_kit.Weights(module).arrays()
    assert found.keys() == expected.keys()
    for path, array in found.items():
        np.testing.assert_array_equal(array, expected[path][: len(array)], err_msg=path)


def test_weights_of_kinds_are_in_the_contract_and_the_card(
    module: m3.M3, folder: Path, tokenizer: str, tmp_path: Path
) -> None:
    def export(combination: Combination, **given: Any) -> None:
        contract = module.contract()
        contract.save(tmp_path)
        (tmp_path / "hybrid").mkdir(exist_ok=True)
        dataclasses.replace(contract, combination=combination).save(tmp_path / "hybrid")
        arguments = {"config": module.config, "vocabulary": module.vocabulary, **given}
        export_hf.export(
            str(tmp_path / "made"), str(tmp_path), parity_kit.Weights(module),
            tokenizer=tokenizer, hybrid=str(tmp_path / "hybrid"), **arguments,
        )  # fmt: skip

    assert not (folder / "contract.json").exists()
    chosen = Combination((SPARSE, DENSE), {SPARSE: 0.3, DENSE: 0.7}, 10)
    export(chosen)
    made = tmp_path / "made/encoder"
    assert Contract.load(made).combination == chosen
    card = (made / "README.md").read_text()
    assert "0.3 sparse + 0.7 dense" in card
    assert "weights_for_different_modes=[0.7, 0.3, 0.0]" in card
    plain = (folder / "README.md").read_text()
    assert "Several kinds" not in plain and card.startswith(plain)
    with pytest.raises(ContractError, match="no multi_vector"):
        export(Combination(KINDS, dict.fromkeys(KINDS, 1.0), 10), unused=["^multi_vector/"])


@needs_interop
def test_pytorch_computes_the_same(module: m3.M3, folder: Path) -> None:
    """All three kinds, from the folder's files and the published formulas alone."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder)(**tokens).last_hidden_state
        heads = {}
        for name, size in (("sparse_linear", 1), ("colbert_linear", 6)):
            heads[name] = torch.nn.Linear(16, size)
            heads[name].load_state_dict(torch.load(folder / f"{name}.pt", weights_only=True))
        weights = torch.relu(heads["sparse_linear"](hidden))[..., 0]
        vectors = torch.nn.functional.normalize(heads["colbert_linear"](hidden[:, 1:]), dim=-1)
        dense = torch.nn.functional.normalize(hidden[:, 0], dim=-1)

    group = parity_kit.token_group(tokens["input_ids"].numpy(), tokens["attention_mask"].numpy())
    found: Any = module.represent("passage", group, KINDS)
    np.testing.assert_allclose(found[DENSE][:, 0], dense, atol=1e-4)
    excluded = {module.vocabulary.cls, module.vocabulary.sep, module.vocabulary.unk}
    for row, (text, mask) in enumerate(
        zip(tokens["input_ids"].tolist(), tokens["attention_mask"].numpy(), strict=True)
    ):
        expected: dict[int, float] = {}
        for at in np.flatnonzero(mask):
            if text[at] not in excluded and weights[row, at] > 0:
                expected[text[at]] = max(expected.get(text[at], 0), float(weights[row, at]))
        sparse = {name: np.asarray(array[row]) for name, array in found[SPARSE].items()}
        kept = sparse["segments"] > 0
        entries = zip(sparse["tokens"][kept].tolist(), sparse["weights"][kept], strict=True)
        assert dict(entries) == pytest.approx(expected, abs=1e-4) and expected
        several = {name: np.asarray(array[row]) for name, array in found[MULTI_VECTOR].items()}
        real = np.flatnonzero(mask)[1:]
        assert np.flatnonzero(several["segments"]).tolist() == real.tolist()
        np.testing.assert_allclose(several["vectors"][real], vectors[row, real - 1], atol=1e-4)


@pytest.mark.skipif(not FLAG_PYTHON, reason="needs KENNEL_FLAG_PYTHON, a Python with FlagEmbedding")
def test_flag_embedding_gives_the_same_of_all_kinds(module: m3.M3, folder: Path) -> None:
    from transformers import AutoTokenizer

    client = Path(__file__).with_name("flag_embedding_client.py")
    command = [FLAG_PYTHON, str(client), str(folder), "6", str(LENGTH)]
    done = subprocess.run(
        command, input=json.dumps(TEXTS), capture_output=True, text=True, check=True
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    tokens = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="np")
    group = parity_kit.token_group(tokens["input_ids"], tokens["attention_mask"])
    ours: Any = module.represent("passage", group, KINDS)
    np.testing.assert_allclose(ours[DENSE][:, 0], theirs["dense"], atol=1e-4)
    for row, length in enumerate(tokens["attention_mask"].sum(axis=1)):
        vectors = ours[MULTI_VECTOR]["vectors"][row, 1:length]
        np.testing.assert_allclose(vectors, theirs["multi_vector"][row], atol=1e-4)
        sparse = {name: np.asarray(array[row]) for name, array in ours[SPARSE].items()}
        kept = sparse["segments"] > 0
        entries = zip(sparse["tokens"][kept].tolist(), sparse["weights"][kept], strict=True)
        expected = {int(token): weight for token, weight in theirs["sparse"][row].items()}
        assert dict(entries) == pytest.approx(expected, abs=1e-4)


@needs_interop
def test_sentence_transformers_gives_the_same_vectors_of_tokens(
    module: m3.M3, folder: Path
) -> None:
    from sentence_transformers import MultiVectorEncoder
    from transformers import AutoTokenizer

    model = MultiVectorEncoder(str(folder.parent / "multi_vector"), device="cpu")
    tokens = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="np")
    group = parity_kit.token_group(tokens["input_ids"], tokens["attention_mask"])
    lengths = tokens["attention_mask"].sum(axis=1)
    ours: dict[str, Any] = {side: module.represent(side, group, KINDS) for side in SIDES}
    encode = {"query": model.encode_query, "passage": model.encode_document}
    theirs = {side: encode[side](TEXTS, convert_to_numpy=True) for side in SIDES}
    for row, length in enumerate(lengths):
        for side in SIDES:
            found = np.asarray(ours[side][MULTI_VECTOR]["vectors"][row, 1:length])
            scale = length - 1 if side == "query" else 1  # so that ours is a mean
            np.testing.assert_allclose(found * scale, theirs[side][row], atol=1e-5)
    scores = model.similarity(theirs["query"], theirs["passage"]).numpy()
    expected = [
        [
            float(
                (np.asarray(ours["query"][MULTI_VECTOR]["vectors"][q, 1:n]) @ passage.T)
                .max(1)
                .sum()
            )
            for passage in theirs["passage"]
        ]
        for q, n in enumerate(lengths)
    ]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def export_cut(module: m3.M3, tokenizer: str, folder: Path, size: int, **settings: Any) -> Path:
    """The export with vectors of tokens of a size, of a model that was trained for 4 and 2."""
    contract = dataclasses.replace(module.contract(), trained_token_vector_sizes=(4, 2))
    contract.save(folder)
    export_hf.export(
        str(folder / "made"), str(folder), parity_kit.Weights(module), module.config,
        module.vocabulary, tokenizer, token_vector_size=size, **settings,
    )  # fmt: skip
    return folder / "made"


def test_cut_vectors_are_those_of_a_smaller_projection(
    module: m3.M3, tokenizer: str, tmp_path: Path
) -> None:
    short = dataclasses.replace(module.contract(), token_vector_size=4)
    chosen = Combination((MULTI_VECTOR,), {MULTI_VECTOR: 1.0}, 10)
    (tmp_path / "hybrid").mkdir()
    dataclasses.replace(short, combination=chosen).save(tmp_path / "hybrid")
    made = export_cut(module, tokenizer, tmp_path, 4, hybrid=str(tmp_path / "hybrid"))
    size, whole = module.config.vocab_size, parity_kit.Weights(module).arrays()
    found = import_hf.HuggingFace(str(made / "encoder"), size, m3_heads=True).arrays()
    for name in ("kernel", "bias"):
        path = f"multi_vector/dense/{name}"
        np.testing.assert_array_equal(found[path], whole[path][..., :4])
    sparse = "sparse/dense/kernel"
    np.testing.assert_array_equal(found[sparse], whole[sparse])
    said = Contract.load(made / "encoder")  # a whole model, whose vectors have four dimensions
    assert (said.combination, said.token_vector_size) == (chosen, None)
    with pytest.raises(ContractError, match="token_vector_size: expected 4, found 2"):
        export_cut(module, tokenizer, tmp_path, 2, hybrid=str(tmp_path / "hybrid"))


@pytest.mark.parametrize(
    ("size", "message"),
    [(3, r"one of \[4, 2\], found 3"), (7, "export.token_vector_size: expected 1 to 6 dimensions")],
)
def test_sizes_that_cannot_be_exported_are_refused(
    module: m3.M3, tokenizer: str, tmp_path: Path, size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        export_cut(module, tokenizer, tmp_path, size)
    assert not (tmp_path / "made").exists()
    made = export_cut(module, tokenizer, tmp_path, 6)  # the whole size
    config = json.loads((made / "multi_vector/1_Dense/config.json").read_text())
    assert config["out_features"] == 6


@pytest.mark.slow
@needs_interop
def test_sentence_transformers_gives_the_same_cut_vectors(
    module: m3.M3, tokenizer: str, tmp_path: Path
) -> None:
    from sentence_transformers import MultiVectorEncoder
    from transformers import AutoTokenizer

    made = export_cut(module, tokenizer, tmp_path, 4)
    model = MultiVectorEncoder(str(made / "multi_vector"), device="cpu")
    tokens = AutoTokenizer.from_pretrained(made / "encoder")(
        TEXTS, padding=True, return_tensors="np"
    )
    group = parity_kit.token_group(tokens["input_ids"], tokens["attention_mask"])
    whole: Any = module.represent("passage", group, [MULTI_VECTOR])[MULTI_VECTOR]["vectors"]
    theirs = model.encode_document(TEXTS, convert_to_numpy=True)
    for row, length in enumerate(tokens["attention_mask"].sum(axis=1)):
        short = np.array(whole)[row, 1:length, :4]
        short /= np.linalg.norm(short, axis=1, keepdims=True)
        np.testing.assert_allclose(short, theirs[row], atol=1e-5)
