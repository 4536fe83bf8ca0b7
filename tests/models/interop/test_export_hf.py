"""A trained encoder as folders for other libraries: the same parameters, vectors and logits."""

import dataclasses
import functools
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors
import tokenizers
from flax import nnx

from input_pipelines.sources import beir
from input_pipelines.tokenizers import import_tokenizer, question_tokens, tokenization
from models.interop import export_checks, export_hf, import_hf, published_layout
from models.networks import bert, modernbert, text_embedding
from models.objectives import retromae
from t5x_style.checkpoints import checkpointing
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.objective import GroupShape, embedder
from t5x_style.step import optimizers, train_state
from t5x_style.training import warm_start
from tests.kits.interop import needs_interop
from tests.parity import parity_kit

REPOSITORY = Path(__file__).resolve().parents[3]
TEXTS = [f"Sort {i} words, then join them with a slash." for i in range(6)]
TEXTS += ["A word", "[SEP] in a text is text [MASK]", "naïve CAFÉ 中文!"]
FAMILIES = {
    "bert": {},
    "roberta": {"position_offset": 1, "type_vocab": 1, "layer_norm_eps": 1e-5},
    "electra": {"embedding_size": 8},
}
MODERNBERT = {"window": 6, "whole_every": 2, "whole_theta": 900.0, "window_theta": 70.0}
EMBEDDING = text_embedding.EmbeddingConfig(
    "cls", True, "cosine", 0.05, 16, 32, "query: ", "passage: "
)
PART_NAMES = ("encoder", "masked_lm", "pretraining")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    """Our own trained WordPiece."""
    folder = tmp_path_factory.mktemp("tokenizer")
    lines = [{"_id": str(i), "title": "", "text": text} for i, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = beir.BeirCorpus(str(folder), 1000)
    tokenization.train_tokenizer(str(folder), source, 200, 64, 1, True, True, 0, 0, 0)
    return str(folder / "tokenizer")


def size(tokenizer: str, family: str = "bert") -> bert.BertConfig | modernbert.ModernBertConfig:
    sizes = {
        "vocab_size": Vocabulary.load(tokenizer).size,
        "hidden": 16,
        "layers": 2,
        "heads": 2,
        "mlp": 32,
        "max_positions": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "initializer_range": 0.3,
        "vocab_multiple": 128,
    }
    if family == "modernbert":
        return modernbert.ModernBertConfig(**sizes, **MODERNBERT)
    return bert.BertConfig(**sizes, **FAMILIES[family])


def objective(config: bert.BertConfig, tokenizer: str) -> functools.partial:
    return functools.partial(
        retromae.RetroMAE,
        config,
        EMBEDDING,
        Vocabulary.load(tokenizer),
        GroupShape(rows=8, length=32, segments=1),
        0.3,
        0.5,
        32,
    )


@dataclasses.dataclass
class Trained:
    """What a training stage leaves, in memory but for its contract, and what was exported."""

    stage: Path
    module: retromae.RetroMAE
    folder: Path

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters: what a checkpoint gives as a source of weights."""
        flat = parity_kit.parameters(self.module)
        return {path: np.asarray(variable[...]) for path, variable in flat.items()}


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Weights that are given."""

    values: dict[str, np.ndarray]

    def arrays(self) -> dict[str, np.ndarray]:
        return self.values


@pytest.fixture(scope="module", params=[*FAMILIES, "modernbert"])
def trained(request, tokenizer, tmp_path_factory) -> Trained:
    module = objective(size(tokenizer, request.param), tokenizer)(rngs=nnx.Rngs(3))
    stage, folder = tmp_path_factory.mktemp("train"), tmp_path_factory.mktemp("export")
    module.contract().save(stage)
    left = Trained(stage, module, folder)
    written = export_hf.export(
        str(folder), str(stage), left, module.config, module.vocabulary, tokenizer
    )
    assert written == {name: name for name in PART_NAMES}
    return left


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("encoder", ("encoder",)),
        ("masked_lm", ("encoder", "head")),
        ("pretraining", ("encoder", "head", "decoder")),
    ],
)
def test_import_gives_identical_parameters(trained: Trained, name: str, parts: tuple) -> None:
    vocab_size = trained.module.config.vocab_size
    found = import_hf.HuggingFace(str(trained.folder / name), vocab_size).arrays()
    expected = {p: a for p, a in trained.arrays().items() if p.split("/")[0] in parts}
    assert found.keys() == expected.keys()
    for path, array in found.items():
        vocabulary = path in ("head/bias", "encoder/embeddings/word/embedding")
        wanted = expected[path][:vocab_size] if vocabulary else expected[path]
        np.testing.assert_array_equal(array, wanted, err_msg=path)


def test_the_official_names_of_retromae(trained: Trained) -> None:
    with safetensors.safe_open(trained.folder / "pretraining/model.safetensors", "numpy") as file:
        found = set(file.keys())
    config = trained.module.config
    family = published_layout.of_config(config).variant_of(config)
    head = {
        "bert": "cls.predictions.transform.LayerNorm.bias",
        "roberta": "lm_head.layer_norm.bias",
        "electra": "generator_predictions.LayerNorm.bias",
        "modernbert": "head.norm.weight",
    }
    table, query = f"{family}.embeddings.word_embeddings.weight", "attention.self.query.weight"
    if family == "modernbert":
        table, query = "model.embeddings.tok_embeddings.weight", "attn.Wqkv.weight"
    assert {f"lm.{table}", f"lm.{head[family]}", f"c_head.{query}"} <= found
    assert all(name.startswith(("lm.", "c_head.")) for name in found)


def test_the_tokenizer_travels(trained: Trained, tokenizer: str, tmp_path: Path) -> None:
    for name in PART_NAMES:
        imported = tmp_path / name
        import_tokenizer.import_tokenizer(str(imported), str(trained.folder / name))
        fingerprint = Vocabulary.load(str(imported / "tokenizer")).fingerprint
        assert fingerprint == Vocabulary.load(tokenizer).fingerprint


def test_what_does_not_belong_together_is_refused(
    trained: Trained, tokenizer: str, tmp_path: Path
) -> None:
    module = trained.module

    def refusal(**changes) -> str:
        given = {
            "weights": trained,
            "config": module.config,
            "vocabulary": module.vocabulary,
            "tokenizer": tokenizer,
            **changes,
        }
        with pytest.raises(export_checks.ExportError) as error:
            export_hf.export(str(tmp_path), str(trained.stage), **given)
        assert not list(tmp_path.iterdir())
        return str(error.value)

    message = refusal(config=dataclasses.replace(module.config, mlp=64))
    kind, stacked = type(module.config).__name__, trained.arrays()["encoder/layers/mlp/wi/kernel"]
    shapes = f"says ({len(stacked)}, 16, 64), found ({len(stacked)}, 16, 32)"
    assert f"encoder/layers/mlp/wi/kernel: {kind} {shapes}" in message
    other = dataclasses.replace(module.vocabulary, fingerprint="another")
    assert "tokenizer: trained with" in refusal(vocabulary=other)
    fewer = dataclasses.replace(module.config, vocab_size=module.config.vocab_size - 1)
    assert "vocabulary: trained with" in refusal(config=fewer)
    arrays = trained.arrays()
    extra = Arrays({**arrays, "generator/word": np.zeros(3)})
    assert "generator/word: Hugging Face files have no such parameter" in refusal(weights=extra)
    part = Arrays({p: a for p, a in arrays.items() if "mlp_norm/scale" not in p})
    assert "encoder/layers/mlp_norm/scale: missing" in refusal(weights=part)
    left = export_hf.export(
        str(tmp_path), str(trained.stage), extra, module.config, module.vocabulary, tokenizer,
        unused=("^generator/", "^decoder/"),
    )  # fmt: skip
    assert set(left) == {"encoder", "masked_lm"}


def test_from_a_checkpoint_by_gin_and_into_a_state_again(tokenizer: str, tmp_path: Path) -> None:
    config = dataclasses.replace(size(tokenizer), hidden=128, mlp=512, max_positions=128)
    make, optimizer = objective(config, tokenizer), optimizers.AdamW(1e-3, 1, 2)
    _, state, shardings = train_state.create(make, optimizer, Partitioner(MeshShape(2, 2, 2)), 0)
    stage = tmp_path / "train"
    saver = checkpointing.Checkpointer(stage / "checkpoints", checkpointing.Checkpointing(keep=1))
    saver.save(state, {})
    saver.close()
    make(rngs=nnx.Rngs(0)).contract().save(stage)
    command = [
        sys.executable, "-m", "t5x_style.stage",
        "--gin_file=gin_configs/runs/exports/huggingface.gin",
        "--gin_file=gin_configs/models/tiny.gin",
        f"--gin.CHECKPOINT={stage}", f"--gin.TOKENIZER={tokenizer}",
        f"--gin.MODEL_DIR={tmp_path}/export",
    ]  # fmt: skip
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    source = import_hf.HuggingFace(str(tmp_path / "export/pretraining"), config.vocab_size)
    fresh = dataclasses.replace(state, params=jax.tree.map(jax.numpy.zeros_like, state.params))
    again = warm_start.apply(fresh, [warm_start.Initialise(source, {"": ""})], shardings)
    expected = dict(nnx.to_flat_state(state.params))
    for path, variable in nnx.to_flat_state(again.params):
        found, wanted = np.asarray(variable[...]), np.asarray(expected[path][...])
        if path in (("head", "bias"), ("encoder", "embeddings", "word", "embedding")):
            found, wanted = found[: config.vocab_size], wanted[: config.vocab_size]
        np.testing.assert_array_equal(found, wanted, err_msg=str(path))


# --- against the real libraries -------------------------------------------------------------------


def vectors(trained: Trained, tokenizer: str, side: str, prefix: str) -> np.ndarray:
    """Ours."""
    encoder = question_tokens.QuestionEncoder(tokenizer, 32, prefix)
    return np.asarray(embedder(trained.module.functions(), side)(encoder(TEXTS)))[:, 0]


@needs_interop
def test_sentence_transformers_gives_the_same_vectors(trained: Trained, tokenizer: str) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(trained.folder / "encoder"), device="cpu")
    assert model.max_seq_length == 32 and model.similarity_fn_name == "cosine"
    ours = tokenization.Tokenizer(tokenizer).encode_batch(TEXTS, 32)
    for text, mine in zip(TEXTS, ours, strict=True):
        theirs = model.preprocess([text])["input_ids"][0].tolist()
        assert theirs == mine.tokens.tolist(), text
    for side, prompt, prefix in (
        ("query", model.encode_query, EMBEDDING.query_prefix),
        ("passage", model.encode_document, EMBEDDING.passage_prefix),
    ):
        expected = vectors(trained, tokenizer, side, prefix)
        np.testing.assert_allclose(prompt(TEXTS, batch_size=4), expected, atol=1e-5)


@needs_interop
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("normalise", [True, False])
def test_every_pooling(
    trained: Trained, tokenizer: str, tmp_path: Path, pooling: str, normalise: bool
) -> None:
    from sentence_transformers import SentenceTransformer

    config = dataclasses.replace(EMBEDDING, pooling=pooling, normalise=normalise, similarity="dot")
    module = trained.module
    config.contract(module.config.hidden, module.vocabulary).save(tmp_path)
    export_hf.export(
        str(tmp_path), str(tmp_path), trained, module.config, module.vocabulary, tokenizer
    )
    model = SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    assert len(model) == 2 + normalise and model.similarity_fn_name == "dot"
    group = question_tokens.QuestionEncoder(tokenizer, 32, config.passage_prefix)(TEXTS)
    expected = np.asarray(text_embedding.embed(module.encoder, group, config))[:, 0]
    np.testing.assert_allclose(model.encode_document(TEXTS), expected, atol=1e-5)


@needs_interop
def test_transformers_gives_the_same_states_and_logits(trained: Trained, tokenizer: str) -> None:
    import torch
    from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

    folder, module = trained.folder, trained.module
    opened = AutoTokenizer.from_pretrained(folder / "masked_lm")
    batch = opened(TEXTS, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"].numpy(), batch["attention_mask"].numpy()
    group = parity_kit.token_group(ids, mask)
    hidden = module.encoder(group["tokens"], group["positions"], group["segment_ids"])
    logits = module.head.transform(hidden) @ module.encoder.word_table.T + module.head.bias[...]
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder / "encoder").eval()(**batch).last_hidden_state
        masked = AutoModelForMaskedLM.from_pretrained(folder / "masked_lm").eval()
        theirs = masked(**batch).logits.numpy()
    real = mask == 1
    np.testing.assert_allclose(np.asarray(hidden)[real], states.numpy()[real], atol=1e-5)
    found = np.asarray(logits)[..., : module.config.vocab_size]
    np.testing.assert_allclose(found[real], theirs[real], atol=1e-4)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory) -> str:
    """A tokenizer of XLM-R's kind: unigram, `<s> <pad> </s> <unk>`, pad id 1."""
    folder = tmp_path_factory.mktemp("unigram")
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=80, special_tokens=specials, unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(TEXTS * 20, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    made.save(str(folder / "tokenizer.json"))
    import_tokenizer.import_tokenizer(str(folder), str(folder))
    return str(folder / "tokenizer")


@needs_interop
def test_the_shape_of_xlm_roberta_with_its_kind_of_tokenizer(
    sentencepiece: str, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    config = dataclasses.replace(size(sentencepiece, "roberta"), position_offset=2)
    module = objective(config, sentencepiece)(rngs=nnx.Rngs(4))
    module.contract().save(tmp_path)
    left = Trained(tmp_path, module, tmp_path)
    export_hf.export(str(tmp_path), str(tmp_path), left, config, module.vocabulary, sentencepiece)
    model = SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    found = model.encode_document(TEXTS, batch_size=4)
    np.testing.assert_allclose(
        found, vectors(left, sentencepiece, "passage", "passage: "), atol=1e-5
    )
