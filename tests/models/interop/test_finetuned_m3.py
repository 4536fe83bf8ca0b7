"""The folder that a fine-tuned encoder of several kinds leaves, and what its card says of them."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

from input_pipelines.tokenizers import import_tokenizer, question_tokens
from models.interop import import_hf
from models.objectives import m3
from t5x_style.interfaces import objective
from t5x_style.interfaces.contract import Combination, Contract, ContractError, Vocabulary
from t5x_style.interfaces.representation import DENSE, KINDS, SPARSE
from tests.kits import published_folders as folders
from tests.models.interop.test_finetuned_folder import CASES, TEXTS, Finetuned
from tests.parity import parity_kit

SETTINGS = ("GROUP_SIZE=1", "VECTOR_SIZE=8", "PASSAGE_ROW_LENGTH=16", "QUERY_ROW_LENGTH=16")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Finetuned:
    folder = tmp_path_factory.mktemp("finetuned")
    published = folders.published(folder / "made", **CASES["prompts"])
    import_tokenizer.import_tokenizer(str(folder), str(published))
    flags = [f"--gin.{setting}" for setting in SETTINGS]
    named = [f"--gin.TOKENIZER={folder / 'tokenizer'}", *folders.UNUSED, *flags]
    with folders.configured(m3.M3, "published_m3", published, *named) as make:
        module = make(rngs=nnx.Rngs(3))
    size = Vocabulary.load(str(folder / "tokenizer")).size
    source = import_hf.HuggingFace(str(published), size).arrays()
    for path, variable in parity_kit.parameters(module).items():
        if path in source:
            table = np.array(variable[...])
            table[: len(source[path])] = source[path]
            variable[...] = table
    module.contract().save(folder)
    folders.corpus(folder / "texts")
    return Finetuned(published, folder, module)


def combined(made, folder, *kinds) -> str:
    folder.mkdir()
    weights = dict.fromkeys(kinds, 0.5)
    combination = Combination(tuple(kinds), weights, 100)
    dataclasses.replace(made.contract, combination=combination).save(folder)
    return str(folder)


def test_the_vector_is_that_of_the_published_folder(made):
    """Its pooling and its prompts, though M3's are [CLS] and none."""
    contract = made.contract
    assert contract.pooling == "mean" and contract.query_prefix == "query: "
    group = question_tokens.QuestionEncoder(
        made.tokenizer, contract.query_length, contract.query_prefix
    )(TEXTS)
    vectors = np.asarray(objective.embedder(made.module.functions(), "query")(group))[:, 0]
    with folders.objective(made.published, made.folder / "tokenizer") as make:
        plain = make(rngs=nnx.Rngs(0))
    for path, variable in parity_kit.parameters(plain).items():
        variable[...] = parity_kit.parameters(made.module)[path][...]
    expected = np.asarray(objective.embedder(plain.functions(), "query")(group))[:, 0]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_heads_and_weights_are_in_the_folder_and_on_its_card(made, tmp_path):
    hybrid = combined(made, tmp_path / "hybrid", DENSE, SPARSE)
    outputs = made.export(tmp_path / "out", hybrid=hybrid)
    assert outputs == {
        "encoder": "encoder", "multi_vector": "multi_vector", "card": "encoder/README.md"
    }  # fmt: skip
    encoder = tmp_path / "out/encoder"
    size = made.module.config.vocab_size
    found = import_hf.HuggingFace(str(encoder), size, m3_heads=True).arrays()
    expected = made.arrays()
    assert found.keys() == expected.keys()
    for path, array in found.items():
        np.testing.assert_array_equal(array, expected[path][: len(array)], err_msg=path)
    assert Contract.load(encoder).combination.kinds == (DENSE, SPARSE)
    card = (encoder / "README.md").read_text()
    assert card.startswith("---\n") and "VERDICT" in card  # of the run, as of other models
    assert '"path/to/this/folder", pooling_method="mean", colbert_dim=8, use_fp16=False' in card
    assert "return_colbert_vecs=True" in card and "texts = ['passage: a passage']" in card
    assert "weights_for_different_modes=[0.5, 0.5, 0.0]" in card
    without = made.export(tmp_path / "without")
    assert "BGEM3FlagModel" not in (tmp_path / "without" / without["card"]).read_text()


def test_weights_of_a_kind_that_the_model_lacks_are_refused(made, tmp_path):
    hybrid = combined(made, tmp_path / "hybrid", *KINDS)
    arrays = {p: a for p, a in made.arrays().items() if not p.startswith("multi_vector/")}

    class Without:
        def arrays(self):
            return arrays

    with pytest.raises(ContractError, match="no multi_vector"):
        made.export(tmp_path / "out", hybrid=hybrid, weights=Without())
