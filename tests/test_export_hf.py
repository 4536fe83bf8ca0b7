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
from flax import nnx

from input_pipelines import beir, import_tokenizer, tokenization
from models import bert, embedding, export_hf, import_hf, retromae
from t5x_style import checkpointing, initialise, optim, train_state
from t5x_style.contract import Contract, Vocabulary
from t5x_style.objective import GroupShape
from t5x_style.partitioning import MeshShape, Partitioner
from tests import parity_kit
from tests.interop import needs_interop

REPOSITORY = Path(__file__).resolve().parent.parent
TEXTS = [f"Sort {i} words, then join them with a slash." for i in range(6)]
TEXTS += ["A word", "[SEP] in a text is text [MASK]", "naïve CAFÉ 中文!"]
FAMILIES = {
    "bert": {},
    "roberta": {"position_offset": 1, "type_vocab": 1, "layer_norm_eps": 1e-5},
    "electra": {"embedding_size": 8},
}
EMBEDDING = embedding.EmbeddingConfig("cls", True, "cosine", 0.05, 16, 32, "query: ", "passage: ")
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


def size(tokenizer: str, family: str = "bert") -> bert.BertConfig:
    return bert.BertConfig(
        vocab_size=Vocabulary.load(tokenizer).size,
        hidden=16,
        layers=2,
        heads=2,
        mlp=32,
        max_positions=32,
        dropout=0.0,
        attention_dropout=0.0,
        initializer_range=0.3,
        vocab_multiple=64,
        **FAMILIES[family],
    )


def one_device() -> Partitioner:
    return Partitioner(MeshShape(1, 1, 1), devices=jax.devices()[:1])


def objective(tokenizer: str, family: str) -> functools.partial:
    return functools.partial(
        retromae.RetroMAE,
        size(tokenizer, family),
        EMBEDDING,
        Vocabulary.load(tokenizer),
        GroupShape(rows=8, length=32, segments=1),
        0.3,
        0.5,
        32,
    )


@dataclasses.dataclass
class Trained:
    """A training stage's folder, the parameters in it, and what was exported from them."""

    stage: Path
    parameters: dict[str, np.ndarray]
    folder: Path
    module: retromae.RetroMAE


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request, tokenizer, tmp_path_factory) -> Trained:
    make, stage = objective(tokenizer, request.param), tmp_path_factory.mktemp("train")
    optimizer = optim.AdamW(learning_rate=1e-3, warmup_steps=1, total_steps=2)
    definition, state, _ = train_state.create(make, optimizer, one_device(), 3)
    saver = checkpointing.Checkpointer(stage / "checkpoints", checkpointing.Checkpointing(keep=1))
    saver.save(state, {})
    saver.close()
    module = definition.module(state.params, state.variables)
    module.contract().save(stage)
    folder = tmp_path_factory.mktemp("export")
    weights = initialise.Checkpoint(str(stage))
    written = export_hf.export(
        str(folder), str(stage), weights, module.config, module.vocabulary, tokenizer
    )
    assert written == {name: name for name in PART_NAMES}
    return Trained(stage, dict(weights.arrays()), folder, module)


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
    expected = {p: a for p, a in trained.parameters.items() if p.split("/")[0] in parts}
    assert found.keys() == expected.keys()
    for path, array in found.items():
        vocabulary = path in ("head/bias", "encoder/embeddings/word/embedding")
        wanted = expected[path][:vocab_size] if vocabulary else expected[path]
        np.testing.assert_array_equal(array, wanted, err_msg=path)


def test_pretraining_can_be_continued(trained: Trained) -> None:
    make = functools.partial(
        retromae.RetroMAE,
        trained.module.config,
        EMBEDDING,
        trained.module.vocabulary,
        trained.module.text,
        0.3,
        0.5,
        32,
    )
    optimizer = optim.AdamW(learning_rate=1e-3, warmup_steps=1, total_steps=2)
    _, state, shardings = train_state.create(make, optimizer, Partitioner(MeshShape(2, 2, 2)), 99)
    source = import_hf.HuggingFace(
        str(trained.folder / "pretraining"), trained.module.config.vocab_size
    )
    taken = initialise.apply(state, [initialise.Initialise(source, {"": ""})], shardings)
    for path, variable in nnx.to_flat_state(taken.params):
        array, name = np.asarray(variable[...]), "/".join(map(str, path))
        rows = len(source.arrays()[name])  # what pads the vocabulary has no meaning
        np.testing.assert_array_equal(array[:rows], trained.parameters[name][:rows], err_msg=name)


def test_the_official_names_of_retromae(trained: Trained) -> None:
    if trained.module.config.position_offset or trained.module.config.embedding_size:
        return
    names = import_hf.HuggingFace(str(trained.folder / "pretraining"), 1)._where.values()
    found = {stored.name for stored in names}
    assert {
        "lm.bert.embeddings.word_embeddings.weight",
        "lm.cls.predictions.transform.LayerNorm.bias",
        "c_head.attention.self.query.weight",
    } <= found
    assert all(name.startswith(("lm.bert.", "lm.cls.", "c_head.")) for name in found)


def test_the_tokenizer_travels(trained: Trained, tokenizer: str, tmp_path: Path) -> None:
    for name in PART_NAMES:
        imported = tmp_path / name
        import_tokenizer.import_tokenizer(str(imported), str(trained.folder / name))
        fingerprint = Vocabulary.load(str(imported / "tokenizer")).fingerprint
        assert fingerprint == Vocabulary.load(tokenizer).fingerprint


def test_what_does_not_belong_together_is_refused(
    trained: Trained, tokenizer: str, tmp_path: Path
) -> None:
    module, weights = trained.module, initialise.Checkpoint(str(trained.stage))

    def refusal(**changes) -> str:
        given = {
            "weights": weights,
            "config": module.config,
            "vocabulary": module.vocabulary,
            "tokenizer": tokenizer,
            **changes,
        }
        with pytest.raises(export_hf.ExportError) as error:
            export_hf.export(str(tmp_path), str(trained.stage), **given)
        assert not list(tmp_path.iterdir())
        return str(error.value)

    message = refusal(config=dataclasses.replace(module.config, mlp=64))
    assert "encoder/layers/mlp/wi/kernel: BertConfig says (2, 16, 64), found (2, 16, 32)" in message
    other = dataclasses.replace(module.vocabulary, fingerprint="another")
    assert "tokenizer: trained with" in refusal(vocabulary=other)
    assert "vocabulary" in refusal(config=dataclasses.replace(module.config, vocab_size=1))
    extra = Arrays({**trained.parameters, "generator/word": np.zeros(3)})
    assert "generator/word: Hugging Face files have no such parameter" in refusal(weights=extra)
    part = Arrays({p: a for p, a in trained.parameters.items() if "mlp_norm/bias" not in p})
    assert "encoder/layers/mlp_norm/bias: missing" in refusal(weights=part)
    left = export_hf.export(
        str(tmp_path), str(trained.stage), extra, module.config, module.vocabulary, tokenizer,
        unused=("^generator/", "^decoder/"),
    )  # fmt: skip
    assert set(left) == {"encoder", "masked_lm"}


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Weights that are given."""

    values: dict[str, np.ndarray]

    def arrays(self) -> dict[str, np.ndarray]:
        return self.values


def test_by_gin(tokenizer: str, tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(tokenizer)
    config = bert.BertConfig(vocabulary.size, 128, 2, 2, 512, 128)  # models/tiny.gin
    shapes = import_hf.part_shapes(config)
    contract = EMBEDDING.contract(128, vocabulary)
    assert contract == Contract(**dataclasses.asdict(contract))
    stage = tmp_path / "train"
    optimizer = optim.AdamW(1e-3, 1, 2)
    make = functools.partial(
        retromae.RetroMAE, config, EMBEDDING, vocabulary, GroupShape(1, 32, 1), 0.3, 0.5, 32
    )
    _, state, _ = train_state.create(make, optimizer, one_device(), 0)
    saver = checkpointing.Checkpointer(stage / "checkpoints", checkpointing.Checkpointing(keep=1))
    saver.save(state, {})
    saver.close()
    contract.save(stage)
    command = [
        sys.executable, "-m", "t5x_style.stage",
        "--gin_file=gin_configs/runs/export_hf.gin", "--gin_file=gin_configs/models/tiny.gin",
        f"--gin.CHECKPOINT={stage}", f"--gin.TOKENIZER={tokenizer}",
        f"--gin.MODEL_DIR={tmp_path}/export",
    ]  # fmt: skip
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    source = import_hf.HuggingFace(str(tmp_path / "export/pretraining"), vocabulary.size)
    unused = ("pooler", "next_sentence")
    assert source.arrays().keys() == {p for p in shapes if p.split("/")[0] not in unused}


# --- beside the real libraries --------------------------------------------------------------------


def vectors(trained: Trained, tokenizer: str, function: str, prefix: str) -> np.ndarray:
    """Ours."""
    encoder = tokenization.QuestionEncoder(tokenizer, 32, prefix)
    return np.asarray(trained.module.functions()[function].call(encoder(TEXTS)))[:, 0]


@needs_interop
def test_sentence_transformers_gives_the_same_vectors(trained: Trained, tokenizer: str) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(trained.folder / "encoder"), device="cpu")
    assert model.max_seq_length == 32 and model.similarity_fn_name == "cosine"
    ours = tokenization.Tokenizer(tokenizer).encode_batch(TEXTS, 32)
    for text, mine in zip(TEXTS, ours, strict=True):
        theirs = model.preprocess([text])["input_ids"][0].tolist()
        assert theirs == mine.tokens.tolist(), text
    for function, prompt, prefix in (
        ("embed_query", model.encode_query, EMBEDDING.query_prefix),
        ("embed_passage", model.encode_document, EMBEDDING.passage_prefix),
    ):
        expected = vectors(trained, tokenizer, function, prefix)
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
    weights = initialise.Checkpoint(str(trained.stage))
    export_hf.export(
        str(tmp_path), str(tmp_path), weights, module.config, module.vocabulary, tokenizer
    )
    model = SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    assert len(model) == 2 + normalise and model.similarity_fn_name == "dot"
    group = tokenization.QuestionEncoder(tokenizer, 32, config.passage_prefix)(TEXTS)
    expected = np.asarray(embedding.embed(module.encoder, group, config))[:, 0]
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
