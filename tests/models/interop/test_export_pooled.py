"""LaBSE's encoder with its pooler, from and to folders of other libraries: the same vectors."""

import dataclasses
import json
from pathlib import Path

import gin
import jax
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from input_pipelines.tokenizers import import_tokenizer, question_tokens, tokenization, wordpiece
from models.interop import export_checks, export_hf, hf_config, import_hf, layout_bert
from models.losses import contrastive
from models.networks import bert
from models.objectives import labse
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.objective import GroupShape, embedder
from t5x_style.step import optimizers, train_state
from t5x_style.training import warm_start
from tests.kits import shipped_gin, tiny_models
from tests.kits.interop import needs_interop
from tests.parity import parity_kit

REPOSITORY = Path(__file__).resolve().parents[3]
WORDS = "ein eine Hund Katze a dog cat the der die sleeps schläft ##s , .".split()
TEXTS = ["a dog sleeps .", "ein Hund schläft .", "die Katze", "cats , dogs", "Hund"]
LENGTH = 12
EMBEDDING = dataclasses.replace(
    tiny_models.EMBEDDING,
    pooling="pooler", normalise=True, similarity="cosine", query_length=LENGTH,
    passage_length=LENGTH,
)  # fmt: skip
FAMILIES = {
    "bert": {},
    "roberta": {"position_offset": 1, "type_vocab": 1, "layer_norm_eps": 1e-5},
    "electra": {"embedding_size": 8},
}
PATHS = {"encoder": "embedder/encoder", "pooler": "embedder/pooler"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    vocabulary = {token: i for i, token in enumerate([*wordpiece.BERT_SPECIALS, *WORDS])}
    made = wordpiece.from_vocabulary(vocabulary, lowercase=False, strip_accents=False)
    roles = dict(zip(tokenization.ROLES, wordpiece.BERT_SPECIALS, strict=True))
    folder = str(tmp_path_factory.mktemp("tokenizer"))
    tokenization.write_folder(folder, made, roles, {})
    return folder


def make(config: bert.BertConfig, tokenizer: str, seed: int = 3) -> labse.LaBSE:
    shape = GroupShape(8, LENGTH, 1)
    return labse.LaBSE(
        config, EMBEDDING, Vocabulary.load(tokenizer), shape, shape,
        contrastive.ContrastiveConfig(both_directions=True), rngs=nnx.Rngs(seed),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Left:
    """What a training stage leaves, and the folder that it was exported to."""

    module: labse.LaBSE
    folder: Path

    def arrays(self) -> dict[str, np.ndarray]:
        flat = parity_kit.parameters(self.module)
        return {path: np.asarray(variable[...]) for path, variable in flat.items()}


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request, tokenizer, tmp_path_factory) -> Left:
    size = {"vocab_size": Vocabulary.load(tokenizer).size, "vocab_multiple": 64}
    config = dataclasses.replace(tiny_models.CONFIG, **size, **FAMILIES[request.param])
    folder = tmp_path_factory.mktemp("export")
    left = Left(make(config, tokenizer), folder)
    left.module.contract().save(folder)
    written = export_hf.export(
        str(folder), str(folder), left, config, left.module.vocabulary, tokenizer
    )
    assert written == {"encoder": "encoder"}
    return left


def vectors(module: labse.LaBSE, tokenizer: str, texts=TEXTS) -> np.ndarray:
    group = question_tokens.QuestionEncoder(tokenizer, LENGTH, "")(texts)
    return np.asarray(embedder(module.functions(), "query")(group))[:, 0]


def taken_over(module: labse.LaBSE, folder: Path, tokenizer: str) -> labse.LaBSE:
    """Another one of its sizes that takes a folder's weights, by initialise/labse_published.gin."""
    fresh = make(module.config, tokenizer, seed=4)
    files = {"PUBLISHED": str(folder), "TOKENIZER": tokenizer}
    with shipped_gin.parsed("runs/initialise/labse_published.gin", **files):
        initialisers = gin.query_parameter("train.train.initialise_from")
        sources = [one.scoped_configurable_fn() for one in initialisers]
    _, state, shardings = train_state.create(
        lambda rngs: make(module.config, tokenizer, seed=4), optimizers.AdamW(1e-3, 1, 2),
        Partitioner(MeshShape(1, 1, 1), devices=jax.devices()[:1]), 0,
    )  # fmt: skip
    nnx.update(fresh, warm_start.apply(state, sources, shardings).params)
    return fresh


def test_import_gives_identical_parameters(trained: Left, tokenizer: str) -> None:
    with pytest.warns(UserWarning, match="its Dense module is the pooler here"):
        again = taken_over(trained.module, trained.folder / "encoder", tokenizer)
    found, expected = Left(again, trained.folder).arrays(), trained.arrays()
    rows = trained.module.config.vocab_size
    assert found.keys() == expected.keys()
    for path, array in found.items():
        cut = slice(rows) if path.endswith("word/embedding") else slice(None)
        np.testing.assert_array_equal(array[cut], expected[path][cut], err_msg=path)


def test_a_dense_module_counts_and_not_the_encoders_own_pooler(
    trained: Left, tokenizer: str, tmp_path: Path
) -> None:
    source = trained.folder / "encoder"
    for file in [path for path in source.rglob("*") if path.is_file()]:
        copy = tmp_path / file.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(file.read_bytes())
    dense = tmp_path / "2_Dense/model.safetensors"
    tensors = safetensors.numpy.load_file(dense)
    safetensors.numpy.save_file({n: -array for n, array in tensors.items()}, dense)

    def pooler() -> dict[str, np.ndarray]:
        found = import_hf.HuggingFace(str(tmp_path), trained.module.config.vocab_size).arrays()
        return {path: array for path, array in found.items() if path.startswith("pooler/")}

    expected = trained.arrays()
    with pytest.warns(UserWarning, match="its Dense module is the pooler here"):
        found = pooler()
    assert len(found) == 2
    for path, array in found.items():
        np.testing.assert_array_equal(array, -expected[f"embedder/{path}"])
    # Another activation is no pooler, and what is left is named.
    settings = tmp_path / "2_Dense/config.json"
    fields = json.loads(settings.read_text()) | {"activation_function": "torch.nn.Identity"}
    settings.write_text(json.dumps(fields))
    with pytest.warns(UserWarning, match=r"not the modules \['Dense'\]"):
        found = pooler()
    assert bool(found) == ("embedding_size" not in _changes(trained))  # ELECTRA's holds none
    for path, array in found.items():
        np.testing.assert_array_equal(array, expected[f"embedder/{path}"])


def _changes(trained: Left) -> dict:
    return FAMILIES[layout_bert.LAYOUT.variant_of(trained.module.config)]


def test_what_no_file_has_a_place_for_is_refused(
    trained: Left, tokenizer: str, tmp_path: Path
) -> None:
    module = trained.module

    @dataclasses.dataclass(frozen=True)
    class Without:
        path: str

        def arrays(self) -> dict[str, np.ndarray]:
            left = {p: a for p, a in trained.arrays().items() if not p.startswith(self.path)}
            return left | {"head/bias": np.zeros(module.config.vocab_size, np.float32)}

    with pytest.raises(export_checks.ExportError) as error:
        export_hf.export(
            str(tmp_path), str(trained.folder), Without("embedder/pooler"), module.config,
            module.vocabulary, tokenizer,
        )  # fmt: skip
    assert "pooler/dense/kernel: missing" in str(error.value)
    assert "head/bias: not a part of a retriever with a pooler" in str(error.value)
    assert not list(tmp_path.iterdir())


@needs_interop
def test_sentence_transformers_gives_the_same_vectors(trained: Left, tokenizer: str) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(trained.folder / "encoder"), device="cpu")
    assert model.max_seq_length == LENGTH and len(model) == 4
    expected = vectors(trained.module, tokenizer)
    np.testing.assert_allclose(model.encode(TEXTS, batch_size=2), expected, atol=1e-5)


@needs_interop
@pytest.mark.parametrize("trained", ["bert", "roberta"], indirect=True)  # ELECTRA has no pooler
def test_transformers_gives_the_pooled_states(trained: Left, tokenizer: str) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = trained.folder / "encoder"
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        pooled = AutoModel.from_pretrained(folder).eval()(**batch).pooler_output.numpy()
    expected = vectors(trained.module, tokenizer)
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(pooled, expected, atol=1e-5)


@needs_interop
def test_a_folder_that_sentence_transformers_made(tokenizer: str, tmp_path: Path) -> None:
    import torch
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    rows = Vocabulary.load(tokenizer).size
    size = BertConfig(
        vocab_size=rows, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=24, initializer_range=0.2,
    )  # fmt: skip
    BertModel(size).save_pretrained(tmp_path / "bert")
    file = f"{tokenizer}/tokenizer.json"
    BertTokenizerFast(tokenizer_file=file, do_lower_case=False).save_pretrained(tmp_path / "bert")
    transformer = models.Transformer(str(tmp_path / "bert"), max_seq_length=LENGTH)
    dense = models.Dense(16, 16, bias=True, activation_function=torch.nn.Tanh())
    pooling = models.Pooling(16, pooling_mode="cls")
    model = SentenceTransformer(
        modules=[transformer, pooling, dense, models.Normalize()], device="cpu"
    )
    model.save(str(tmp_path / "labse"))
    imported = tmp_path / "imported"
    import_tokenizer.import_tokenizer(str(imported), str(tmp_path / "labse"))
    config = hf_config.config_from_hf(str(tmp_path / "labse"), "float32", "none", 1, rows)
    ours = str(imported / "tokenizer")
    with pytest.warns(UserWarning, match="its Dense module is the pooler here"):
        module = taken_over(make(config, ours), tmp_path / "labse", ours)
    module.eval()
    np.testing.assert_allclose(vectors(module, ours), model.encode(TEXTS), atol=1e-5)
