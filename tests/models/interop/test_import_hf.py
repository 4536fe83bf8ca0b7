"""Weights from safetensors: three families, old and new names, and what is refused."""

import json
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16
from safetensors.numpy import save_file

from models.interop import import_hf
from tests.kits.hf_folders import CONFIGS, official, random_arrays, write


def read(folder: Path, vocab_size: int = 50, **kwargs) -> dict[str, np.ndarray]:
    return import_hf.HuggingFace(str(folder), vocab_size, **kwargs).arrays()


def refusal(folder: Path) -> str:
    with pytest.raises(import_hf.WeightsError) as error:
        read(folder)
    return str(error.value)


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for path, array in found.items():
        assert array.dtype == np.float32, path
        np.testing.assert_array_equal(array, expected[path], err_msg=path)


def old_names(name: str) -> str:
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return name.replace("LayerNorm.bias", "LayerNorm.beta")


RENAMES = {
    "new": str,
    "old": old_names,
    "retromae": lambda n: n if n.startswith("c_head") else f"lm.{n}",
    "sentence-transformers": lambda n: f"0.auto_model.{n}",
    "plain": lambda n: n.removeprefix("bert.").removeprefix("roberta.").removeprefix("electra."),
}


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("spelling", RENAMES)
def test_every_spelling_gives_the_same_arrays(tmp_path: Path, spelling: str, family: str) -> None:
    renamed = {RENAMES[spelling](name): array for name, array in official(family).items()}
    assert_same(read(write(tmp_path, renamed, family)), random_arrays(family))


def test_the_families_spell_as_transformers_does() -> None:
    for family, names in {
        "roberta": (
            "roberta.encoder.layer.1.attention.output.LayerNorm.weight",
            "roberta.embeddings.token_type_embeddings.weight",
            "lm_head.dense.weight",
            "lm_head.layer_norm.bias",
            "lm_head.bias",
        ),
        "electra": (
            "electra.embeddings_project.weight",
            "generator_predictions.dense.weight",
            "generator_predictions.LayerNorm.bias",
            "generator_lm_head.bias",
        ),
    }.items():
        assert set(names) <= official(family).keys()
    rows = {family: official(family) for family in CONFIGS}
    assert rows["roberta"]["roberta.embeddings.position_embeddings.weight"].shape == (26, 16)
    assert rows["electra"]["electra.embeddings.word_embeddings.weight"].shape == (50, 8)
    assert rows["electra"]["generator_predictions.dense.weight"].shape == (8, 16)


def test_linear_weights_are_transposed_and_split_into_heads(tmp_path: Path) -> None:
    tensors = official()
    found = read(write(tmp_path, tensors))
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
    write(tmp_path, tensors)
    (tmp_path / "model.safetensors").unlink()
    weight_map = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert_same(read(tmp_path), random_arrays())
    (tmp_path / "part-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 are missing: part-1\.safetensors"):
        read(tmp_path)
    index.write_text("[]")
    assert "expected a JSON object with weight_map" in refusal(tmp_path)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_half_precision_is_widened(tmp_path: Path, dtype: type) -> None:
    write(tmp_path, {n: a.astype(dtype) for n, a in official().items()})
    expected = random_arrays()
    for path, array in read(tmp_path).items():
        assert array.dtype == np.float32, path
        np.testing.assert_array_equal(array, expected[path].astype(dtype).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.uint8])
def test_another_dtype_is_refused_by_name(tmp_path: Path, dtype: type) -> None:
    tensors = official()
    name = "bert.encoder.layer.1.output.dense.weight"
    write(tmp_path, tensors | {name: tensors[name].astype(dtype)})
    message = refusal(tmp_path)
    assert f"{name}: expected one of float32, float16, bfloat16, found" in message
    assert "(1 problems)" in message


def test_eight_bit_floats_are_refused(tmp_path: Path) -> None:
    write(tmp_path, official())
    header, body = parse(tmp_path / "model.safetensors")
    name = "bert.embeddings.LayerNorm.bias"
    start, end = header[name]["data_offsets"]
    header[name] |= {"dtype": "F8_E4M3", "shape": [end - start]}
    unparse(tmp_path / "model.safetensors", header, body)
    message = refusal(tmp_path)  # the shape differs first: 4 bytes became 4 numbers
    assert f"{name}: expected (16,), found (64,)" in message
    header[name]["shape"], header["extra"] = [16], {"dtype": "U8", "shape": [48]}
    header[name]["data_offsets"], header["extra"]["data_offsets"] = (
        [start, start + 16],
        [start + 16, end],
    )
    unparse(tmp_path / "model.safetensors", header, body)
    assert f"{name}: expected one of float32, float16, bfloat16, found F8_E4M3" in refusal(tmp_path)


def parse(file: Path) -> tuple[dict, bytes]:
    """Header and data of a safetensors file."""
    content = file.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def unparse(file: Path, header: dict, body: bytes) -> None:
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


def overlapping(header: dict, body: bytes) -> bytes:
    """One tensor's bytes begin inside another's."""
    first, second = sorted(
        (name for name in header if name != "__metadata__"),
        key=lambda name: header[name]["data_offsets"],
    )[:2]
    length = np.subtract(*reversed(header[second]["data_offsets"]))
    start = header[first]["data_offsets"][0]
    header[second]["data_offsets"] = [start, int(start + length)]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


DAMAGES = {
    "empty": lambda content, *_: b"",
    "truncated length": lambda content, *_: content[:5],
    "truncated header": lambda content, *_: content[:100],
    "truncated data": lambda content, *_: content[: len(content) // 2],
    "header longer than the file": lambda content, *_: b"\xff" * 8 + content[8:],
    "header is no JSON": lambda content, *_: content[:8] + b"!" + content[9:],
    "overlapping offsets": lambda _, header, body: overlapping(header, body),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    file = write(tmp_path, official()) / "model.safetensors"
    file.write_bytes(DAMAGES[damage](file.read_bytes(), *parse(file)))
    assert "model.safetensors: expected a whole safetensors file" in refusal(tmp_path)


def test_all_disagreements_are_reported_at_once(tmp_path: Path) -> None:
    tensors = official()
    del tensors["bert.embeddings.LayerNorm.bias"]
    tensors["bert.encoder.layer.1.output.dense.weight"] = np.zeros((16, 31), np.float32)
    tensors["bert.surprise"] = np.zeros(3, np.float32)
    message = refusal(write(tmp_path, tensors))
    assert "3 problems" in message
    assert "bert.embeddings.LayerNorm.bias: missing (expected (16,))" in message
    assert "layer.1.output.dense.weight: expected (16, 32), found (16, 31)" in message
    assert "bert.surprise: unexpected (3,)" in message
    ignored = {"bert.surprise": np.zeros(3, np.float32)} | official()
    assert_same(read(write(tmp_path, ignored), ignore=("bert.surp*",)), random_arrays())


@pytest.mark.parametrize(
    ("family", "name"),
    [("roberta", "lm_head.layer_norm.weight"), ("electra", "electra.embeddings_project.bias")],
)
def test_a_missing_tensor_is_named_as_its_family_spells_it(
    tmp_path: Path, family: str, name: str
) -> None:
    tensors = official(family)
    del tensors[name]
    assert f"{name}: missing" in refusal(write(tmp_path, tensors, family))


def test_an_output_table_of_its_own_is_refused(tmp_path: Path) -> None:
    tensors = official()
    table = tensors["bert.embeddings.word_embeddings.weight"]
    write(tmp_path, {**tensors, "cls.predictions.decoder.weight": table})
    assert_same(read(tmp_path), random_arrays())
    write(tmp_path, {**tensors, "cls.predictions.decoder.weight": table + 1})
    assert "expected a copy of bert.embeddings.word" in refusal(tmp_path)


@pytest.mark.parametrize("family", CONFIGS)
def test_the_vocabulary_is_resized_with_a_warning(tmp_path: Path, family: str) -> None:
    write(tmp_path, official(family), family)
    vocabulary = ("encoder/embeddings/word/embedding", "head/bias")
    with pytest.warns(UserWarning, match=r"has 50 tokens, the tokenizer 47: the last 3 rows are"):
        found = read(tmp_path, 47)
    with pytest.warns(UserWarning, match=r"has 50 tokens, the tokenizer 60: 10 rows start fresh"):
        grown = read(tmp_path, 60)
    assert_same(grown, random_arrays(family))  # who takes them over has fresh rows for the rest
    for path, array in random_arrays(family).items():
        assert len(found[path]) == (47 if path in vocabulary else len(array))
        np.testing.assert_array_equal(found[path], array[: len(found[path])], err_msg=path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 49}, r"word_embeddings.weight: expected (49, 16), found (50, 16)"),
        ({"num_hidden_layers": 3}, "layer.2.attention.self.query.weight: missing"),
        ({"num_hidden_layers": 1}, "layer.1.output.dense.weight: unexpected (16, 32)"),
        ({"type_vocab_size": 1}, "token_type_embeddings.weight: expected (1, 16), found (2, 16)"),
    ],
)
def test_weights_that_are_not_those_of_config_json_are_refused(
    tmp_path: Path, change: dict, message: str
) -> None:
    write(tmp_path, official())
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | change))
    assert message in refusal(tmp_path)


def test_parts_may_be_absent_but_not_in_part(tmp_path: Path) -> None:
    for part, name in {"decoder": "c_head", "head": "cls.predictions"}.items():
        published = {n: a for n, a in official().items() if not n.startswith(name)}
        found = read(write(tmp_path, published))
        expected = random_arrays()
        assert found.keys() == {p for p in expected if not p.startswith(f"{part}/")}
    name = "c_head.output.dense.bias"
    published = {n: a for n, a in official().items() if not n.startswith("c_head.")}
    write(tmp_path, published | {name: official()[name]})
    assert "c_head.output.dense.weight: missing" in refusal(tmp_path)


def test_what_retrieval_has_no_use_for_may_stay(tmp_path: Path) -> None:
    buffers = {
        "electra.embeddings.position_ids": np.arange(24)[None],
        "discriminator_predictions.dense.weight": np.zeros((16, 16), np.float32),
        "discriminator_predictions.dense_prediction.bias": np.zeros(1, np.float32),
    }
    write(tmp_path, official("electra") | buffers, "electra")
    assert_same(read(tmp_path), random_arrays("electra"))


def test_modules_of_sentence_transformers_that_are_not_taken_are_named(tmp_path: Path) -> None:
    write(tmp_path, official())
    modules = [
        {"path": "", "type": f"sentence_transformers.models.{m}"}
        for m in ("Transformer", "Pooling")
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(tmp_path)
    modules.append({"path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.warns(UserWarning, match=r"not the modules \['Dense'\]"):
        assert_same(read(tmp_path), random_arrays())


@pytest.mark.parametrize(
    ("pooling", "named"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, None),
        ({"pooling_mode": "mean"}, None),
        ({"pooling_mode_max_tokens": True}, r"Pooling \(max\)"),
        ({"pooling_mode": "weightedmean"}, r"Pooling \(weightedmean\)"),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            r"Pooling \(cls \+ mean\)",
        ),
    ],
)
def test_a_pooling_that_we_do_not_have_is_named(
    tmp_path: Path, pooling: dict, named: str | None
) -> None:
    write(tmp_path, official())
    without = read(tmp_path)
    modules = [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps(pooling))
    with pytest.warns(UserWarning, match=named) if named else warnings.catch_warnings():
        if not named:
            warnings.simplefilter("error")
        assert_same(read(tmp_path), without)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, official())
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(b"\x80\x04.")
    message = refusal(tmp_path)
    assert (
        f"{name} is a pickle" in message
        and "import glob, torch, safetensors.torch as s; s.save_file(" in message
    )
    with pytest.raises(import_hf.WeightsError, match="is a pickle"):
        import_hf.HuggingFace(str(tmp_path / name), 50)


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected weights, .*there is nothing"):
        import_hf.HuggingFace(str(tmp_path / "nowhere"), 50)
    save_file(official(), tmp_path / "model.safetensors")
    with pytest.raises(FileNotFoundError, match=r"expected the folder of a model.*config\.json"):
        read(tmp_path)


def test_two_spellings_of_one_tensor_are_refused(tmp_path: Path) -> None:
    twice = official() | {"lm.cls.predictions.bias": np.zeros(50, np.float32)}
    assert "both mean 'cls.predictions.bias'" in refusal(write(tmp_path, twice))


def test_the_embeddings_that_the_official_retromae_repeats_must_be_copies(tmp_path: Path) -> None:
    plain = official()
    embeddings = {n: a for n, a in plain.items() if n.startswith("bert.embeddings.")}
    whole = {n if n.startswith("c_head.") else f"lm.{n}": a for n, a in plain.items()}
    whole |= {
        n.replace("bert.embeddings.", "decoder_embeddings."): a for n, a in embeddings.items()
    }
    whole["decoder_embeddings.position_ids"] = np.arange(24)[None]
    assert_same(read(write(tmp_path, whole)), random_arrays())
    whole["decoder_embeddings.LayerNorm.bias"] = np.ones(16, np.float32)
    message = refusal(write(tmp_path, whole))
    assert "decoder_embeddings.LayerNorm.bias: expected a copy of" in message


def test_a_pointer_of_git_lfs_is_explained(tmp_path: Path) -> None:
    write(tmp_path, official())
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    assert "git lfs pull" in refusal(tmp_path)
