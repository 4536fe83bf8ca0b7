"""ModernBERT as transformers makes and saves it: read, computed, and written again."""

import json
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from models.interop import hf_config, import_hf, layout_modernbert
from models.networks import heads, modernbert
from tests.kits.interop import needs_interop
from tests.models.interop.test_import_hf_torch import batch
from tests.parity import parity_kit

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "local_attention": 6,
    "global_attn_every_n_layers": 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 900.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
    },
    "pad_token_id": 0,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "bos_token_id": 2,
    "eos_token_id": 3,
}


class Network(nnx.Module):
    """Encoder and MLM head."""

    def __init__(self, config: modernbert.ModernBertConfig) -> None:
        self.encoder = config.build(nnx.Rngs(0))
        self.head = heads.MlmHead(config, rngs=nnx.Rngs(0))


def saved(folder: Path, name: str = "ModernBertForMaskedLM") -> tuple[np.ndarray, np.ndarray]:
    """Saves a random model; its last states and logits for `batch`."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.ModernBertConfig(**SIZES, attn_implementation="eager")
    model = getattr(transformers, name)(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.tie_weights()
    model.save_pretrained(folder)
    ids, mask = batch(0)
    with torch.inference_mode():
        given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
        states = model.base_model(**given).last_hidden_state.numpy()
        return states, model(**given).logits.numpy()


def read(folder: Path) -> Network:
    config = hf_config.config_from_hf(str(folder), "float32", "none", 32)
    network = Network(config)
    parity_kit.fill(network, import_hf.HuggingFace(str(folder), config.vocab_size))
    return network


@needs_interop
def test_states_and_logits_packed_and_alone(tmp_path: Path) -> None:
    states, logits = saved(tmp_path)
    network = read(tmp_path)
    ids, mask = batch(0)
    real = mask == 1
    group = parity_kit.token_group(ids, mask)
    hidden = network.encoder(group["tokens"], group["positions"], group["segment_ids"])
    np.testing.assert_allclose(np.asarray(hidden)[real], states[real], atol=2e-5)
    rows, columns = np.nonzero(real)
    row = {"tokens": ids[real], "positions": columns, "segment_ids": rows + 1}
    given = {name: np.asarray(array, np.int32)[None] for name, array in row.items()}
    np.testing.assert_allclose(network.encoder(**given)[0], states[real], atol=2e-5)
    found = network.head.transform(hidden) @ network.encoder.word_table.T
    found = np.asarray(found + network.head.bias[...])[..., :60]
    np.testing.assert_allclose(found[real], logits[real], atol=2e-4, rtol=1e-4)


@needs_interop
def test_what_is_written_transformers_reads_to_the_same_states(tmp_path: Path) -> None:
    import torch
    import transformers

    _, logits = saved(tmp_path / "theirs")
    network = read(tmp_path / "theirs")
    config, layout = network.encoder.config, layout_modernbert.LAYOUT
    flat = nnx.to_flat_state(nnx.state(network, nnx.Param))
    arrays = {"/".join(map(str, path)): np.asarray(v[...]) for path, v in flat}
    named = layout.export_arrays(arrays, 60)
    written = {layout.spelled(name, "modernbert"): array for name, array in named.items()}
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    assert set(written) == set(theirs) - {"decoder.weight"}
    for name, array in written.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    again = tmp_path / "again"
    again.mkdir()
    fields = hf_config.config_to_hf(config, 0, "ModernBertForMaskedLM")
    (again / "config.json").write_text(json.dumps(fields))
    contiguous = {name: np.ascontiguousarray(array) for name, array in written.items()}
    save_file(contiguous, again / "model.safetensors", {"format": "pt"})
    model = transformers.ModernBertForMaskedLM.from_pretrained(again).eval()
    ids, mask = batch(0)
    with torch.inference_mode():
        given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
        found = model(**given).logits.numpy()
    np.testing.assert_allclose(found[mask == 1], logits[mask == 1], atol=1e-4, rtol=1e-4)
    assert hf_config.config_from_hf(str(again), "float32", "none", 32) == config


@needs_interop
def test_the_base_model_has_no_prefix(tmp_path: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.ModernBertModel(transformers.ModernBertConfig(**SIZES)).save_pretrained(tmp_path)
    arrays = import_hf.HuggingFace(str(tmp_path), 60).arrays()
    assert {path.split("/")[0] for path in arrays} == {"encoder"}
    assert arrays["encoder/layers/attention/query/kernel"].shape == (4, 32, 4, 8)


def fields_of(**changes: object) -> dict:
    defaults = dict.fromkeys(("rope_parameters", "global_attn_every_n_layers"))
    fields = {"model_type": "modernbert", **SIZES} | defaults | changes
    return {name: value for name, value in fields.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_bias": True}, "norm_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"decoder_bias": False}, "decoder_bias"),
        ({"hidden_size": "32"}, "expected a whole number as hidden_size"),
        ({"intermediate_size": None}, r"missing \['intermediate_size'\]"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_type 'default' for full_attention",
        ),
        (
            {"layer_types": ["sliding_attention", *["full_attention"] * 4]},
            "layer_types",
        ),
        (
            {"rope_parameters": {"sliding_attention": {"type": "linear", "factor": 2}}},
            "rope_type 'default' for sliding_attention",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": "5"}}}, "number as rope_theta"),
        ({"rope_parameters": {"full_attention": 5}}, "expected rope_parameters"),
        ({"hidden_activation": "relu"}, "classifier_activation .by default 'gelu'. to be hidden"),
        ({"classifier_activation": "relu"}, "found 'relu' and 'gelu'"),
        ({"sliding_window": 3}, "sliding_window"),
        ({"local_attention": "128"}, "expected a whole number as local_attention"),
        ({"embedding_dropout": 0.3}, "embedding_dropout"),
        ({"layer_types": ["full_attention"]}, "num_hidden_layers"),
        ({"model_type": ["modernbert"]}, "expected model_type in"),
    ],
)
def test_what_we_do_not_compute_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields_of(**changes)))
    with pytest.raises(ValueError, match=message):
        hf_config.read_fields(tmp_path)


def test_both_forms_of_the_angles_are_read(tmp_path: Path) -> None:
    new = {"rope_parameters": {"full_attention": {"rope_theta": 5.0}}, "local_rope_theta": 7.0}
    old = {"global_rope_theta": 5.0, "local_rope_theta": 7.0, "global_attn_every_n_layers": 2}
    listed = {
        "layer_types": ["full_attention", "sliding_attention"] * 2 + ["full_attention"],
        "global_attn_every_n_layers": 3,  # the list wins, as in transformers
    }
    found = []
    for changes in (new | listed, old):
        (tmp_path / "config.json").write_text(json.dumps(fields_of(**changes)))
        found.append(hf_config.config_from_hf(str(tmp_path), "float32", "none", 32))
    assert found[0] == found[1]
    assert (found[0].whole_theta, found[0].window_theta, found[0].whole_every) == (5.0, 7.0, 2)
