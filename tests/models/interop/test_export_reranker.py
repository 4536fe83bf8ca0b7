"""Re-rankers from and to BertForSequenceClassification: the same parameters and scores."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from flax import nnx

from input_pipelines.batches import query_passage_concat
from input_pipelines.store.token_store import Passages
from input_pipelines.tokenizers import tokenization, wordpiece
from models.interop import export_checks, export_hf, hf_config, import_hf
from models.networks import bert, text_embedding
from models.objectives import cross_encoder, retromae
from t5x_style.interfaces import contract, objective
from t5x_style.step import train_state
from t5x_style.training import warm_start
from tests.kits import shipped_gin, tiny_models
from tests.kits.interop import needs_interop
from tests.parity import parity_kit

REPOSITORY = Path(__file__).resolve().parents[3]
WORDS = "sort a list of words in python how do i join them with slash ##s ##ed , . ? [ ]".split()
QUERY, PASSAGE = 10, 16  # lengths
QUERIES = ["sort words", "how do I join lists?", "a [SEP] in a text", "sort sort sort sort"]
SLASH, LISTS = "Join them, sorted, with a slash.", "words of a list of words in a list"
PASSAGES = ["a list", SLASH, "[SEP] is text", LISTS]


@pytest.fixture(scope="module", name="tokenizer")
def make_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """BERT's, with a few words."""
    vocabulary = {token: i for i, token in enumerate([*wordpiece.BERT_SPECIALS, *WORDS])}
    made = wordpiece.from_vocabulary(vocabulary, lowercase=True, strip_accents=True)
    return write(made, tmp_path_factory.mktemp("tokenizer"))


def write(made: tokenizers.Tokenizer, folder: Path) -> str:
    roles = dict(zip(tokenization.ROLES, wordpiece.BERT_SPECIALS, strict=True))
    tokenization.write_folder(str(folder), made, roles, {})
    return str(folder)


def size(tokenizer: str, **changes: Any) -> bert.BertConfig:
    fits = {
        "vocab_size": contract.Vocabulary.load(tokenizer).size,
        "max_positions": QUERY + PASSAGE,
    }
    return dataclasses.replace(tiny_models.CONFIG, **fits, **changes)


def reranker(config: bert.BertConfig, tokenizer: str) -> cross_encoder.CrossEncoder:
    return cross_encoder.CrossEncoder(
        config,
        contract.Vocabulary.load(tokenizer),
        objective.GroupShape(rows=4, length=QUERY + PASSAGE - 1, segments=1),
        QUERY,
        PASSAGE,
        queries=2,
        group_size=2,
        keep=2,
        rngs=nnx.Rngs(0),
    )


def retriever(config: bert.BertConfig, tokenizer: str) -> retromae.RetroMAE:
    vectors = text_embedding.EmbeddingConfig("cls", True, "cosine", 0.05, PASSAGE, PASSAGE, "", "")
    group = objective.GroupShape(rows=8, length=PASSAGE, segments=1)
    settings = vectors, contract.Vocabulary.load(tokenizer), group, 0.3, 0.5, PASSAGE
    return retromae.RetroMAE(config, *settings, rngs=nnx.Rngs(0))


@dataclasses.dataclass
class Given:
    """What a training stage leaves, in memory but for its contract."""

    path: Path
    module: Any
    tokenizer: str
    values: dict[str, np.ndarray]

    def arrays(self) -> dict[str, np.ndarray]:
        return self.values

    def export(self, folder: Path, **changes: Any) -> dict[str, str]:
        module = self.module
        given = {"config": module.config, "tokenizer": self.tokenizer, "weights": self}
        given |= {"vocabulary": contract.Vocabulary.load(given["tokenizer"]), **changes}
        return export_hf.export(str(folder), str(self.path), **given)


def trained(config: bert.BertConfig, tokenizer: str, stage: Path, make: Any = reranker) -> Given:
    """All parameters random, biases and norms too."""
    module = make(config, tokenizer)
    rng, flat = np.random.default_rng(5), parity_kit.parameters(module)
    values = {
        path: rng.normal(path.endswith("/scale"), 0.4, variable.shape).astype(np.float32)
        for path, variable in flat.items()
    }
    given = Given(stage, module, tokenizer, values)
    parity_kit.fill(module, given)
    module.contract().save(stage)
    return given


@pytest.fixture(scope="module", params=[2, 1])
def exported(request: Any, tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> Given:
    """With token types, and without; the folder lies in that of the stage."""
    config = size(tokenizer, type_vocab=request.param)
    given = trained(config, tokenizer, tmp_path_factory.mktemp("trained"))
    assert given.export(given.path) == {"cross_encoder": "cross_encoder"}
    assert sorted(path.name for path in given.path.iterdir() if path.is_dir()) == ["cross_encoder"]
    return given


def laid(tokenizer: str) -> dict[str, np.ndarray]:
    """QUERIES and PASSAGES as pairs, two in a row."""
    backend = tokenization.Tokenizer(tokenizer)
    sides = []
    for texts, length in ((QUERIES, QUERY), (PASSAGES, PASSAGE)):
        encoded = backend.encode_batch(texts, length)
        assert not any(one.truncated for one in encoded)
        tokens = np.concatenate([one.tokens for one in encoded])
        starts = np.concatenate([one.word_starts for one in encoded])
        sides.append(Passages(tokens, starts, np.array([len(one.tokens) for one in encoded])))
    slots = np.arange(len(QUERIES)).reshape(-1, 2)
    between = tokenization.pair_separators(tokenizer)
    return query_passage_concat.build_group(
        *sides, slots, 2 * (QUERY + PASSAGE), separators=between
    )


def scores(module: cross_encoder.CrossEncoder, tokenizer: str) -> np.ndarray:
    """Ours, of each query with its passage."""
    group = {name: jnp.asarray(array) for name, array in laid(tokenizer).items()}
    return np.asarray(module.score(group)).reshape(-1)


# --- export ---------------------------------------------------------------------------------------


def test_the_folder_says_how_it_is_read(exported: Given) -> None:
    folder, longest = exported.path / "cross_encoder", QUERY + PASSAGE - 1
    fields = json.loads((folder / "config.json").read_text())
    assert fields["architectures"] == ["BertForSequenceClassification"]
    assert len(fields["id2label"]) == 1
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == longest
    types = "token_type_ids" in settings["model_input_names"]
    assert types == (exported.module.config.type_vocab > 1)
    card = " ".join((folder / "README.md").read_text().split())
    assert f"at most {longest} tokens" in card
    assert f"cut to {QUERY} tokens and a passage (title, space, text) to {PASSAGE}" in card
    assert "sentence-transformers cuts the pair as a whole, the longer text first" in card


def test_import_gives_identical_parameters(exported: Given) -> None:
    vocab_size = exported.module.config.vocab_size
    source = import_hf.HuggingFace(str(exported.path / "cross_encoder"), vocab_size)
    found, table = source.arrays(), "encoder/embeddings/word/embedding"
    expected = exported.values | {table: exported.values[table][:vocab_size]}
    assert found.keys() == expected.keys()
    for path, array in found.items():
        np.testing.assert_array_equal(array, expected[path], err_msg=path)


def refusal(given: Given, **changes: Any) -> str:
    folder = given.path / "out"
    folder.mkdir(exist_ok=True)
    with pytest.raises(export_checks.ExportError) as error:
        given.export(folder, **changes)
    assert not list(folder.iterdir())
    return str(error.value)


def test_a_head_that_the_family_does_not_have_is_refused(tokenizer: str, tmp_path: Path) -> None:
    for changes, message in (
        ({"embedding_size": 8, "pair_activation": "tanh"}, "of electra has 'gelu', found 'tanh'"),
        (
            {"position_offset": 1, "type_vocab": 1, "pair_activation": "gelu"},
            "of roberta has 'tanh', found 'gelu'",
        ),
    ):
        given = trained(size(tokenizer, **changes), tokenizer, tmp_path)
        with pytest.raises(ValueError, match=message):
            given.export(tmp_path / "out")


def test_a_part_too_many_or_too_few_is_refused(tokenizer: str, tmp_path: Path) -> None:
    given = trained(size(tokenizer), tokenizer, tmp_path)
    message = refusal(given, unused=("^classifier/bias", "^pooler/"))
    gone = ("classifier/bias", "pooler/dense/bias", "pooler/dense/kernel")
    assert all(f"{path}: missing" in message for path in gone)
    assert "encoder/" not in message
    given.values["head/dense/bias"] = np.zeros(16, np.float32)
    assert "head/dense/bias: not a part of a re-ranker" in refusal(given)
    assert given.export(tmp_path / "out", unused=("^head/",)) == {"cross_encoder": "cross_encoder"}


def test_a_retriever_has_no_classifier(tokenizer: str, tmp_path: Path) -> None:
    given = trained(size(tokenizer), tokenizer, tmp_path, retriever)
    given.values["classifier/bias"] = np.zeros(1, np.float32)
    assert "classifier/bias: not a part of a retriever" in refusal(given)
    written = given.export(tmp_path / "out", unused=("^classifier/", "^head/", "^decoder/"))
    assert written == {"encoder": "encoder"}


def rejoined(tokenizer: str, folder: Path, pair: str) -> str:
    """The tokenizer with another template for pairs."""
    made = tokenizers.Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    words = {"single": "[CLS] $A [SEP]", "special_tokens": [("[CLS]", 2), ("[SEP]", 3)]}
    made.post_processor = tokenizers.processors.TemplateProcessing(pair=pair, **words)
    return write(made, folder)


@pytest.mark.parametrize(
    ("pair", "found"),
    [
        ("[CLS] $A [SEP] [SEP] $B:1 [SEP]:1", "found [2, 6, 3, 3, 6, 3] with [0, 0, 0, 0, 1, 1]"),
        ("[CLS] $A [SEP] $B [SEP]", "found [2, 6, 3, 6, 3] with [0, 0, 0, 0, 0]"),
    ],
)
def test_a_tokenizer_that_joins_pairs_otherwise_is_refused(
    pair: str, found: str, tokenizer: str, tmp_path: Path
) -> None:
    other = rejoined(tokenizer, tmp_path / "other", pair)
    message = refusal(trained(size(other), other, tmp_path))
    assert "expected the ids [2, 6, 3, 6, 3] with the types [0, 0, 0, 1, 1]" in message
    assert found in message


def test_types_that_nobody_reads_may_be_others(tokenizer: str, tmp_path: Path) -> None:
    other = rejoined(tokenizer, tmp_path / "other", "[CLS] $A [SEP] $B [SEP]")
    given = trained(size(other, type_vocab=1), other, tmp_path)
    assert given.export(tmp_path) == {"cross_encoder": "cross_encoder"}


@needs_interop
def test_sentence_transformers_gives_the_same_scores(exported: Given) -> None:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(exported.path / "cross_encoder"), device="cpu")
    assert model.max_seq_length == QUERY + PASSAGE - 1 and model.num_labels == 1
    assert type(model.activation_fn).__name__ == "Identity"
    expected = scores(exported.module, exported.tokenizer)
    assert expected.std() > 0.1 and not ((expected >= 0) & (expected <= 1)).all()
    pairs = list(zip(QUERIES, PASSAGES, strict=True))
    np.testing.assert_allclose(model.predict(pairs, batch_size=3), expected, atol=1e-5)
    group = laid(exported.tokenizer)
    for number, pair in enumerate(pairs):
        row, segment = divmod(number, 2)
        inside = group["segment_ids"][row] == segment + 1
        given = model.preprocess([pair])
        assert given["input_ids"][0].tolist() == group["tokens"][row][inside].tolist()
        if exported.module.config.type_vocab > 1:
            assert given["token_type_ids"][0].tolist() == group["token_types"][row][inside].tolist()
    long = model.preprocess([("words " * 9, "a " * 40)])["input_ids"]
    assert long.shape == (1, QUERY + PASSAGE - 1)


@needs_interop
def test_transformers_gives_the_same_scores(exported: Given) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = exported.path / "cross_encoder"
    words = AutoTokenizer.from_pretrained(folder)
    batch = words(QUERIES, PASSAGES, padding=True, return_tensors="pt")
    with torch.inference_mode():
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        found = model(**batch).logits.numpy()
    expected = scores(exported.module, exported.tokenizer)
    np.testing.assert_allclose(found, expected[:, None], atol=1e-5)


# --- import ---------------------------------------------------------------------------------------


def taken(module: nnx.Module, published: Path, tokenizer: str) -> dict[str, np.ndarray]:
    """The parameters of a state with this objective's after runs/initialise/published.gin."""
    files = {"PUBLISHED": str(published), "TOKENIZER": tokenizer}
    with shipped_gin.parsed("runs/initialise/published.gin", **files):
        source = gin.get_configurable(warm_start.Initialise)()
        params, variables = nnx.split_state(nnx.state(module), nnx.Param, ...)
        key, healthy = jax.random.key(0), jnp.ones((), bool)
        state = train_state.TrainState(jnp.zeros(()), params, (), variables, key, healthy)
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shardings = jax.tree.map(lambda _: device, state)
        flat = nnx.to_flat_state(warm_start.apply(state, [source], shardings).params)
    return {"/".join(map(str, path)): np.asarray(variable[...]) for path, variable in flat}


def test_a_published_reranker_is_taken_over_whole(
    exported: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh = reranker(exported.module.config, exported.tokenizer)
    found = taken(fresh, exported.path / "cross_encoder", exported.tokenizer)
    assert "in no source" not in capsys.readouterr().out
    rows = exported.module.config.vocab_size
    for path, array in found.items():
        expected = exported.values[path]
        if path == "encoder/embeddings/word/embedding":
            array, expected = array[:rows], expected[:rows]
        np.testing.assert_array_equal(array, expected, err_msg=path)


def test_a_retriever_takes_its_encoder_alone(exported: Given) -> None:
    fresh = retriever(exported.module.config, exported.tokenizer)
    found = taken(fresh, exported.path / "cross_encoder", exported.tokenizer)
    assert {path.split("/")[0] for path in found} == {"encoder", "head", "decoder"}
    path = "encoder/layers/mlp/wi/kernel"
    np.testing.assert_array_equal(found[path], exported.values[path])


def changed(exported: Given, folder: Path, tensors: dict[str, np.ndarray | None]) -> Path:
    """The exported folder with other tensors; None takes one away."""
    published = exported.path / "cross_encoder"
    held = safetensors.numpy.load_file(published / "model.safetensors") | tensors
    kept = {name: array for name, array in held.items() if array is not None}
    safetensors.numpy.save_file(kept, folder / "model.safetensors")
    (folder / "config.json").write_bytes((published / "config.json").read_bytes())
    return folder


ZEROS = np.zeros((16, 16), np.float32)
OTHERS: dict[str, tuple[dict[str, np.ndarray | None], str]] = {
    "three labels": (
        {"classifier.weight": ZEROS[:3], "classifier.bias": ZEROS[0, :3]},
        "found {'classifier.bias': (3,), 'classifier.weight': (3, 16)}",
    ),
    "of single tokens": (
        {"bert.pooler.dense.weight": None, "bert.pooler.dense.bias": None},
        "found {'classifier.bias': (1,), 'classifier.weight': (1, 16)}",
    ),
    "RoBERTa's and ELECTRA's": (
        {
            "classifier.weight": None,
            "classifier.bias": None,
            "classifier.dense.weight": ZEROS,
            "classifier.out_proj.weight": ZEROS[:1],
        },
        "found {'classifier.dense.weight': (16, 16), 'classifier.out_proj.weight': (1, 16)}",
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_classifier_is_refused_or_left_out_by_name(
    kind: str, exported: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors, described = OTHERS[kind]
    published = changed(exported, tmp_path, tensors)
    vocab_size = exported.module.config.vocab_size
    with pytest.raises(import_hf.WeightsError) as error:
        import_hf.HuggingFace(str(published), vocab_size).arrays()
    assert "classifier: expected that of a re-ranker" in str(error.value)
    assert described in str(error.value)
    assert "list 'classifier.*' in HuggingFace.ignore" in str(error.value)
    source = import_hf.HuggingFace(str(published), vocab_size, ("classifier.*",))
    parts = {path.split("/")[0] for path in source.arrays()}
    assert parts == {"encoder"} | ({"pooler"} if kind != "of single tokens" else set())


@needs_interop
def test_a_reranker_of_other_libraries_gives_its_scores(tokenizer: str, tmp_path: Path) -> None:
    import torch
    from sentence_transformers import CrossEncoder
    from transformers import AutoTokenizer, BertForSequenceClassification

    module = reranker(size(tokenizer), tokenizer)
    fields = hf_config.config_to_hf(module.config, 0, "BertForSequenceClassification")
    torch.manual_seed(1)
    kind = BertForSequenceClassification
    model = kind(kind.config_class(**fields, num_labels=1)).eval()
    for parameter in model.parameters():  # biases and norms too are random
        torch.nn.init.normal_(parameter, std=0.4)
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    opened = AutoTokenizer.from_pretrained(
        tokenizer, model_input_names=inputs, split_special_tokens=True
    )
    for part in (model, opened):
        part.save_pretrained(tmp_path / "transformers")
    published = tmp_path / "sentence-transformers"
    CrossEncoder(str(tmp_path / "transformers"), device="cpu").save_pretrained(str(published))
    found = taken(module, published, tokenizer)
    parity_kit.fill(module, Given(published, module, tokenizer, found))
    with torch.inference_mode():
        batch = opened(QUERIES, PASSAGES, padding=True, return_tensors="pt")
        expected = model(**batch).logits.numpy()[:, 0]
    np.testing.assert_allclose(scores(module, tokenizer), expected, atol=1e-5)
