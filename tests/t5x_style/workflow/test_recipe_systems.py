"""Systems that a recipe compares: the inputs of the stage, and what is refused, with its place."""

import pytest

from t5x_style.configuration import gin_checks, parameters
from t5x_style.configuration.gin_reader import RUN, GinError
from t5x_style.workflow import recipe_planning, recipe_problems, recipe_reader, stages
from t5x_style.workflow.recipe_stage import RecipeError

START = """
include 'gin_configs/recipes/kinds.gin'

RUN_DIR = 'runs'
CORPUS = 'corpus'
MODEL = 'gin_configs/models/tiny.gin'
BI_ENCODER = 'gin_configs/objectives/bi_encoder.gin'
STEPS = 4
WARMUP_STEPS = 1
LEARNING_RATE = 1e-3
QUERIES = 4
PASSAGES = 8
GROUP_SIZE = 2
TEMPERATURE = 0.05
QUERY_LENGTH = 32
PASSAGE_LENGTH = 128
DEVELOPMENT_SAMPLE = 10
SEED = 1

tokenizer/recipe.Stage.kind = 'tokenizer'
passages/recipe.Stage.kind = 'passages'
queries/recipe.Stage.kind = 'queries'
negatives/recipe.Stage.kind = 'bm25_negatives'
first/recipe.Stage.kind = 'fresh_retriever'
second/recipe.Stage.kind = 'fresh_retriever'

evaluation/recipe.Stage:
  kind = 'comparison'
"""
TWO = (
    "  systems = {'first': %first.model, "
    "'second': {'CHECKPOINT': %second.model, 'POOLING': 'mean'}}\n"
)


@pytest.fixture(name="load")
def in_a_folder(tmp_path, monkeypatch):
    """Reads START and what follows: the recipe, its flags, and the stage of a name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()

    def load(text, *argv, stage="evaluation"):
        (tmp_path / "recipe.gin").write_text(START.lstrip() + text)
        flags = gin_checks.parse_flags(["--gin_file=recipe.gin", *argv])
        recipe = recipe_reader.load(flags)
        return recipe, flags, next(one for one in recipe.stages if one.name == stage)

    return load


def configuration(recipe, flags, stage):
    pending = recipe_planning.all_pending(recipe)
    config = recipe_planning.stage_flags(recipe, stage, flags, pending).read()
    gin_checks.check_names(config, (RUN, stage.job))
    inputs = {name: name for name in stages.inputs_of(config)}
    return config, parameters.of_job(config, stage.job, inputs).semantic


def problems(load, text, *argv):
    recipe, flags, _ = load(text, *argv)
    found = recipe_problems.Problems(flags.read_all())
    recipe_planning.look_up(recipe, flags, found)
    with pytest.raises(RecipeError) as error:
        found.refuse()
    return str(error.value)


def line_of(text):
    return START.lstrip().count("\n") + text.count("\n")


def test_a_stage_names_systems_and_nothing_else(load):
    recipe, flags, stage = load(TWO)
    named = {name: str(one) for name, one in stage.inputs.items() if name in ("FIRST", "SECOND")}
    assert named == {"FIRST": "%first.model", "SECOND": "%second.model"}
    assert [one.stage for one in stage.needs()].count("first") == 1
    _, found = configuration(recipe, flags, stage)
    assert found["systems"] == "list of 3"  # BM25 is of the kind
    assert [found[f"systems[{n}].name"] for n in range(3)] == ["'bm25'", "'first'", "'second'"]
    assert found["systems[2].model.checkpoint"] == "input SECOND"
    pooling = "model.objective.embedding_config.pooling"
    assert [found[f"systems[{n}].{pooling}"] for n in (1, 2)] == ["'cls'", "'mean'"]


def test_a_list_of_dictionaries_is_joined_in_systems_and_in_inputs(load):
    text = "  systems = [%ONE, {'second': %second.model}]\nONE = {'first': %first.model}\n"
    report = (
        "report/recipe.Stage:\n  kind = 'report'\n  bindings = {'CLAIM': 'first'}\n"
        "  inputs = {'TRAININGS': [%ONE, {'second': %second.model}]}\n"
    )
    recipe, flags, stage = load(text + report)
    assert configuration(recipe, flags, stage)[1]["systems"] == "list of 3"
    report = next(one for one in recipe.stages if one.name == "report")
    assert list(report.inputs["TRAININGS"]) == ["first", "second"]


def test_the_recipes_macro_is_for_a_stage_that_names_none(load):
    text = (
        "  systems = {}\n"
        "again/recipe.Stage.gin_files = [%EXACT, %MODEL, %BI_ENCODER]\n"
        "EXACT = 'gin_configs/runs/evaluation/exact_search.gin'\n"
        "SYSTEMS = {'first': %first.model}\n"
        "BASELINE = 'first'\n"
    )
    recipe, flags, stage = load(text, stage="again")
    assert configuration(recipe, flags, stage)[1]["systems"] == "list of 1"
    assert str(stage.inputs["FIRST"]) == "%first.model"


def test_a_flag_takes_the_place_of_the_systems(load):
    recipe, flags, stage = load(TWO, "--gin.evaluation/SYSTEMS={'bm25': 'bm25', 'mine': 'a/b'}")
    assert not {"FIRST", "SECOND"} & stage.inputs.keys()
    config, found = configuration(recipe, flags, stage)
    assert found["systems[1].model.checkpoint"] == "input MINE"
    assert config.macros["MINE"].value == "a/b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            TWO.replace("POOLING", "PULING"),
            "system 'second': nothing of it refers to %PULING; did you mean POOLING?",
        ),
        (TWO.replace("%first.model", "{'POOLING': 'cls'}"), "system 'first': it lacks CHECKPOINT"),
        (
            TWO + "  bindings = {'COMPARED': [('first', 'secnd')]}\n",
            "evaluate.evaluate.compared: no system 'secnd'; did you mean second?",
        ),
        (
            TWO + "  bindings = {'BASELINE': 'frst'}\n",
            "evaluate.evaluate.baseline: no system 'frst'; did you mean first?",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place_in_the_recipe(load, text, message):
    said = problems(load, text)
    assert said.startswith("Stage evaluation: ") and message in said
    line = line_of(text)
    assert f"recipe.gin:{line}: " in said, said


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "  systems = {'corpus': %first.model}\n",
            RecipeError,
            "%first.model would be its input CORPUS, a macro that it has already",
        ),
        (
            "  systems = {'a-b': %first.model, 'a_b': %second.model}\n",
            RecipeError,
            "%first.model and %second.model would both be input A_B",
        ),
        (
            "  systems = {'first': {'CHECKPOINT': [%first.model]}}\n",
            RecipeError,
            "'CHECKPOINT' of 'first' must be one %stage.output or none",
        ),
        (
            "  systems = {'first': %first.model, 'first': %second.model}\n",
            GinError,
            "'first' is in this dictionary twice",
        ),
        (
            "  systems = {'first': %frst.model}\n",
            RecipeError,
            "no stage 'frst'; did you mean first",
        ),
    ],
)
def test_systems_that_cannot_be_read_are_refused(load, text, error, message):
    with pytest.raises(error) as found:
        load(text)
    assert message in str(found.value)


def test_old_names_of_macros_for_gin_files_still_work(load):
    text = TWO + (
        "BAG = 'gin_configs/models/bag.gin'\nbag/recipe.Stage:\n  kind = 'fresh_retriever'\n"
        "  gin_files = [%BAG]\n  files = {'RETROMAE': 'x.gin'}\n"
        "mae/recipe.Stage.kind = 'retromae'\nRETROMAE = 'gin_configs/objectives/dupmae.gin'\n"
        "ROWS = 2\nROW_LENGTH = 64\nSEGMENTS = 2\n"
    )
    _, _, bag = load(text, stage="bag")
    assert bag.gin_files[-1] == "gin_configs/models/bag.gin"
    _, _, mae = load(text, stage="mae")
    assert mae.gin_files[-1] == "gin_configs/objectives/dupmae.gin"
