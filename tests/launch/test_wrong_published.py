"""Wrong folders of published encoders: each is refused before the first stage, in one problem."""

import json
import shutil

import numpy as np
import pytest

from launch import recipe
from models.interop import torch_pickle
from t5x_style.workflow.recipe_stage import RecipeError
from tests.kits import published_folders as folders
from tests.launch import test_wrong_inputs


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return folders.published(tmp_path_factory.mktemp("published"))


@pytest.fixture
def place(made, tmp_path):
    """A good encoder, and data that fits it."""
    test_wrong_inputs.folder(tmp_path / "good")
    shutil.copytree(made, tmp_path / "encoder")
    return tmp_path


def refused(place, *settings, published="{}/encoder", name="untouched"):
    """What the check says; each problem once, however many stages have it."""
    found = test_wrong_inputs.refused(
        name, place, "CORPUS={}/good", f"PUBLISHED={published}", *settings
    )
    return found.replace(str(place), "HERE")


def edited(file, **fields):
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def no_weights(place):
    (place / "encoder/model.safetensors").unlink()


def no_tokenizer(place):
    for name in ("tokenizer.json", "vocab.txt"):
        (place / "encoder" / name).unlink()


def pickle_alone(place):
    (place / "encoder/model.safetensors").rename(place / "encoder/pytorch_model.bin")


def cut(place):
    file = place / "encoder/model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])


def pooling(place):
    edited(place / "encoder/1_Pooling/config.json", pooling_mode_max_tokens=True)


def tokens(place):
    added = json.loads((place / "encoder/tokenizer.json").read_text())
    added["model"]["vocab"]["more"] = 929
    (place / "encoder/tokenizer.json").write_text(json.dumps(added))


def family(place):
    edited(place / "encoder/config.json", model_type="mpnet")


@pytest.mark.parametrize(
    ("spoil", "messages"),
    [
        (no_weights, ["expected weights", "found 1_Pooling"]),
        (pickle_alone, ["is a pickle", "torch.load(f, 'cpu', weights_only=True)"]),
        (cut, ["model.safetensors: expected a whole safetensors file"]),
        (family, ["expected model_type in ('bert', 'roberta'", "found 'mpnet'", "What is read"]),
        (no_tokenizer, ["expected that of a published encoder with its tokenizer"]),
        (tokens, ["its tokenizer has 930 tokens", "vocabulary_size = 930"]),
        (pooling, ["Pooling (cls) or Pooling (mean)", "'Pooling (mean + max)'"]),
    ],
)  # fmt: skip
def test_a_spoiled_folder_is_refused_before_the_first_stage(spoil, messages, place):
    spoil(place)
    found = refused(place)
    for message in messages:
        assert message in found, found
    assert not (place / "run").exists()


def test_the_good_folder_is_not_refused_and_its_lengths_are_kept(place):
    assert refused(place) == ""
    found = refused(place, "CONTRACT={{'PASSAGE_LENGTH': 33}}")
    assert "at most 32 tokens of a text, the encoder's positions (config.json), found 33" in found
    assert "PASSAGE_LENGTH to 32 or less" in found


def test_vectors_of_tokens_have_the_size_of_the_folders_head(place):
    head = {"weight": np.zeros((12, 16), np.float32), "bias": np.zeros(12, np.float32)}
    torch_pickle.write(place / "encoder/colbert_linear.pt", head)
    for agreeing in ((), ("VECTOR_SIZE=12",)):
        assert refused(place, "LICENCE=mit", *agreeing, name="finetune_m3") == ""
    found = refused(place, "LICENCE=mit", "VECTOR_SIZE=64", name="finetune_m3")
    assert "VECTOR_SIZE: expected 12" in found
    assert "HERE/encoder/colbert_linear.pt, found 64" in found


@pytest.mark.parametrize("name", ["finetune_reranker", "finetune_reranker_dense"])
def test_a_tokenizer_that_pads_makes_a_reranker(name, place):
    """Its pairs are long because they are padded, not because many [SEP] are in them."""
    padding = {"strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    edited(place / "encoder/tokenizer.json", padding=padding)
    lengths = ["QUERY_LENGTH=12", "PASSAGE_LENGTH=20", "PAIR_LENGTH=32", "RETRIEVER={}/encoder"]
    settings = lengths if name.endswith("dense") else lengths[:-1]
    assert refused(place, "LICENCE=mit", *settings, name=name) == ""
    found = refused(place, "LICENCE=mit", *settings, "PAIR_LENGTH=30", name=name)
    assert "pairs of up to 31, found rows of 30 (PAIR_LENGTH)" in found


def test_a_problem_of_many_stages_is_one(place):
    """What the whole program prints."""
    family(place)
    flags = test_wrong_inputs.flags_of("untouched", place, "CORPUS={}/good", "PUBLISHED={}/encoder")
    with pytest.raises(RecipeError) as raised:
        recipe.survey(recipe.recipe_reader.load(flags), flags)
    assert str(raised.value).count("expected model_type") == 1
    assert str(raised.value).startswith("Stages ")


@pytest.mark.parametrize(
    ("published", "messages"),
    [
        ("{}/good", ["found data, corpus.jsonl, queries.jsonl. Are the data and the model swap"]),
        ("{}/good/corpus.jsonl", ["found data, corpus.jsonl. Are the data and the model swap"]),
        ("{}/good/qrels/test.tsv", ["found data, test.tsv"]),
    ],
)
def test_data_in_place_of_a_model(published, messages, place):
    found = refused(place, published=published)
    assert all(message in found for message in messages), found


@pytest.mark.parametrize(
    ("published", "said"), [("owner/encoder-v2", True), ("{}/absent", False), ("absent", False)]
)
def test_a_name_on_a_hub_is_no_folder(published, said, place):
    settings = ["CORPUS={}/good", f"PUBLISHED={published}"]
    flags = test_wrong_inputs.flags_of("untouched", place, *settings)
    with pytest.raises(RecipeError, match="Input PUBLISHED does not exist: ") as raised:
        recipe.survey(recipe.recipe_reader.load(flags), flags)
    advice = "nothing is fetched here. Download it, then set the folder: hf download owner/encoder"
    assert (advice in str(raised.value)) == said
