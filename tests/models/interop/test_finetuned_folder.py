"""The folder that a fine-tuned encoder leaves: vectors, what it keeps, and what is refused."""

import dataclasses
import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from flax import nnx

from input_pipelines.tokenizers import import_tokenizer, question_tokens
from models.interop import finetuned_folder, front_matter, import_hf
from models.interop.export_checks import ExportError
from models.interop.licences import LicenceError
from t5x_style import evaluate_short_vectors
from t5x_style.interfaces import objective
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.verdict_record import NOTICE, VerdictError
from tests.kits import published_folders as folders
from tests.kits.interop import needs_interop
from tests.kits.toys import verdicts
from tests.models.interop import test_published_encoder
from tests.parity import parity_kit

COMMAND = "kennel finetune --model=path/to/encoder --data=path/to/data"
TEXTS = [*folders.TEXTS, "[SEP] is text here [MASK]", "naïve CAFÉ 中文!"]
PROMPTS = {"query": "query: ", "passage": "passage: ", "clustering": "cluster: "}
CASES: dict[str, dict[str, Any]] = {
    "mean": {},
    "cls": {"modes": ("cls_token",)},
    "not normalised": {
        "kinds": ("Transformer", "Pooling"),
        "settings": {"similarity_fn_name": "dot"},
    },
    "prompts": {"settings": {"prompts": PROMPTS, "default_prompt_name": "query", "mine": 1}},
}


@dataclasses.dataclass
class Finetuned:
    """A published encoder whose weights a training has changed a little."""

    published: Path
    folder: Path
    module: Any

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters: what a checkpoint gives as a source of weights."""
        flat = parity_kit.parameters(self.module)
        return {path: np.asarray(variable[...]) for path, variable in flat.items()}

    @property
    def contract(self) -> Contract:
        return Contract.load(self.folder)

    @property
    def tokenizer(self) -> str:
        return str(self.folder / "tokenizer")

    def vectors(self, side: str) -> np.ndarray:
        """[n, D], ours of TEXTS."""
        prefix, length = (getattr(self.contract, f"{side}_{what}") for what in ("prefix", "length"))
        group = question_tokens.QuestionEncoder(self.tokenizer, length, prefix)(TEXTS)
        return np.asarray(objective.embedder(self.module.functions(), side)(group))[:, 0]

    def export(self, folder: Path, **changes: Any) -> dict[str, str]:
        """Calls the job."""
        folder.mkdir(exist_ok=True)
        vocabulary = Vocabulary.load(self.tokenizer)
        given = {
            "model_dir": str(folder),
            "checkpoint": str(self.folder),
            "weights": self,
            "config": self.module.config,
            "vocabulary": vocabulary,
            "tokenizer": self.tokenizer,
            "published": str(self.published),
            "verdict": verdicts.write(self.folder / "verdict.json"),
            "corpus": str(self.folder / "texts"),
            "report": None,
            "command": COMMAND,
            "licence": "mit",
            "base_model": "somebody/an-encoder",
            "force": False,
        }
        return finetuned_folder.finetuned_folder(**{**given, **changes})


def finetuned(folder: Path, published: Path, *flags: str) -> Finetuned:
    import_tokenizer.import_tokenizer(str(folder), str(published))
    with folders.objective(published, folder / "tokenizer", *flags) as make:
        module = make(rngs=nnx.Rngs(3))
    size, rng = Vocabulary.load(str(folder / "tokenizer")).size, np.random.default_rng(0)
    source = import_hf.HuggingFace(str(published), size).arrays()
    for path, variable in sorted(parity_kit.parameters(module).items()):
        given, table = np.asarray(source[path]), np.array(variable[...])
        table[: len(given)] = given + 0.05 * given.std() * rng.normal(size=given.shape)
        variable[...] = table
    module.contract().save(folder)
    folders.corpus(folder / "texts")
    return Finetuned(published, folder, module)


@pytest.fixture(scope="module", params=CASES)
def case(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made(case, tmp_path_factory) -> Finetuned:
    folder = tmp_path_factory.mktemp("finetuned")
    return finetuned(folder, folders.published(folder / "made", **CASES[case]))


@pytest.fixture(scope="module")
def exported(made, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    outputs = made.export(folder)
    assert outputs == {"encoder": "encoder", "card": "encoder/README.md"}
    return folder / "encoder"


def worst_of(found: Any, expected: np.ndarray) -> float:
    """The largest difference, relative to the length of a vector."""
    assert found.shape == expected.shape
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    return float(np.abs((np.asarray(found) - expected) / lengths).max())


def assert_same_vectors(made: Finetuned, encoder: Path) -> float:
    """Both libraries have our vectors, transformers by the code on the card."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(encoder), device="cpu")
    queries, passages = made.vectors("query"), made.vectors("passage")
    worst = [
        worst_of(model.encode_query(TEXTS), queries),
        worst_of(model.encode_document(TEXTS), passages),
    ]
    blocks = re.findall(r"```python\n(.*?)```", (encoder / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        code = block.replace("path/to/this/folder", str(encoder))
        code = code.replace('["a question"]', "TEXTS").replace('["a passage"]', "TEXTS")
        (made.folder / "code.py").write_text(code)
        names = runpy.run_path(str(made.folder / "code.py"), {"TEXTS": TEXTS})
        worst += [worst_of(names["queries"], queries), worst_of(names["passages"], passages)]
    assert max(worst) < 1e-5
    return max(worst)


@needs_interop
def test_both_libraries_have_our_vectors(made, exported):
    assert_same_vectors(made, exported)


@needs_interop
def test_truncated_vectors_are_those_that_are_measured(made, exported):
    """As the card of a Matryoshka model says to make them."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(exported), device="cpu", truncate_dim=6)
    unit = made.contract.normalise
    for encode, side in ((model.encode_query, "query"), (model.encode_document, "passage")):
        expected = evaluate_short_vectors.cut(made.vectors(side), 6, made.contract)
        assert worst_of(encode(TEXTS, normalize_embeddings=unit), expected) < 1e-5


@needs_interop
def test_both_libraries_have_our_vectors_of_a_real_encoder(tmp_path):
    made = finetuned(tmp_path, test_published_encoder.real())
    made.export(tmp_path / "out", licence=None, base_model=None)
    print(f"largest relative difference {assert_same_vectors(made, tmp_path / 'out/encoder'):.2g}")
    assert front_matter.read(tmp_path / "out/encoder/README.md")["license"] == "apache-2.0"


def test_what_the_published_folder_says_besides_is_kept(case, made, exported):
    published = made.published
    for name in ("vocab.txt", "LICENSE", "special_tokens_map.json"):
        assert (exported / name).is_file() == (published / name).is_file(), name
    theirs, ours = (json.loads((one / "config.json").read_text()) for one in (published, exported))
    assert ours == theirs
    settings = json.loads((exported / "config_sentence_transformers.json").read_text())
    said = CASES[case].get("settings", {})
    assert settings["similarity_fn_name"] == said.get("similarity_fn_name", "cosine")
    expected = {"query": "", "document": said.get("prompts", {}).get("passage", "")}
    assert settings["prompts"] == expected | said.get("prompts", {})
    assert settings["default_prompt_name"] == said.get("default_prompt_name")
    assert settings.get("mine") == said.get("mine")
    lengths = json.loads((exported / "sentence_bert_config.json").read_text())
    assert lengths["max_seq_length"] == folders.MAX_LENGTH and lengths["do_lower_case"] is False
    kinds = [one["type"] for one in json.loads((exported / "modules.json").read_text())]
    assert kinds == [one["type"] for one in json.loads((published / "modules.json").read_text())]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Finetuned:
    """A folder with all that a published one may have besides."""
    folder = tmp_path_factory.mktemp("plain")
    published = folders.published(folder / "made")
    config = json.loads((published / "config.json").read_text())
    more = {"_name_or_path": "a/start", "dtype": "float16", "auto_map": {"AutoModel": "x.Y"}}
    folders.write(published / "config.json", config | more)
    folders.write(published / "special_tokens_map.json", {"pad_token": "[PAD]"})
    folders.write(
        published / "sentence_bert_config.json",
        {"max_seq_length": folders.MAX_LENGTH, "do_lower_case": True},
    )
    settings = json.loads((published / "tokenizer_config.json").read_text())
    more = {"tokenizer_class": "BertTokenizer", "model_max_length": 512, "truncation_side": "left"}
    folders.write(published / "tokenizer_config.json", settings | more | {"mine": 1})
    (published / "LICENSE").write_text("the terms")
    (published / "model.onnx").write_text("weights of before")
    return finetuned(folder, published)


def test_files_and_fields_that_an_export_alone_would_lose(plain, tmp_path):
    plain.export(tmp_path)
    encoder = tmp_path / "encoder"
    assert (encoder / "LICENSE").read_text() == "the terms"
    assert json.loads((encoder / "special_tokens_map.json").read_text()) == {"pad_token": "[PAD]"}
    assert not (encoder / "model.onnx").exists()
    config = json.loads((encoder / "config.json").read_text())
    assert config["_name_or_path"] == "a/start" and config["torch_dtype"] == "float32"
    assert not {"dtype", "auto_map"} & config.keys()
    settings = json.loads((encoder / "tokenizer_config.json").read_text())
    assert settings["mine"] == 1 and settings["tokenizer_class"] == "BertTokenizer"
    assert settings["model_max_length"] == folders.MAX_LENGTH
    assert settings["truncation_side"] == "right" and settings["split_special_tokens"] is True
    lengths = json.loads((encoder / "sentence_bert_config.json").read_text())
    assert lengths["do_lower_case"] is True


def test_a_killed_export_starts_again(plain, tmp_path):
    plain.export(tmp_path)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("encoder/*.*"))}
    (tmp_path / "encoder/model.safetensors").write_bytes(b"cut")
    (tmp_path / "encoder/README.md").unlink()
    plain.export(tmp_path)
    assert before == {path: path.read_bytes() for path in sorted(tmp_path.rglob("encoder/*.*"))}


def test_settings_that_give_other_ids_are_left_out_with_a_note(plain, tmp_path, capsys):
    published = tmp_path / "published"
    shutil.copytree(plain.published, published)
    settings = json.loads((published / "tokenizer_config.json").read_text())
    one = {"special": False, "lstrip": False, "rstrip": False, "normalized": False}

    added = {"200": one | {"content": "A plain sentence", "single_word": False}}
    folders.write(published / "tokenizer_config.json", settings | {"added_tokens_decoder": added})
    plain.export(tmp_path / "out", published=str(published))
    assert "tokenizer_config.json: expected the ids" in capsys.readouterr().out
    kept = json.loads((tmp_path / "out/encoder/tokenizer_config.json").read_text())
    assert "added_tokens_decoder" not in kept and kept["split_special_tokens"] is True


def test_worse_is_not_exported_unless_forced(plain, tmp_path, capsys):
    worse = verdicts.write(tmp_path / "worse.json", **verdicts.WORSE)
    assert plain.export(tmp_path / "out", verdict=worse) == {"card": NOTICE}
    assert [path.name for path in (tmp_path / "out").iterdir()] == [NOTICE]
    notice = (tmp_path / "out" / NOTICE).read_text()
    assert verdicts.WORSE["line"] in notice and "`FORCE_EXPORT=True`" in notice
    assert "-0.040 [-0.060, -0.020], on 240 test queries" in notice
    assert verdicts.WORSE["line"] in capsys.readouterr().out
    outputs = plain.export(tmp_path / "forced", verdict=worse, force=True)
    assert outputs["encoder"] == "encoder" and not (tmp_path / "forced" / NOTICE).exists()
    card = (tmp_path / "forced" / outputs["card"]).read_text()
    first = card.split("---\n", 2)[2].strip().splitlines()[0]
    assert first.startswith("**`finetuned` is worse than `untouched`, and was exported")


@pytest.mark.parametrize("word", ["better", "no difference", "no verdict"])
def test_other_verdicts_are_exported(word, plain, tmp_path):
    path = verdicts.write(tmp_path / "verdict.json", verdict=word, line=f"VERDICT {word}")
    assert "encoder" in plain.export(tmp_path / "out", verdict=path)


def test_a_model_of_another_kind_is_refused(plain, tmp_path):
    with pytest.raises(ExportError, match="expected a fine-tuned reranker, found similarity"):
        plain.export(tmp_path / "out", kind="reranker")
    with pytest.raises(ValueError, match="expected one of .*'reranker'.*, found 'encoder'"):
        finetuned_folder.check(str(plain.published), "mit", "encoder")
    config = json.loads((plain.published / "config.json").read_text())
    folders.write(tmp_path / "other/config.json", config | {"model_type": "realm"})
    with pytest.raises(ValueError, match="of which transformers has re-rankers, found 'realm'"):
        finetuned_folder.check(str(tmp_path / "other"), "mit", "reranker")


def test_a_tokenizer_that_joins_pairs_otherwise_is_refused_before_the_training(plain, tmp_path):
    other = shutil.copytree(plain.published, tmp_path / "other")
    finetuned_folder.check(str(other), "mit", "reranker")
    file = other / "tokenizer.json"
    backend = tokenizers.Tokenizer.from_file(str(file))
    backend.post_processor = tokenizers.processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.save(str(file))
    with pytest.raises(ExportError, match=r"other/tokenizer.json: a re-ranker's pairs are \[CLS\]"):
        finetuned_folder.check(str(other), "mit", "reranker")
    finetuned_folder.check(str(other), "mit", "retriever")


def test_without_a_licence_nothing_is_written(plain, tmp_path):
    with pytest.raises(LicenceError, match=r"README.md, which could name .* is not there"):
        plain.export(tmp_path, licence=None)
    assert not (tmp_path / "encoder").exists()
    with pytest.raises(VerdictError, match="found verdict 'good'"):
        plain.export(tmp_path / "out", verdict=verdicts.write(tmp_path / "a.json", verdict="good"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/models--intfloat--e5-small-v2/snapshots/ffb93f3", "intfloat/e5-small-v2"),
        ("/data/models--gte-small/snapshots/ffb93f3", "gte-small"),
        ("relative/my-encoder/", "my-encoder"),
    ],
)
def test_the_name_of_a_published_encoder_is_no_path(path, name):
    assert finetuned_folder.base_name(path) == name
