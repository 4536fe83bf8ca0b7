"""Weights from safetensors: official layouts, old and new names, and what is refused."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from ml_dtypes import bfloat16
from safetensors.numpy import save_file

from models import bert, heads, hf_names, import_hf, layers
from tests import parity_kit, tiny_models

CONFIG = tiny_models.CONFIG


class Network(nnx.Module):
    """All that the table of names knows."""

    def __init__(self, config: bert.BertConfig, decoder: bool = True) -> None:
        rngs = nnx.Rngs(0)
        self.encoder = bert.Encoder(config, rngs=rngs)
        self.head = heads.MlmHead(config, rngs=rngs)
        if decoder:
            self.decoder = layers.BertLayer(config.block, rngs=rngs)


def target(decoder: bool = True, **changes: int) -> dict[str, tuple[int, ...]]:
    config = dataclasses.replace(CONFIG, **changes)
    network = nnx.eval_shape(lambda: Network(config, decoder))
    return {path: leaf.shape for path, leaf in parity_kit.parameters(network).items()}


def random_arrays() -> dict[str, np.ndarray]:
    """Our path -> array; padded vocabulary rows are zero, as import leaves them."""
    rng = np.random.default_rng(0)
    arrays = {p: rng.normal(size=s).astype(np.float32) for p, s in target().items()}
    for path in ("encoder/embeddings/word/embedding", "head/bias"):
        arrays[path][CONFIG.vocab_size :] = 0
    return arrays


def official() -> dict[str, np.ndarray]:
    exported = hf_names.export_arrays(random_arrays(), CONFIG.vocab_size)
    return {name: np.ascontiguousarray(array) for name, array in exported.items()}


def old_names(name: str) -> str:
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return name.replace("LayerNorm.bias", "LayerNorm.beta")


RENAMES = {
    "canonical": str,
    "old": old_names,
    "retromae": lambda n: n if n.startswith("c_head") else f"lm.{n}",
    "plain": lambda n: n.removeprefix("bert."),
}


@pytest.mark.parametrize("spelling", RENAMES)
def test_every_spelling_gives_the_same_arrays(tmp_path: Path, spelling: str) -> None:
    renamed = {RENAMES[spelling](name): array for name, array in official().items()}
    save_file(renamed, tmp_path / "model.safetensors")
    found = import_hf.HuggingFace(str(tmp_path), CONFIG.vocab_size).arrays(target())
    expected = random_arrays()
    assert found.keys() == expected.keys()
    for path, array in found.items():
        np.testing.assert_array_equal(array, expected[path], err_msg=path)


def test_linear_weights_are_transposed_and_split_into_heads(tmp_path: Path) -> None:
    tensors = official()
    save_file(tensors, tmp_path / "model.safetensors")
    found = import_hf.HuggingFace(str(tmp_path), CONFIG.vocab_size).arrays(target())
    x = np.random.default_rng(1).normal(size=(16,)).astype(np.float32)
    for layer in (0, 1):
        theirs = f"bert.encoder.layer.{layer}.attention"
        expected = tensors[f"{theirs}.self.query.weight"] @ x
        kernel = found["encoder/layers/attention/query/kernel"][layer]
        np.testing.assert_allclose(np.einsum("d,dhk->hk", x, kernel).ravel(), expected, atol=1e-5)
        kernel = found["encoder/layers/attention/out/kernel"][layer]
        expected = tensors[f"{theirs}.output.dense.weight"] @ x
        np.testing.assert_allclose(
            np.einsum("hk,hkd->d", x.reshape(2, 8), kernel), expected, atol=1e-5
        )


def test_shards_are_found_through_their_index(tmp_path: Path) -> None:
    tensors = official()
    names = sorted(tensors)
    weight_map = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    source = import_hf.HuggingFace(str(tmp_path), CONFIG.vocab_size)
    assert source.arrays(target()).keys() == target().keys()
    (tmp_path / "part-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"part-1\.safetensors: named in the index"):
        import_hf.HuggingFace(str(tmp_path), CONFIG.vocab_size)


def test_half_precision_is_widened(tmp_path: Path) -> None:
    save_file({n: a.astype(bfloat16) for n, a in official().items()}, tmp_path / "x.safetensors")
    source = import_hf.HuggingFace(str(tmp_path / "x.safetensors"), CONFIG.vocab_size)
    for path, array in source.arrays(target()).items():
        assert array.dtype == np.float32, path
        np.testing.assert_allclose(array, random_arrays()[path], rtol=1e-2)


def test_all_disagreements_are_reported_at_once(tmp_path: Path) -> None:
    tensors = official()
    del tensors["bert.embeddings.LayerNorm.bias"]
    tensors["bert.encoder.layer.1.output.dense.weight"] = np.zeros((16, 31), np.float32)
    tensors["bert.surprise"] = np.zeros(3, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(import_hf.WeightsError) as error:
        import_hf.HuggingFace(str(tmp_path), CONFIG.vocab_size).arrays(target())
    message = str(error.value)
    assert "3 problems" in message
    assert "bert.embeddings.LayerNorm.bias: missing (expected (16,))" in message
    assert "layer.1.output.dense.weight: expected (16, 32), found (16, 31)" in message
    assert "bert.surprise: unexpected (3,)" in message


def test_an_output_table_of_its_own_is_refused(tmp_path: Path) -> None:
    tensors = official()
    table = tensors["bert.embeddings.word_embeddings.weight"]
    save_file({**tensors, "cls.predictions.decoder.weight": table}, tmp_path / "tied.safetensors")
    import_hf.HuggingFace(str(tmp_path / "tied.safetensors"), CONFIG.vocab_size).arrays(target())
    other = {**tensors, "cls.predictions.decoder.weight": table + 1}
    save_file(other, tmp_path / "untied.safetensors")
    untied = import_hf.HuggingFace(str(tmp_path / "untied.safetensors"), CONFIG.vocab_size)
    with pytest.raises(import_hf.WeightsError, match="expected a copy of bert.embeddings.word"):
        untied.arrays(target())


def test_another_vocabulary_or_depth_is_refused(tmp_path: Path) -> None:
    save_file(official(), tmp_path / "model.safetensors")
    with pytest.raises(import_hf.WeightsError, match=r"expected \(49, 16\), found \(50, 16\)"):
        import_hf.HuggingFace(str(tmp_path), 49).arrays(target())
    with pytest.raises(import_hf.WeightsError, match="expected 3 layers, found 2"):
        import_hf.HuggingFace(str(tmp_path), 50).arrays(target(layers=3))
    with pytest.raises(import_hf.WeightsError, match="at least 50 rows"):
        import_hf.HuggingFace(str(tmp_path), 50).arrays(target(vocab_size=30))


def test_without_a_target_it_gives_all_that_the_file_holds(tmp_path: Path) -> None:
    save_file(official(), tmp_path / "model.safetensors")
    with pytest.raises(FileNotFoundError, match="num_attention_heads"):
        import_hf.HuggingFace(str(tmp_path), 50).arrays()
    (tmp_path / "config.json").write_text(json.dumps(HF_CONFIG))
    found, expected = import_hf.HuggingFace(str(tmp_path), 50).arrays(), random_arrays()
    assert found.keys() == expected.keys()
    for path, array in found.items():
        wanted = expected[path]
        if array.shape != wanted.shape:  # vocabulary rows are padded by who takes them over
            assert array.shape[0] == 50 and array.shape[1:] == wanted.shape[1:]
        np.testing.assert_array_equal(array, wanted[: array.shape[0]], err_msg=path)
    with pytest.raises(import_hf.WeightsError, match=r"expected \(49, 16\), found \(50, 16\)"):
        import_hf.HuggingFace(str(tmp_path), 49).arrays()


def test_the_decoder_may_be_absent_but_not_in_part(tmp_path: Path) -> None:
    published = {n: a for n, a in official().items() if not n.startswith("c_head.")}
    save_file(published, tmp_path / "model.safetensors")
    found = import_hf.HuggingFace(str(tmp_path), 50).arrays(target())
    assert found.keys() == target(decoder=False).keys()
    name = "c_head.output.dense.bias"
    save_file(published | {name: official()[name]}, tmp_path / "model.safetensors")
    with pytest.raises(import_hf.WeightsError, match=r"c_head\.output\.dense\.weight: missing"):
        import_hf.HuggingFace(str(tmp_path), 50).arrays(target())


def test_what_is_not_wanted_must_be_listed(tmp_path: Path) -> None:
    save_file(official(), tmp_path / "model.safetensors")
    encoder = {p: s for p, s in target().items() if p.startswith("encoder/")}
    with pytest.raises(import_hf.WeightsError, match=r"cls\.predictions\.bias: unexpected"):
        import_hf.HuggingFace(str(tmp_path), 50).arrays(encoder)
    source = import_hf.HuggingFace(str(tmp_path), 50, ignore=("cls.*", "c_head.*"))
    assert source.arrays(encoder).keys() == encoder.keys()


def test_pickles_and_broken_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(import_hf.WeightsError, match="is a pickle"):
        import_hf.HuggingFace(str(tmp_path), 50)
    save_file(official(), tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(import_hf.WeightsError, match="expected a whole safetensors file"):
        import_hf.HuggingFace(str(tmp_path), 50)
    with pytest.raises(FileNotFoundError, match="found neither"):
        import_hf.HuggingFace(str(tmp_path / "nowhere"), 50)


def test_two_spellings_of_one_tensor_are_refused(tmp_path: Path) -> None:
    twice = official() | {"lm.cls.predictions.bias": np.zeros(50, np.float32)}
    save_file(twice, tmp_path / "model.safetensors")
    with pytest.raises(import_hf.WeightsError, match=r"both mean 'cls\.predictions\.bias'"):
        import_hf.HuggingFace(str(tmp_path), 50)


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


def test_config_json_becomes_a_bert_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HF_CONFIG))
    config = import_hf.config_from_hf(str(tmp_path), "bfloat16", "full", 32)
    assert (config.hidden, config.layers, config.mlp, config.padded_vocab) == (16, 2, 32, 64)
    assert (config.activation, config.dtype, config.remat) == ("gelu_new", "bfloat16", "full")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "roberta"}, "expected model_type in .*found 'roberta'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"hidden_size": None}, r"missing \['hidden_size'\]"),
    ],
)
def test_other_architectures_are_refused(tmp_path: Path, change: dict, message: str) -> None:
    fields = {k: v for k, v in {**HF_CONFIG, **change}.items() if v is not None}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=message):
        import_hf.config_from_hf(str(tmp_path), "float32", "none", 128)
