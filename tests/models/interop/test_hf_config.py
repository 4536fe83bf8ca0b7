"""Sizes from and to config.json: three families, and what is refused."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from models.interop import hf_config, torch_pickle
from models.networks import bert
from tests.kits.hf_folders import CONFIG, CONFIGS, PADS

HF_CONFIG = {
    "model_type": "bert",
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    "hidden_act": "gelu_pytorch_tanh",
}


def configured(folder: Path, **changes) -> bert.BertConfig:
    fields = {k: v for k, v in {**HF_CONFIG, **changes}.items() if v is not None}
    (folder / "config.json").write_text(json.dumps(fields))
    return hf_config.config_from_hf(str(folder), "bfloat16", "full", 32, unroll=2)


def test_config_json_becomes_a_bert_config(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert (config.hidden, config.layers, config.mlp, config.padded_vocab) == (16, 2, 32, 64)
    assert (config.activation, config.dtype, config.remat) == ("gelu_new", "bfloat16", "full")
    assert (config.position_offset, config.embedding_size, config.unroll) == (0, None, 2)
    ours = hf_config.config_from_hf(str(tmp_path), "float32", "none", 1, vocab_size=60, dropout=0.0)
    assert (ours.vocab_size, ours.dropout, ours.attention_dropout) == (60, 0.0, 0.0)
    ours = hf_config.config_from_hf(str(tmp_path), "float32", "none", 1, attention_dropout=0.25)
    assert (ours.dropout, ours.attention_dropout) == (0.1, 0.25)


def test_the_other_families(tmp_path: Path) -> None:
    gelu = {"hidden_act": "gelu", "type_vocab_size": 1}
    for name in ("roberta", "xlm-roberta", "camembert"):
        config = configured(tmp_path, model_type=name, max_position_embeddings=26, **gelu)
        assert (config.position_offset, config.max_positions, config.type_vocab) == (2, 24, 1)
    config = configured(tmp_path, model_type="roberta", pad_token_id=5, **gelu)
    assert (config.position_offset, config.max_positions) == (6, 18)
    config = configured(tmp_path, model_type="electra", embedding_size=8, **gelu)
    assert (config.table_width, config.hidden) == (8, 16)
    config = configured(tmp_path, model_type="electra", embedding_size=16, **gelu)
    assert config.embedding_size is None  # as wide as the layers: nothing is projected


@pytest.mark.parametrize("family", CONFIGS)
def test_config_json_there_and_back(tmp_path: Path, family: str) -> None:
    fields = hf_config.config_to_hf(CONFIGS[family], PADS[family], "Any")
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert hf_config.config_from_hf(str(tmp_path), "float32", "none", 32) == CONFIGS[family]


def test_only_a_fresh_head_wants_a_higher_rate(tmp_path: Path) -> None:
    for made, factor in ((None, 3.0), (["BertModel"], 3.0), (["BertForMaskedLM"], 3.0)):
        configured(tmp_path, architectures=made)
        assert hf_config.fresh_head_factor(str(tmp_path), 3.0) == factor
    configured(tmp_path, architectures=["BertForSequenceClassification"])
    assert hf_config.fresh_head_factor(str(tmp_path), 3.0) == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "distilbert"}, "expected model_type in .*found 'distilbert'"),
        ({"model_type": "roberta"}, r"hidden_act in \('gelu',\), found 'gelu_pytorch_tanh'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"hidden_size": "16"}, "expected a whole number as hidden_size, found '16'"),
        ({"layer_norm_eps": "1e-5"}, "expected a number as layer_norm_eps"),
        (
            {"model_type": "electra", "hidden_act": "gelu", "embedding_size": "8"},
            "expected a whole number as embedding_size",
        ),
        ({"hidden_size": None}, r"missing \['hidden_size'\]"),
    ],
)
def test_other_architectures_are_refused(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configured(tmp_path, **change)


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: expected a JSON object"):
        hf_config.read_fields(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config\.json: expected a JSON object"):
        hf_config.read_fields(tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.raises(
        FileNotFoundError, match="expected the folder of a model.* there is nothing"
    ):
        hf_config.read_fields(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position_offset": 2}, "position_offset 1 for the tokenizer's pad id 0, found 2"),
        ({"position_offset": 1, "embedding_size": 8}, "no layout with both"),
        ({"position_offset": 1, "activation": "relu"}, "found 'relu'"),
    ],
)
def test_an_encoder_that_no_family_has_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hf_config.config_to_hf(dataclasses.replace(CONFIG, **change), 0, "Any")


def test_a_pad_id_of_null_leaves_positions_unknown(tmp_path: Path) -> None:
    fields = HF_CONFIG | {"model_type": "roberta", "hidden_act": "gelu", "pad_token_id": None}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="expected a whole number as pad_token_id, found None"):
        hf_config.read_fields(tmp_path)


def test_vectors_of_tokens_have_the_size_of_the_head_that_is_there(tmp_path: Path) -> None:
    head, folder = tmp_path / "colbert_linear.pt", str(tmp_path)
    assert hf_config.token_vector_size(folder, 64) == 64
    assert hf_config.token_vector_size(folder, 64, 8) == 8
    torch_pickle.write(head, {"weight": np.zeros((12, 16), np.float32)})
    assert hf_config.token_vector_size(folder, 64) == 12
    assert hf_config.token_vector_size(folder, 64, 12) == 12
    with pytest.raises(ValueError, match="VECTOR_SIZE: expected 12.*found 64. Leave VECTOR_SIZE"):
        hf_config.token_vector_size(folder, 64, 64)
    torch_pickle.write(head, {"bias": np.zeros(12, np.float32)})
    with pytest.raises(ValueError, match="colbert_linear.pt: expected a matrix `weight`"):
        hf_config.token_vector_size(folder, 64)
