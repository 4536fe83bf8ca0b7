"""A folder that is no model, or without weights that are read: what is there, and what to do."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from models.interop import hf_config, import_hf, published_folder
from models.interop.published_folder import WeightsError
from tests.kits.hf_folders import official, write
from tests.kits.interop import needs_interop


def test_a_place_that_is_no_model_folder_is_described(tmp_path: Path) -> None:
    for name in ("empty", "other", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "other/README.md").write_text("text")
    (tmp_path / "data/train.jsonl.gz").write_text("")
    (tmp_path / "pairs.csv").write_text("query,passage")
    for name, said in (
        ("absent", "there is nothing.*nothing is fetched"),
        ("empty", "the folder is empty"),
        ("other", "found README.md. Copy the whole folder"),
        ("other/README.md", "found a file. Name the folder"),
        ("data", r"found data, train\.jsonl\.gz. Are the data and the model swapped"),
        ("pairs.csv", r"found data, pairs\.csv. Are the data and the model swapped"),
    ):
        with pytest.raises(FileNotFoundError, match=rf"{name}: expected the folder .*{said}"):
            hf_config.read_fields(tmp_path / name)


def test_all_missing_shards_are_named(tmp_path: Path) -> None:
    write(tmp_path, official())
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    (tmp_path / "model.safetensors").rename(tmp_path / names[1])
    index = {"weight_map": dict(zip("abc", names, strict=True))}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileNotFoundError, match=rf"2 are missing: {names[0]}, {names[2]}\. Copy"):
        published_folder.weight_files(tmp_path)


def test_headers_are_compared_with_config_json_before_weights_are_read(tmp_path: Path) -> None:
    tensors = official()
    write(tmp_path, tensors)
    import_hf.HuggingFace.check_arguments(str(tmp_path))
    with pytest.raises(import_hf.WeightsError, match="a re-ranker, with one label; found none"):
        import_hf.HuggingFace.check_arguments(str(tmp_path), reranker=True)
    write(
        tmp_path,
        {n: a for n, a in tensors.items() if n != "bert.encoder.layer.1.output.dense.bias"},
    )
    with pytest.raises(WeightsError, match=r"1 problems\):\n.*layer.1.output.dense.bias: missing"):
        import_hf.HuggingFace.check_arguments(str(tmp_path))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(WeightsError, match="expected a whole safetensors file"):
        import_hf.HuggingFace.check_arguments(str(tmp_path))


@needs_interop
@pytest.mark.parametrize("names", [
    ("pytorch_model.bin",),
    ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"),
    ("weights.pt",),
])  # fmt: skip
def test_the_command_for_pickles_gives_the_same_weights(names: tuple, tmp_path: Path) -> None:
    """Tied tensors share their memory in a pickle, as transformers saves them."""
    import torch
    from safetensors.torch import load_file

    tensors = {name: torch.tensor(array) for name, array in official().items()}
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    write(tmp_path, official())
    (tmp_path / "model.safetensors").unlink()
    for number, name in enumerate(names):
        part = dict(list(tensors.items())[number :: len(names)])
        torch.save(part, tmp_path / name)
    torch.save({"epochs": 3}, tmp_path / "a_training_args.bin")  # is no weights
    with pytest.raises(WeightsError, match=rf"{names[0]} is a pickle") as refused:
        published_folder.weight_files(tmp_path)
    command = next(line for line in str(refused.value).splitlines() if line.startswith("cd "))
    command = command.replace("python -c", f"{sys.executable} -c")
    subprocess.run(command, shell=True, check=True, executable="/bin/bash")
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)
    import_hf.HuggingFace.check_arguments(str(tmp_path))
