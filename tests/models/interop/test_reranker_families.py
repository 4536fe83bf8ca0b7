"""Re-rankers over encoders of each family, from and to transformers and sentence-transformers.

Families differ in the head (RoBERTa's and ELECTRA's is no pooler, ModernBERT's has a norm and may
read the mean of a pair) and in how the tokenizer joins a pair (RoBERTa's has two [SEP] in between).
"""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from flax import nnx

from input_pipelines.tokenizers import tokenization
from models.interop import export_checks, hf_config, import_hf, published_layout
from models.networks import bert, heads, modernbert
from models.objectives import cross_encoder
from t5x_style.interfaces import objective
from t5x_style.interfaces.contract import Vocabulary
from tests.kits.interop import needs_interop
from tests.models.interop import test_export_reranker as kit
from tests.models.interop.test_export_reranker import make_tokenizer  # noqa: F401  (a fixture)
from tests.parity import parity_kit

# Of RoBERTa's family positions begin after the id of the padding, which is 0 here.
FAMILIES: dict[str, dict[str, Any]] = {
    "roberta": {"position_offset": 1, "type_vocab": 1},
    "electra": {"pair_activation": "gelu"},
    "narrow electra": {"embedding_size": 8},
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


def export(family: str, words: str, factory: pytest.TempPathFactory) -> kit.Given:
    """A trained re-ranker over an encoder of a family, exported into the folder of its stage."""
    if family == "roberta":
        words = kit.rejoined(words, factory.mktemp("roberta"), DOUBLED)
    given = kit.trained(config_of(family, words), words, factory.mktemp("trained"))
    assert given.export(given.path) == {"cross_encoder": "cross_encoder"}
    return given


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request: Any, tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> kit.Given:
    return export(request.param, tokenizer, tmp_path_factory)


@pytest.fixture(scope="module")
def roberta(tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> kit.Given:
    return export("roberta", tokenizer, tmp_path_factory)


def family_of(given: kit.Given) -> str:
    """By its encoder's sizes."""
    config = given.module.config
    if isinstance(config, modernbert.ModernBertConfig):
        return "modernbert of means" if config.pair_pooling == "mean" else "modernbert"
    if config.position_offset:
        return "roberta"
    return "electra" if config.embedding_size is None else "narrow electra"


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


def test_the_head_drops_out_what_it_gives_and_in_two_families_what_it_reads(
    trained: kit.Given,
) -> None:
    """Numbers that stay are doubled; of RoBERTa's and ELECTRA's heads their sums differ as well."""
    config = dataclasses.replace(trained.module.config, dropout=0.5)
    pooler = heads.PairPooler(config, rngs=nnx.Rngs(0))
    columns = jnp.arange(1.0, config.hidden + 1)
    pooler.dense.kernel[...] = jnp.broadcast_to(0.002 * columns, pooler.dense.kernel[...].shape)

    class Ones:
        """An encoder whose states are 1."""

        def states_at(self, at: jax.Array, *text: Any) -> jax.Array:
            return jnp.ones((*at.shape, config.hidden))

        def __call__(self, tokens: jax.Array, *text: Any) -> jax.Array:
            return jnp.ones((*tokens.shape, config.hidden))

    group = {name: jnp.asarray(array) for name, array in kit.laid(trained.tokenizer).items()}
    plain = np.asarray(pooler(Ones(), group, None))
    dropped = np.asarray(pooler(Ones(), group, jax.random.key(3)))
    kept = dropped != 0
    assert 0.3 < kept.mean() < 0.7
    doubled = np.allclose(dropped[kept], 2 * plain[kept], rtol=1e-4)
    assert doubled == (family_of(trained) not in ("roberta", "electra", "narrow electra"))


@pytest.mark.parametrize("prefix", ["roberta.", ""])
def test_the_head_of_an_old_file_counts_and_not_its_pooler(
    roberta: kit.Given, prefix: str, tmp_path: Path
) -> None:
    published = roberta.path / "cross_encoder"
    held = safetensors.numpy.load_file(published / "model.safetensors")
    held = {prefix + name.removeprefix("roberta.") if name.startswith("roberta.") else name: array
            for name, array in held.items()}  # fmt: skip
    held |= {
        f"{prefix}pooler.dense.{part}": np.zeros(shape, np.float32)
        for part, shape in (("weight", (16, 16)), ("bias", (16,)))
    }
    safetensors.numpy.save_file(held, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((published / "config.json").read_bytes())
    size = roberta.module.config.vocab_size
    found = import_hf.HuggingFace(str(tmp_path), size, reranker=True).arrays()
    for path in ("pooler/dense/kernel", "pooler/dense/bias"):
        np.testing.assert_array_equal(found[path], roberta.values[path])


def test_a_judge_whose_tokenizer_joins_pairs_otherwise_is_refused_before_it_is_read(
    roberta: kit.Given, tmp_path: Path
) -> None:
    judge = shutil.copytree(roberta.path / "cross_encoder", tmp_path / "judge")
    import_hf.HuggingFace.check_arguments(str(judge), reranker=True)
    other = kit.rejoined(roberta.tokenizer, tmp_path / "other", "[CLS] $A [SEP] [CLS] $B [SEP]")
    shutil.copy(Path(other) / "tokenizer.json", judge)
    with pytest.raises(export_checks.ExportError, match="joins pairs like BERT's or RoBERTa's"):
        import_hf.HuggingFace.check_arguments(str(judge), reranker=True)
    import_hf.HuggingFace.check_arguments(str(judge))  # as an encoder it reads no pairs


JOINED = {
    "[CLS] $A [SEP] $B:1 [SEP]:1": 1,
    DOUBLED: 2,
    "[CLS] $A [SEP] [CLS] $B [SEP]": None,
    "[CLS] $A $B [SEP]": None,
}


@pytest.mark.parametrize("pair", JOINED)
def test_training_and_export_count_the_separators_alike(
    pair: str,
    tokenizer: str,
    tmp_path: Path,
) -> None:
    words = kit.rejoined(tokenizer, tmp_path / "words", pair)
    padding = tokenizers.Tokenizer.from_file(f"{words}/tokenizer.json")
    padding.enable_padding(length=16)  # as published tokenizers may
    padding.enable_truncation(4)
    padding.save(f"{words}/tokenizer.json")
    if JOINED[pair] is None:
        with pytest.raises(tokenization.TokenizerError, match=r"post_processor of BERT's or RoB"):
            tokenization.pair_separators(words)
        with pytest.raises(export_checks.ExportError, match="joins pairs like BERT's or RoBERTa's"):
            export_checks.pair_separators(Path(words) / "tokenizer.json", 1)
        return
    assert tokenization.pair_separators(words) == JOINED[pair]
    assert export_checks.pair_separators(Path(words) / "tokenizer.json", 1) == JOINED[pair]


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
    fields |= published_layout.of_config(module.config).pair_fields(module.config)
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


def test_a_second_separator_needs_a_position_and_an_unknown_number_of_them_none(
    tokenizer: str,
) -> None:
    """Early checks assume a large number for what only a run knows."""
    exact = dataclasses.replace(kit.size(tokenizer), max_positions=kit.QUERY + kit.PASSAGE - 1)
    vocabulary = Vocabulary.load(tokenizer)
    group = objective.GroupShape(rows=4, length=32, segments=1)
    given = exact, vocabulary, group, kit.QUERY, kit.PASSAGE, 2, 2, 2
    for separators in (1, 1 << 20):
        cross_encoder.CrossEncoder(*given, separators=separators, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=f"pairs of up to {kit.QUERY + kit.PASSAGE}"):
        cross_encoder.CrossEncoder(*given, separators=2, rngs=nnx.Rngs(0))
