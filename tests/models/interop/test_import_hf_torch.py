"""Models that transformers makes and saves, read by us: the same states and logits."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from models.interop import hf_config, import_hf
from models.networks import bert, heads
from tests.kits.interop import needs_interop
from tests.parity import parity_kit

SIZES = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "initializer_range": 0.3,
}
MODELS = {
    "BertModel": {},
    "BertForMaskedLM": {},
    "BertForPreTraining": {"hidden_act": "gelu_new"},
    "RobertaForMaskedLM": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "XLMRobertaModel": {"type_vocab_size": 1},
    "ElectraForMaskedLM": {"embedding_size": 8},
    "ElectraForPreTraining": {"embedding_size": 8},
    "ElectraModel": {"embedding_size": 16},
}


class Network(nnx.Module):
    """Encoder and, where the file has one, the MLM head."""

    def __init__(self, config: bert.BertConfig, head: bool) -> None:
        self.encoder = bert.Encoder(config, rngs=nnx.Rngs(0))
        if head:
            self.head = heads.MlmHead(config, rngs=nnx.Rngs(0))


def batch(pad: int) -> tuple[np.ndarray, np.ndarray]:
    """ids, mask [4, 12]: texts of 12, 9, 5 and 2 tokens, padded as the family pads."""
    mask = np.arange(12) < np.array([12, 9, 5, 2])[:, None]
    ids = np.random.default_rng(0).integers(5, 60, mask.shape)
    return np.where(mask, ids, pad), mask.astype(np.int32)


def saved(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Saves a random model; its (last states, ids) and logits where it has an MLM head."""
    import torch
    import transformers

    kind = getattr(transformers, name)
    torch.manual_seed(1)
    model = kind(kind.config_class(**SIZES, **MODELS[name])).eval()
    for parameter in model.parameters():  # biases and norms too are random
        torch.nn.init.normal_(parameter, std=0.3)
    model.tie_weights()
    model.save_pretrained(folder)
    ids, mask = batch(model.config.pad_token_id)
    with torch.inference_mode():
        given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
        states = model.base_model(**given).last_hidden_state.numpy()
        whole = model(**given)
    logits = {"MaskedLM": "logits", "BertForPreTraining": "prediction_logits"}
    found = next((field for end, field in logits.items() if name.endswith(end)), None)
    return states, ids, None if found is None else whole[found].numpy()


@needs_interop
@pytest.mark.parametrize("name", MODELS)
def test_states_and_logits(tmp_path: Path, name: str) -> None:
    states, ids, logits = saved(name, tmp_path)
    config = hf_config.config_from_hf(str(tmp_path), "float32", "none", 32, dropout=0.0)
    source = import_hf.HuggingFace(str(tmp_path), config.vocab_size)
    network = Network(config, logits is not None)
    parity_kit.fill(network, source)
    real = batch(0)[1] == 1
    group = parity_kit.token_group(ids, batch(0)[1])
    hidden = network.encoder(group["tokens"], group["positions"], group["segment_ids"])
    np.testing.assert_allclose(np.asarray(hidden)[real], states[real], atol=2e-5)
    np.testing.assert_allclose(packed(network, ids, real), states[real], atol=2e-5)
    if logits is not None:
        found = network.head.transform(hidden) @ network.encoder.word_table.T
        found = np.asarray(found + network.head.bias[...])[..., : config.vocab_size]
        np.testing.assert_allclose(found[real], logits[real], atol=2e-4, rtol=1e-4)


def packed(network: Network, ids: np.ndarray, real: np.ndarray) -> jax.Array:
    """[tokens, D]: states of all texts in one row, where positions restart in each."""
    rows, columns = np.nonzero(real)
    row = {"tokens": ids[real], "positions": columns, "segment_ids": rows + 1}
    given = {name: np.asarray(array, np.int32)[None] for name, array in row.items()}
    return network.encoder(**given)[0]


@needs_interop
def test_half_precision_files_and_shards_of_transformers(tmp_path: Path) -> None:
    import torch
    import transformers

    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    model.to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    found = import_hf.HuggingFace(str(tmp_path), 60).arrays()
    expected = model.bert.embeddings.word_embeddings.weight.detach().float().numpy()
    np.testing.assert_array_equal(found["encoder/embeddings/word/embedding"], expected)
