"""Pooling, normalisation, prefixes and lengths come from a sentence-transformers folder."""

import dataclasses
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from models.interop import published_contract
from models.interop.published_contract import PublishedContractError
from models.objectives import labse, retromae, simlm
from tests.kits import published_folders as folders

PROMPTS = {"prompts": {"query": "query: ", "passage": "passage: "}}


def contract_of(folder: Path, *flags: str):
    """The contract of a BiEncoder that the gin files bind."""
    published_contract._report.cache_clear()
    published_contract._warn.cache_clear()
    with folders.objective(folder, folder, *flags) as make:
        return make(rngs=nnx.Rngs(0)).contract()


def edit(path: Path, **fields) -> None:
    found = json.loads(path.read_text()) if path.is_file() else {}
    folders.write(path, {**found, **fields})


@pytest.fixture
def mean(tmp_path: Path) -> Path:
    return folders.published(tmp_path)


def test_everything_is_taken_from_the_folder(tmp_path, capsys):
    settings = PROMPTS | {"similarity_fn_name": "dot"}
    folder = folders.published(
        tmp_path, ("cls_token",), ("Transformer", "Pooling"), settings=settings
    )
    contract = contract_of(folder)
    assert (contract.pooling, contract.normalise, contract.similarity) == ("cls", False, "dot")
    assert (contract.query_length, contract.passage_length) == (16, 16)
    assert (contract.query_prefix, contract.passage_prefix) == ("query: ", "passage: ")
    assert contract.temperature == 0.05, "the folder does not say it"
    assert capsys.readouterr().err.splitlines() == [
        f"published contract of {folder}: pooling 'cls' (1_Pooling/config.json); normalise False "
        "(modules.json); similarity 'dot', query_prefix 'query: ', passage_prefix 'passage: ' "
        "(config_sentence_transformers.json); query_length 16, passage_length 16 "
        "(sentence_bert_config.json); nothing overridden"
    ]


def test_what_is_overridden_is_reported_in_the_same_line(mean, capsys):
    contract = contract_of(mean, "--gin.PASSAGE_LENGTH=8", "--gin.QUERY_PREFIX=ask: ")
    assert (contract.query_length, contract.passage_length) == (16, 8)
    assert (contract.query_prefix, contract.passage_prefix) == ("ask: ", "")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "; overridden: passage_length 8 in place of 16, query_prefix 'ask: ' in place of ''"
    )


@pytest.mark.parametrize("name", ["POOLING", "text_embedding.EmbeddingConfig.pooling"])
def test_a_forced_pooling_that_contradicts_the_folder_is_an_error(mean, name):
    with pytest.raises(
        PublishedContractError, match="expected pooling 'mean'.*found pooling 'cls'"
    ):
        contract_of(mean, f"--gin.{name}=cls")


def test_a_forced_normalisation_that_contradicts_the_folder_is_an_error(mean):
    with pytest.raises(PublishedContractError, match="expected normalise True.*ALLOW_OTHER"):
        contract_of(mean, "--gin.NORMALISE=False")


@pytest.mark.parametrize("name", ["POOLING", "text_embedding.EmbeddingConfig.pooling"])
def test_another_pooling_can_be_allowed_with_a_warning(mean, name):
    with pytest.warns(UserWarning, match="pooling 'cls', but the encoder was trained with pooling"):
        contract = contract_of(mean, f"--gin.{name}=cls", "--gin.ALLOW_OTHER_POOLING=True")
    assert contract.pooling == "cls" and contract.normalise


def test_unit_vectors_of_an_encoder_for_cosines_are_no_contradiction(tmp_path, capsys):
    folder = folders.published(tmp_path, kinds=("Transformer", "Pooling"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not contract_of(folder).normalise
        assert contract_of(folder, "--gin.NORMALISE=True").normalise
    assert capsys.readouterr().err.endswith("overridden: normalise True in place of False\n")


def test_unit_vectors_of_an_encoder_for_inner_products_are_one(tmp_path):
    dot = {"similarity_fn_name": "dot"}
    folder = folders.published(tmp_path, kinds=("Transformer", "Pooling"), settings=dot)
    with pytest.raises(PublishedContractError, match="expected normalise False"):
        contract_of(folder, "--gin.NORMALISE=True")


def test_a_plain_folder_says_nothing(tmp_path, capsys):
    folder = folders.encoder(tmp_path)
    with pytest.raises(PublishedContractError, match=r"with modules.json.*found none. Set those"):
        contract_of(folder)
    bound = ["--gin.POOLING=mean", "--gin.NORMALISE=True", "--gin.SIMILARITY=cosine"]
    bound += ["--gin.QUERY_PREFIX=''", "--gin.PASSAGE_PREFIX=''", "--gin.QUERY_LENGTH=8"]
    with pytest.raises(PublishedContractError, match="PASSAGE_LENGTH.* that are not set"):
        contract_of(folder, *bound)
    contract = contract_of(folder, *bound, "--gin.PASSAGE_LENGTH=12")
    assert (contract.pooling, contract.query_length, contract.passage_length) == ("mean", 8, 12)
    assert "it does not say how vectors are made; bound: pooling 'mean'" in capsys.readouterr().err


UNSUPPORTED = {
    "max": {"modes": ("max_tokens",)},
    "weightedmean": {"modes": ("weightedmean_tokens",)},
    "lasttoken": {"modes": ("lasttoken",)},
    "mean + max": {"modes": ("mean_tokens", "max_tokens")},
    "Dense": {"kinds": ("Transformer", "Pooling", "Dense", "Normalize")},
    "WordEmbeddings": {"kinds": ("WordEmbeddings", "Pooling")},
    "LSTM": {"kinds": ("Transformer", "LSTM", "Pooling")},
}


@pytest.mark.parametrize("found", UNSUPPORTED)
def test_unsupported_modules_are_named(found, tmp_path):
    folder = folders.published(tmp_path, **UNSUPPORTED[found])
    with pytest.raises(
        PublishedContractError, match="expected modules.json to list Transformer"
    ) as error:
        published_contract.read(str(folder))
    assert found in str(error.value).split("found ")[1]


@pytest.fixture
def pooler(tmp_path: Path) -> Path:
    """As published LaBSE: [CLS], a Dense module, Normalize."""
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    folder = folders.published(tmp_path, ("cls_token",), kinds)
    square = {"in_features": 16, "out_features": 16, "bias": True}
    tanh = "torch.nn.modules.activation.Tanh"
    edit(folder / "2_Dense/config.json", **square, activation_function=tanh)
    dense = {"linear.weight": np.eye(16, dtype=np.float32), "linear.bias": np.zeros(16, np.float32)}
    save_file(dense, folder / "2_Dense/model.safetensors")
    return folder


def test_a_pooler_is_read_and_a_bi_encoder_refuses_it(pooler):
    contract = published_contract.read(str(pooler))
    assert (contract.pooling, contract.normalise) == ("pooler", True)
    with pytest.raises(PublishedContractError, match=r"pooling is 'pooler'.*\('cls', 'mean'\)"):
        contract_of(pooler)


@pytest.mark.parametrize(
    ("name", "kind"), [("retromae", retromae.RetroMAE), ("simlm", simlm.SimLM)]
)
def test_pretraining_of_the_cls_vector_warns_of_another_pooling(name, kind, mean):
    flags = [f"--gin.TOKENIZER={mean}", "--gin.ROWS=2", "--gin.ROW_LENGTH=32", "--gin.SEGMENTS=2"]
    flags += ["--gin.simlm.SimLM.generator_config=None"] if name == "simlm" else []
    published_contract._warn.cache_clear()
    with (
        folders.configured(kind, f"published_{name}", mean, *flags) as make,
        pytest.warns(UserWarning, match="pooling 'cls', but the encoder was trained with pooling"),
    ):
        contract = make(rngs=nnx.Rngs(0)).contract()
    assert (contract.pooling, contract.normalise, contract.query_length) == ("cls", True, 16)


def test_labse_takes_the_contract_of_a_published_one(pooler):
    flags = [f"--gin.TOKENIZER={pooler}", "--gin.PAIRS=2", "--gin.SENTENCE_LENGTH=8"]
    with folders.configured(labse.LaBSE, "published_labse", pooler, *flags) as make:
        contract = make(rngs=nnx.Rngs(0)).contract()
    assert (contract.pooling, contract.normalise) == ("pooler", True)
    assert (contract.query_length, contract.passage_length) == (8, 8)


def test_the_length_is_at_most_that_of_the_encoder(mean):
    edit(mean / "sentence_bert_config.json", max_seq_length=512)
    assert published_contract.max_length(str(mean)) == 32
    edit(mean / "sentence_bert_config.json", max_seq_length=None)
    assert published_contract.max_length(str(mean)) == 32
    edit(mean / "tokenizer_config.json", model_max_length=20)
    contract = published_contract.read(str(mean))
    assert (contract.max_length, contract.sources["max_length"]) == (20, "tokenizer_config.json")


def test_a_length_above_the_positions_is_refused(mean):
    assert published_contract.max_length(str(mean), 32) == 32
    with pytest.raises(PublishedContractError, match="at most 32 tokens.*found 33.*PASSAGE_LENGTH"):
        published_contract.max_length(str(mean), 33)


def test_positions_before_the_first_of_a_roberta_do_not_count(mean):
    edit(mean / "sentence_bert_config.json", max_seq_length=32)
    edit(mean / "config.json", model_type="roberta", pad_token_id=1)
    assert published_contract.max_length(str(mean)) == 30


@pytest.mark.parametrize(
    ("file", "fields", "match"),
    [
        ("config_sentence_transformers.json", {"similarity_fn_name": "euclidean"}, "'euclidean'"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"sts": "same: "}, "default_prompt_name": "sts"},
            "default_prompt_name is 'sts', with the text 'same: '",
        ),
    ],
)
def test_settings_that_are_not_supported(file, fields, match, mean):
    edit(mean / file, **fields)
    with pytest.raises(PublishedContractError, match=match):
        published_contract.read(str(mean))


def test_prompts_that_the_pooling_leaves_out_are_refused(tmp_path):
    folder = folders.published(tmp_path, settings=PROMPTS)
    edit(folder / "1_Pooling/config.json", include_prompt=False)
    with pytest.raises(PublishedContractError, match="include_prompt is false"):
        published_contract.read(str(folder))


def test_lower_casing_that_the_tokenizer_does_not_do_is_refused(mean):
    edit(mean / "sentence_bert_config.json", do_lower_case=True)
    assert published_contract.max_length(str(mean)) == 16, "this tokenizer lower-cases"
    edit(mean / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]})
    with pytest.raises(PublishedContractError, match="do_lower_case is true"):
        published_contract.read(str(mean))


@pytest.mark.parametrize("text", ["[{", '[{"path": ""}]', '{"modules": 3}'])
def test_a_damaged_file_is_named(text, mean):
    (mean / "modules.json").write_text(text)
    with pytest.raises(PublishedContractError, match=r"modules.json.*Copy the (folder|file)"):
        published_contract.read(str(mean))


def test_a_line_is_printed_once_in_a_run(mean, capsys):
    published_contract._report.cache_clear()
    with folders.objective(mean, mean) as make:
        one, other = (make(rngs=nnx.Rngs(seed)).contract() for seed in (0, 1))
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    assert len(capsys.readouterr().err.splitlines()) == 1
