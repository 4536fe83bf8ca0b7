"""Files of gin_configs/sources: each is enough for training a tokenizer and for every layout."""

from pathlib import Path

import pytest

from t5x_style.configuration import gin_checks, gin_macros, gin_reader
from t5x_style.workflow import stages

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = sorted(path.stem for path in (REPOSITORY / "gin_configs/sources").glob("*.gin"))
MACROS = {"CORPUS": "corpus", "DATASET": "name", "TEXT_FIELD": "text", "TOKENIZER": "tokenizer"}
LAYOUTS = ("prepare", "prepare_blocks", "prepare_pairs", "prepare_parts")


def check(*files: str, **macros: str) -> gin_checks.Config:
    """Checks a configuration whole, with those of MACROS that it asks for, as a stage does."""
    argv = [f"--gin_file=gin_configs/{file}.gin" for file in files]
    text = gin_checks.parse_flags(argv).read()
    asked = gin_macros.in_use(text) - text.macros.keys()
    values = {name: value for name, value in (MACROS | macros).items() if name in asked}
    argv += [f"--gin.{name}={value}" for name, value in values.items()]
    config = gin_checks.parse_flags([*argv, "--gin.MODEL_DIR=out"]).read()
    gin_checks.check_names(config, (gin_reader.RUN, stages.job_of(config)))
    gin_checks.check_code(config)
    return config


def source_of(config: gin_checks.Config, job: str) -> str:
    value = config.expand(config.bindings["", job, "source"].value, "")
    return value.target


@pytest.mark.parametrize("name", SOURCES)
def test_a_tokenizer_is_trained_on_it(name: str) -> None:
    config = check("runs/tokenizers/wordpiece", f"sources/{name}")
    job = "input_pipelines.tokenizers.tokenization.train_tokenizer"
    assert source_of(config, job).startswith("input_pipelines.sources.")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SOURCES)
def test_it_is_prepared_with_any_layout(name: str, layout: str) -> None:
    config = check(f"runs/{layout}", f"sources/{name}", KIND="text", LENGTH="32")
    job = "input_pipelines.store.prepare.prepare"
    assert source_of(config, job).startswith("input_pipelines.sources.")


@pytest.mark.parametrize("name", SOURCES)
def test_a_store_of_texts_has_its_kind(name: str) -> None:
    file = f"data/texts/{name}"
    data = REPOSITORY / f"gin_configs/{file}.gin"
    if data.is_file():
        assert f"include 'sources/{name}.gin'" in data.read_text()
    config = check("runs/stores/texts", file if data.is_file() else f"sources/{name}", LENGTH="32")
    expected = {"beir_queries": "query", "lines": "text", "opus": "text"}.get(name, "passage")
    assert config.expand(config.macros["KIND"].value, "") == expected


def test_old_names_of_sides_keep_their_meaning() -> None:
    for side in ("first", "second"):
        config = check("runs/stores/texts", f"data/sts_{side}", LENGTH="32", STS_FILE="sts.tsv")
        target = "input_pipelines.sources.sts.SimilarSentences"
        assert config.expand(config.bindings["", target, "side"].value, "") == side


def test_the_file_for_beir_folders_is_the_general_one() -> None:
    old = check("runs/tokenizers/corpus").bindings
    new = check("runs/tokenizers/wordpiece", "sources/beir_passages").bindings
    assert {key: one.value for key, one in old.items()} == {
        key: one.value for key, one in new.items()
    }
