"""The check of a whole recipe: everything that is wrong, said before its first stage runs."""

import dataclasses
import os

import pytest

from launch import recipe
from t5x_style.configuration import gin_checks
from t5x_style.workflow import recipe_checks, recipe_planning, recipe_problems, recipe_reader
from t5x_style.workflow.recipe_problems import Problems, RecipeError
from tests.kits.recipe_kit import RECIPE, make_house  # noqa: F401  a fixture


def refusal(flags):
    """What the dry run says."""
    with pytest.raises(RecipeError) as error:
        recipe.run(dataclasses.replace(flags, dry_run=True))
    return str(error.value)


def shipped(name, *overrides):
    """What a recipe of ours says when it is given these."""
    words = [f"--gin_file=gin_configs/recipes/{name}.gin", *(f"--gin.{one}" for one in overrides)]
    return refusal(gin_checks.parse_flags(words))


def test_a_wrong_type_in_a_late_stage_is_said_before_the_first(house):
    text = RECIPE.replace("'gin_toys.Size.width': 5", "'gin_toys.Size.width': 'x'")
    for dry_run in (True, False):
        flags = dataclasses.replace(house(text), dry_run=dry_run)
        with pytest.raises(RecipeError) as error:
            recipe.run(flags)
        assert str(error.value) == (
            "Stage third: recipe.gin:22: gin_toys.Size.width must be int, found 'x' (a str).\n"
            "Nothing was run."
        )
    assert not os.path.exists("runs") and not os.path.exists(".store")


def test_all_problems_of_all_stages_come_together(house):
    text = RECIPE.replace("'gin_toys.Size.width': 5", "'gin_toys.Size.width': 'x'")
    text = text.replace("{'SOURCE': %first.text}", "{'SOURCE': 'nowhere', 'GIVEN': 'gone'}")
    with open("count.gin", "a") as file:
        file.write("gin_toys.count.folder = %GIVEN\n")
    expected = (
        "4 problems; nothing was run.",
        "1. Stage second: Input SOURCE does not exist: nowhere. Run the stage that writes it, or "
        "set --gin.second/SOURCE=PATH.",
        "2. Stage second: Input GIVEN does not exist: gone. Run the stage that writes it, or "
        "set --gin.second/GIVEN=PATH.",
        "3. Stage first: make.gin:6: gin_toys.Size.width must be int, found 'wide' (a str); "
        "%WIDTH is set at command line --gin.WIDTH",
        "4. Stage third: recipe.gin:22: gin_toys.Size.width must be int, found 'x' (a str).",
    )
    assert refusal(house(text, WIDTH="'wide'")) == "\n".join(expected)
    text = text.replace("{'STOP_AT': %STOP_AT}", "{'STOP_AT': %STOP_AT, 'STPES': 3}")
    found = refusal(house(text, WIDTH="'wide'"))
    assert "second: recipe.gin:17: macro STPES is set, but nothing refers to %STPES" in found
    assert "Input" not in found and "third: recipe.gin:22" in found


def test_a_recipe_that_is_done_is_not_checked_again(house, monkeypatch):
    def never(commands):
        raise AssertionError("no stage is left to check")

    monkeypatch.setattr(recipe_checks, "problems_of", never)
    loaded = recipe_reader.load(house())

    class Done:
        status, version = "done", object()

    monkeypatch.setattr(recipe_planning, "plan", lambda *a: None)
    monkeypatch.setattr(
        recipe_planning, "look_up", lambda *a: (recipe_planning.Known(), {"first": Done})
    )
    assert recipe_checks.survey(loaded, house()) == {"first": Done}


def test_a_check_that_breaks_is_said(house, monkeypatch):
    monkeypatch.setattr(recipe_checks, "PROGRAM", "tests.no_such_program")
    with pytest.raises(RecipeError, match="tests.no_such_program, which checks the stages, failed"):
        recipe_checks.survey(recipe_reader.load(house()), house())


def test_values_of_a_shipped_recipe_are_tried_where_they_are_used():
    found = shipped(
        "quickstart",
        "LEARNING_RATE='3e-4'",
        "WEIGHTS={'crops': 'much'}",
        "WIDTH=0",
        "TEMPERATURE=-1",
    )
    assert (
        "optimizers.AdamW.learning_rate must be float, found '3e-4' (a str); %LEARNING_RATE is "
        in (found)
    )
    assert "command line --gin.LEARNING_RATE" in found
    assert "PairMixture.weights must be Mapping[str, float], found {'crops': 'much'}" in found
    assert (
        "BagConfig.hidden: expected at least 1, found 0 (hidden = 0 at command line --gin." in found
    )
    assert "EmbeddingConfig.temperature must be above 0, found -1" in found
    assert "Stages retriever, bag_of_embeddings" in found


def test_a_budget_that_leaves_nothing_is_said(house):
    assert recipe_checks.budget_note(recipe_reader.load(house(BUDGET="0.3"))) == ""
    assert recipe_checks.budget_note(recipe_reader.load(house(BUDGET="0.01"))) == (
        "note: the budget 0.01 leaves 1 of STEPS = 4 of second"
    )


def test_one_problem_has_one_line(house):
    problems = Problems(house().read())
    problems.add("first", ["wrong"])
    problems.add("second", ["wrong"])
    problems.add("second", ["wrong"])
    with pytest.raises(RecipeError, match=r"^Stages first, second: wrong\nNothing was run\.$"):
        problems.refuse()


def test_places_and_flags_are_those_of_the_recipe(house):
    config = house(WIDTH="4").read()
    said = "command line --gin.WIDTH: no; set --gin.WIDTH=VALUE, --gin.STEPS=VALUE"
    assert recipe_problems.in_recipe(said, "first", config) == (
        "command line --gin.WIDTH: no; set --gin.WIDTH=VALUE, --gin.first/STEPS=VALUE"
    )
    by_hand = house(**{"second/STEPS": "4"}).read()
    said = "command line --gin.STEPS: no"
    assert recipe_problems.in_recipe(said, "second", by_hand) == (
        "command line --gin.second/STEPS: no"
    )
    said = "command line --gin.STEPS: no; set --gin.STEPS=VALUE"
    assert recipe_problems.in_recipe(said, "second", config) == (
        "recipe.gin:18: no; set --gin.second/STEPS=VALUE"
    )
