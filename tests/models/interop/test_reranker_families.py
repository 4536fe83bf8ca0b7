"""Re-rankers over encoders of each family, from and to transformers and sentence-transformers.

Families differ in the head (RoBERTa's and ELECTRA's is no pooler, ModernBERT's has a norm and may
read the mean of a pair) and in how the tokenizer joins a pair (RoBERTa's has two [SEP] in between).
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from models.interop import hf_config, import_hf
from models.networks import bert, modernbert
from t5x_style.interfaces.contract import Vocabulary
from tests.kits.interop import needs_interop
from tests.models.interop import test_export_reranker as kit
from tests.models.interop.test_export_reranker import tokenizer  # noqa: F401  (a fixture)
from tests.parity import parity_kit

# Of RoBERTa's family positions begin after the id of the padding, which is 0 here.
FAMILIES: dict[str, dict[str, Any]] = {
    "roberta": {"position_offset": 1, "type_vocab": 1},
    "electra": {"pair_activation": "gelu"},
    "narrow electra": {"pair_activation": "gelu", "embedding_size": 8},
    "modernbert": {"pair_pooling": "cls"},
    "modernbert of means": {"pair_pooling": "mean"},
}
CLASSES = {
    "roberta": "RobertaForSequenceClassification",
    "electra": "ElectraForSequenceClassification",
    "narrow electra": "ElectraForSequenceClassification",
    "modernbert": "ModernBertForSequenceClassification",
    "modernbert of means": "ModernBertForSequenceClassification",
}
DOUBLED = "[CLS] $A [SEP] [SEP] $B [SEP]"  # how RoBERTa's tokenizer joins a pair


def config_of(family: str, words: str) -> bert.BertConfig | modernbert.ModernBertConfig:
    if not family.startswith("modernbert"):
        return kit.size(words, **FAMILIES[family])
    sizes = {"hidden": 16, "layers": 2, "heads": 2, "mlp": 32, "window": 6, "whole_every": 2}
    most = kit.QUERY + kit.PASSAGE
    size = Vocabulary.load(words).size
    return modernbert.ModernBertConfig(size, **sizes, max_positions=most, **FAMILIES[family])


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request: Any, tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> kit.Given:  # noqa: F811
    """Of a family, exported into the folder of its stage."""
    words = tokenizer
    if request.param == "roberta":
        words = kit.rejoined(tokenizer, tmp_path_factory.mktemp("roberta"), DOUBLED)
    folder = tmp_path_factory.mktemp("trained")
    given = kit.trained(config_of(request.param, words), words, folder)
    given.family = request.param  # type: ignore[attr-defined]
    assert given.export(folder) == {"cross_encoder": "cross_encoder"}
    return given


def family_of(given: kit.Given) -> str:
    return str(given.family)  # type: ignore[attr-defined]


def test_the_folder_says_what_it_is(trained: kit.Given) -> None:
    folder = trained.path / "cross_encoder"
    fields = json.loads((folder / "config.json").read_text())
    assert fields["architectures"] == [CLASSES[family_of(trained)]]
    between = 2 if family_of(trained) == "roberta" else 1
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == kit.QUERY + kit.PASSAGE + between - 2
    config = hf_config.config_from_hf(str(folder), "float32", "none", vocab_multiple=1)
    assert config.pair_head == trained.module.config.pair_head


def test_import_gives_identical_parameters(trained: kit.Given) -> None:
    size = trained.module.config.vocab_size
    folder = str(trained.path / "cross_encoder")
    found = import_hf.HuggingFace(folder, size, reranker=True).arrays()
    table = "encoder/embeddings/word/embedding"
    expected = trained.values | {table: trained.values[table][:size]}
    assert found.keys() == expected.keys()
    for path, array in found.items():
        np.testing.assert_array_equal(array, expected[path], err_msg=path)


def test_a_classifier_of_several_labels_can_be_left_out(trained: kit.Given, tmp_path: Path) -> None:
    published = trained.path / "cross_encoder"
    last = "classifier" if family_of(trained).startswith("modernbert") else "classifier.out_proj"
    three = {
        f"{last}.weight": np.zeros((3, 16), np.float32),
        f"{last}.bias": np.zeros(3, np.float32),
    }
    held = safetensors.numpy.load_file(published / "model.safetensors")
    safetensors.numpy.save_file(held | three, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((published / "config.json").read_bytes())
    size = trained.module.config.vocab_size
    with pytest.raises(import_hf.WeightsError, match=r"classifier: expected that of a re-ranker"):
        import_hf.HuggingFace(str(tmp_path), size).arrays()
    source = import_hf.HuggingFace(str(tmp_path), size, ("classifier.*", "head.*"))
    assert {path.split("/")[0] for path in source.arrays()} == {"encoder"}


def test_dropout_is_drawn_anew_with_each_key(trained: kit.Given) -> None:
    config = trained.module.config
    module = kit.reranker(type(config)(**{**vars(config), "dropout": 0.5}), trained.tokenizer)
    parity_kit.fill(module, trained)
    group = {name: jax.numpy.asarray(array) for name, array in kit.laid(trained.tokenizer).items()}
    drawn = [np.asarray(module.score(group, jax.random.key(seed))) for seed in (1, 2)]
    assert np.abs(drawn[0] - drawn[1]).max() > 0.01
    np.testing.assert_array_equal(drawn[0], np.asarray(module.score(group, jax.random.key(1))))


@needs_interop
def test_other_libraries_give_the_same_scores(trained: kit.Given) -> None:
    import torch
    from sentence_transformers import CrossEncoder
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = trained.path / "cross_encoder"
    expected = kit.scores(trained.module, trained.tokenizer)
    assert expected.std() > 0.01
    model = CrossEncoder(str(folder), device="cpu")
    pairs = list(zip(kit.QUERIES, kit.PASSAGES, strict=True))
    np.testing.assert_allclose(model.predict(pairs, batch_size=3), expected, atol=1e-5)
    group = kit.laid(trained.tokenizer)
    for number, pair in enumerate(pairs):
        row, segment = divmod(number, 2)
        inside = group["segment_ids"][row] == segment + 1
        assert (
            model.preprocess([pair])["input_ids"][0].tolist()
            == group["tokens"][row][inside].tolist()
        )
    words = AutoTokenizer.from_pretrained(folder)
    batch = words(kit.QUERIES, kit.PASSAGES, padding=True, return_tensors="pt")
    with torch.inference_mode():
        opened = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        found = opened(**batch).logits.numpy()[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@needs_interop
def test_a_reranker_of_transformers_gives_its_scores(trained: kit.Given, tmp_path: Path) -> None:
    import torch
    import transformers
    from transformers import AutoTokenizer

    module, words = kit.reranker(trained.module.config, trained.tokenizer), trained.tokenizer
    kind = getattr(transformers, CLASSES[family_of(trained)])
    fields = hf_config.config_to_hf(module.config, 0, kind.__name__)
    torch.manual_seed(1)
    model = kind(kind.config_class(**fields, num_labels=1)).eval()
    for parameter in model.parameters():  # biases and norms too are random
        torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(tmp_path)
    parity_kit.fill(module, kit.Given(tmp_path, module, words, kit.taken(module, tmp_path, words)))
    with torch.inference_mode():
        opened = AutoTokenizer.from_pretrained(trained.path / "cross_encoder")
        batch = opened(kit.QUERIES, kit.PASSAGES, padding=True, return_tensors="pt")
        expected = model(**batch).logits.numpy()[:, 0]
    np.testing.assert_allclose(kit.scores(module, words), expected, atol=1e-5)
