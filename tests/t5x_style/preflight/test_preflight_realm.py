"""REALM's step compiled for TPUs: the search, the reader and the refresh are one program."""

import re

import pytest
from gin import config as gin_config

from t5x_style.configuration import gin_checks
from t5x_style.preflight import configuration, flops, program
from t5x_style.workflow import recipe_planning, recipe_reader
from tests.gin_configs.test_gin_configs import REPOSITORY

pytestmark = pytest.mark.usefixtures("for_tpus")

FILES = (
    "runs/training/train",
    "models/tiny_joint",
    "objectives/realm",
    "objectives/mask_salient_span",
    "data/pretraining/sentences",
    "data/pretraining/planned_wikipedia",
)
VALUES = {
    "STORE": "/nowhere/store",
    "TOKENIZER": "/nowhere/tokenizer",
    "QUERIES": 16,
    "QUERY_LENGTH": 32,
    "PASSAGE_LENGTH": 32,
    "SEED": 1,
    "LEARNING_RATE": 1e-3,
    "STEPS": 10,
    "WARMUP_STEPS": 1,
    "corpus_table.Sizes.rows": 50_000,
    "corpus_table.Sizes.length": 32,
    "bert.BertConfig.layers": 1,
    "bert.BertConfig.unroll": 1,
    "bert.BertConfig.dtype": "bfloat16",
}


@pytest.fixture
def resolve(monkeypatch):
    """What gin files and values describe."""
    monkeypatch.chdir(REPOSITORY)

    def resolved(files, values):
        words = [f"--gin_file=gin_configs/{name}.gin" for name in files]
        words += [f"--gin.{name}={value}" for name, value in values.items()]
        stated = configuration.VocabularySize(200, "the test")
        return configuration.resolve(gin_checks.parse_flags(words), "v5e:2x2", stated)[0]

    yield resolved
    gin_config.clear_config()


@pytest.fixture
def training(resolve):
    return resolve(FILES, VALUES)


def test_what_comes_corrupted_is_not_corrupted_in_the_step(resolve):
    """The spans that are hidden are drawn by the host, so that the step draws less."""

    def random(training):
        (found,) = program.trace(training)
        return str(found.step.jaxpr).count("random_fold_in")

    in_step = resolve(FILES, VALUES)
    drawn = random(in_step)
    on_host = resolve(
        [name for name in FILES if name != "data/pretraining/planned_wikipedia"]
        + ["runs/training/retrieve_on_host"],
        {name: value for name, value in VALUES.items() if not name.startswith("corpus_table.")}
        | {"INDEX_VERSIONS": "/nowhere/versions"},
    )
    assert on_host.corrupted and not in_step.corrupted
    assert random(on_host) < drawn


SOURCES = """
from typing import Any

from input_pipelines.batches.ict_realm_batches import SalientSentences
from t5x_style.interfaces.batch_source import BatchSource, ModelDependentSource
from t5x_style.model_dependent_data.retrieval_batches import HostRetrieval

def host(source) -> HostRetrieval: ...
def plain(source) -> SalientSentences: ...
def any_plain(source) -> BatchSource: ...
def any_dependent(source) -> ModelDependentSource: ...
def union(source) -> BatchSource | ModelDependentSource: ...
def anything(source) -> Any: ...
def silent(source): ...
"""


@pytest.mark.parametrize(
    ("function", "corrupted", "known"),
    [
        ("host", True, True),
        ("plain", False, True),
        ("any_plain", False, True),
        ("any_dependent", False, False),
        ("union", False, False),
        ("anything", False, False),
        ("silent", False, False),
    ],
)
def test_a_function_that_makes_the_source_is_asked_what_it_returns(
    tmp_path, monkeypatch, function, corrupted, known
):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(REPOSITORY)
    (tmp_path / "toy_sources.py").write_text(SOURCES)
    (tmp_path / "a.gin").write_text(
        "from __gin__ import dynamic_registration\nimport toy_sources\n"
        "from t5x_style import train\n"
        f"train.train.pipeline = @toy_sources.{function}()\n"
        f"toy_sources.{function}.source = %PIPELINE\n"
    )
    words = [f"--gin_file=gin_configs/{name}.gin" for name in FILES]
    words += [f"--gin_file={tmp_path}/a.gin", "--gin_allow=toy_sources"]
    words += [f"--gin.{name}={value}" for name, value in VALUES.items()]
    stated = configuration.VocabularySize(200, "the test")
    training, assumed = configuration.resolve(gin_checks.parse_flags(words), "v5e:2x2", stated)
    gin_config.clear_config()
    assert training.corrupted == corrupted
    text = f"the step corrupts its batches: @toy_sources.{function}() does not annotate what it "
    expected = [] if known else [text + "returns with a class of sources"]
    assert assumed[1:] == expected and "vocabulary" in assumed[0]


HOST = ("host_compute", "outfeed", "infeed", "send(", "recv(", "xla_python", "callback")


def test_the_step_that_is_compiled_asks_nothing_of_the_host(training):
    (found,) = program.trace(training)
    text = found.step.lower().as_text()
    assert "ApproxTopK" in text and not [host for host in HOST if host in text]


@pytest.mark.slow
def test_one_program_without_the_host(training):
    (found,) = program.trace(training)
    compiled = found.step.lower().compile().as_text()
    assert "PartialReduce" in compiled and not [host for host in HOST if host in compiled]
    # No device holds the vectors or tokens of more than its share of the rows, 50,176 / 4.
    assert "[12544,128]" in compiled and "[12544,32]" in compiled
    assert not re.search(r"\[50176,\d+\]", compiled)


@pytest.mark.slow
def test_the_papers_size_traces_with_the_whole_corpus(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    flags = gin_checks.parse_flags(["--gin_file=gin_configs/recipes/realm_paper.gin"])
    recipe = recipe_reader.load(flags)
    assert [one.name for one in recipe.stages] == ["tokenizer", "blocks", "ict", "realm"]
    pending = recipe_planning.all_pending(recipe)
    own = recipe_planning.stage_flags(recipe, recipe.stages[-1], flags, pending)
    stated = configuration.VocabularySize(30_522, "the test")
    paper, _ = configuration.resolve(own, "v4:4x4x4", stated)
    (found,) = program.trace(paper)
    gin_config.clear_config()
    rows = {shape.shape[0] for shape in found.step.jaxpr.in_avals if len(shape.shape) == 2}
    assert -(-13_353_718 // 1024) * 1024 in rows, "the corpus is part of the state"
    total, refresh = (flops.count(one).flops for one in (found.step.jaxpr, found.after_update))
    # 13,354 blocks of 288 tokens embedded a step, against 512 times 8 embedded and read, both ways.
    assert 0.2 < refresh / total < 0.3


def test_what_the_refresh_costs_is_told_apart(training):
    total, after_update = program.products(training)
    assert 0 < after_update < total / 2
