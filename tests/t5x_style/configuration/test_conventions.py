"""gin_configs/conventions.gin: what it fills, what wins over it, and what messages name."""

import pytest

from t5x_style.configuration import conventions, gin_checks
from t5x_style.configuration.gin_reader import GinError, Macro, Reference

BERT = "models.networks.bert.BertConfig"


@pytest.fixture
def read(tmp_path):
    """Reads a text as a stage reads its gin file."""

    def read(text):
        (tmp_path / "a.gin").write_text(text)
        return gin_checks.parse_flags([f"--gin_file={tmp_path}/a.gin"]).read()

    return read


def test_what_is_mentioned_gets_its_conventions_and_so_do_these(read):
    config = read("\nENCODER = @bert.BertConfig()\n")
    size = config.bindings["", BERT, "vocab_size"]
    assert isinstance(size.value, Reference) and size.value.target.endswith(".vocabulary_size")
    assert size.where.endswith("a.gin:2") and size.name == "bert.BertConfig.vocab_size"
    folder = config.bindings["", size.value.target, "tokenizer_folder"]
    assert folder.value == Macro("TOKENIZER") and folder.where == size.where


def test_a_binding_wins(read):
    config = read("ENCODER = @bert.BertConfig()\nbert.BertConfig.vocab_size = 7\n")
    assert [binding.value for binding in config.bindings.values()] == [7]


def test_a_binding_wins_inside_its_scope_alone(read):
    small = "SMALL = @small/bert.BertConfig()\nsmall/bert.BertConfig.vocab_size = 7\n"
    assert len(read(small).bindings) == 1
    inner = read(small + "INNER = @small/inner/bert.BertConfig()\n")
    assert len(inner.bindings) == 1
    config = read(small + "LARGE = @bert.BertConfig()\n")
    assert config.bindings["small", BERT, "vocab_size"].value == 7
    assert isinstance(config.bindings["", BERT, "vocab_size"].value, Reference)


def test_a_default_of_the_code_wins(read):
    config = read("SOURCE = @wiki_dump.WikiExtracted()\nwiki_dump.WikiExtracted.path = 'dump'\n")
    assert "max_line_bytes" in conventions.conventions()
    assert {parameter for _, _, parameter in config.bindings} == {"path"}


def test_a_macro_without_a_value_is_said_where_its_class_is_mentioned(read):
    config = read("stage.run.job = @prepare.prepare\nprepare.prepare.kind = 'text'\n")
    with pytest.raises(GinError, match=r"a\.gin:1: %TOKENIZER has no value: pass --gin\.TOKENIZER"):
        gin_checks.check_names(config, ["t5x_style.stage.run"])


@pytest.mark.parametrize("text", ["SEED = 1\n", "bert.BertConfig.vocab_size = 7\n"])
def test_conventions_bind_parameters_of_any_class_and_nothing_else(tmp_path, monkeypatch, text):
    (tmp_path / "conventions.gin").write_text(text)
    monkeypatch.setattr(conventions, "FILE", str(tmp_path / "conventions.gin"))
    conventions.conventions.cache_clear()
    try:
        with pytest.raises(
            GinError, match=r"conventions\.gin:1: expected `any\.PARAMETER = VALUE`"
        ):
            conventions.conventions()
    finally:
        conventions.conventions.cache_clear()
