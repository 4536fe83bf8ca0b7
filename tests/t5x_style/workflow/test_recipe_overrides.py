"""Flags of a recipe that are for its stages: they count as if the recipe had bound them."""

import dataclasses

import pytest

from t5x_style.configuration import gin_checks
from t5x_style.configuration.gin_reader import GinError
from t5x_style.workflow import recipe_planning, recipe_reader
from t5x_style.workflow.recipe_stage import RecipeError
from tests.kits.recipe_kit import COUNT, RECIPE, make_house  # noqa: F401  a fixture


@pytest.fixture(autouse=True)
def report_every(house):
    """A macro that count.gin sets and uses, and the recipe does not mention."""
    with open("count.gin", "w") as file:
        file.write(COUNT + "  report_every = %REPORT_EVERY\nREPORT_EVERY = 1\n")


def plans(flags):
    """Stage -> its fingerprint and the settings that do not count."""
    loaded = recipe_reader.load(flags)
    pending = recipe_planning.all_pending(loaded)
    found = {
        item.name: recipe_planning.plan(loaded, item, flags, pending) for item in loaded.stages
    }
    return {name: (one.fingerprint, one.values.operational) for name, one in found.items()}


def given(flags, **overrides):
    pairs = tuple((name.replace("__", "."), value) for name, value in overrides.items())
    return dataclasses.replace(flags, overrides=pairs)


def test_a_parameter_reaches_every_stage_that_leads_to_it(house):
    text = RECIPE.replace("'WIDTH': %WIDTH", "'WIDTH': %WIDTH, 'gin_toys.Size.rate': 0.5")
    text = text.replace(
        "'gin_toys.Size.width': 5", "'gin_toys.Size.width': 5, 'gin_toys.Size.rate': 0.5"
    )
    by_recipe = plans(house(text))
    assert plans(given(house(), gin_toys__Size__rate="0.5")) == by_recipe != plans(house())
    # what the recipe itself says of it gives way
    assert plans(given(house(text), gin_toys__Size__rate="0.25"))["first"] != by_recipe["first"]


def test_a_macro_of_the_stages_files_can_be_set(house):
    without, found = plans(house()), plans(given(house(), REPORT_EVERY="9"))
    assert found["second"][1] == {"report_every": "9"}
    assert {name: one for name, (one, _) in found.items()} == {
        name: one for name, (one, _) in without.items()
    }
    bound = house(RECIPE.replace("'STOP_AT': %STOP_AT", "'STOP_AT': %STOP_AT, 'REPORT_EVERY': 9"))
    assert plans(bound) == found
    one = dataclasses.replace(bound, overrides=(("second/REPORT_EVERY", "3"),))
    assert plans(one)["second"][1] == {"report_every": "3"}
    with pytest.raises(GinError, match="second set it; for one of them --gin.second/REPORT_EVERY"):
        plans(given(bound, REPORT_EVERY="3"))


def test_a_macro_of_the_recipe_goes_with_the_binding_that_used_it(house):
    flags = given(house(), gin_toys__Size__width="4")
    assert recipe_reader.load(flags).stages[0].bindings == {"gin_toys.Size.width": 4}
    assert plans(flags)["first"] == plans(house(WIDTH="4"))["first"]


def test_a_stage_can_be_named(house):
    pairs = (("first/gin_toys.Size.rate", "0.5"), ("second/STEPS", "8"), ("BUDGET", "0.5"))
    flags = dataclasses.replace(house(), overrides=pairs)
    found, without = plans(flags), plans(house())
    assert found["first"] != without["first"]
    assert found["third"] == without["third"]
    assert found["second"] == without["second"]  # 8 times the budget, as 4 without it
    loaded = recipe_reader.load(flags)
    assert loaded.stages[1].scaled == {"STEPS": 8}


def test_a_macro_of_the_recipe_for_all_stages_can_be_set_for_one(house):
    text = RECIPE.replace("WIDTH = 3\n", "").replace("  bindings = {'WIDTH': %WIDTH}\n", "")
    text = text.replace(
        "recipe.run.publish", "recipe.run.macros = {'WIDTH': 3}\nrecipe.run.publish"
    )
    flags = dataclasses.replace(house(text), overrides=(("first/WIDTH", "4"),))
    assert recipe_reader.load(flags).stages[0].bindings == {"WIDTH": 4}
    assert plans(flags)["first"] == plans(house(WIDTH="4"))["first"]


def test_a_recipe_file_may_say_what_a_flag_may(house):
    text = RECIPE + "NARROW = 2\nfirst/WIDTH = %NARROW\nsecond/REPORT_EVERY = 9\n"
    text += "gin_toys.Size.rate = 0.25\n"
    by_flags = {"first/WIDTH": "2", "second/REPORT_EVERY": "9", "gin_toys.Size.rate": "0.25"}
    flags = house(RECIPE)
    assert plans(house(text)) == plans(dataclasses.replace(flags, overrides=(*by_flags.items(),)))
    # the command line wins
    over = dataclasses.replace(house(text), overrides=(("first/WIDTH", "7"),))
    assert (
        plans(over)["first"]
        == plans(house(text.replace("%NARROW", "7").replace("NARROW = 2\n", "")))["first"]
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("first/WIDHT = 2", "recipe.gin:.*: macro WIDHT is set, but nothing refers.*mean WIDTH"),
        ("frist/WIDTH = 2", "recipe.gin:.*: no stage 'frist'; did you mean first"),
        ("gin_toys.Size.rat = 2", "recipe.gin:.*: gin_toys.Size has no parameter 'rat'"),
    ],
)
def test_a_line_of_a_recipe_that_reaches_nothing_is_refused_with_its_place(house, line, message):
    with pytest.raises(GinError, match=message):
        plans(house(f"{RECIPE}{line}\n"))


def test_a_recipe_may_end_with_a_stage(house):
    flags = house(RECIPE)
    whole = recipe_reader.load(flags)
    part = recipe_reader.load(dataclasses.replace(flags, until="second"))
    assert [item.name for item in part.stages] == ["first", "second"]
    assert part.stages == whole.stages[:2] and part.publish == whole.publish
    part = recipe_reader.load(dataclasses.replace(flags, until="third"))
    assert [item.name for item in part.stages] == ["third"] and not part.publish
    with pytest.raises(RecipeError, match="--until=thrid: no such stage; did you mean third"):
        recipe_reader.load(dataclasses.replace(flags, until="thrid"))


def test_an_input_stays_an_input(house, tmp_path):
    (tmp_path / "given").write_text("text")
    flags = dataclasses.replace(house(), overrides=(("second/SOURCE", f"{tmp_path}/given"),))
    assert recipe_reader.load(flags).stages[1].inputs == {"SOURCE": f"{tmp_path}/given"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("REPROT_EVERY", "1", "nothing refers to %REPROT_EVERY; did you mean REPORT_EVERY"),
        ("WIDHT", "1", "nothing refers to %WIDHT; did you mean WIDTH"),
        ("frist/WIDTH", "1", "no stage 'frist'; did you mean first"),
        (
            "gin_toys.Size.raet",
            "1",
            "gin_toys.Size.raet: gin_toys.Size has no parameter 'raet'; did you mean rate",
        ),
        ("gin_toy.Size.rate", "1", "no stage leads to it; did you mean gin_toys.Size.width"),
        ("second/gin_toys.Size.rate", "1", "gin_toys.Size.rate is set, but no stage leads to it"),
        ("MODEL_DIR", "x", "set --gin.RUN_DIR=PATH"),
        ("second/STEPS", "0.5", "STEPS, which the budget scales, must be int and 0 or more"),
        ("second/STEPS", "-1", "must be int and 0 or more, found -1"),
    ],
)
def test_a_flag_that_reaches_nothing_is_refused(house, name, value, message):
    with pytest.raises(GinError, match=message):
        recipe_reader.load(dataclasses.replace(house(), overrides=((name, value),)))


def test_all_such_flags_are_named():
    words = ["--gin_file=gin_configs/recipes/quickstart.gin", "--gin.prepar.prepare.workers=3"]
    flags = gin_checks.parse_flags([*words, "--gin.LOG_EVREY=7", "--gin.retreiver/LOG_EVERY=4"])
    with pytest.raises(GinError) as error:
        recipe_reader.load(flags)
    assert len(error.value.args) == 3
    assert "did you mean prepare.prepare.workers?" in str(error.value)


def test_advice_of_a_stage_works_in_its_recipe():
    words = ["--gin_file=gin_configs/recipes/quickstart.gin", "--gin.LOG_EVERY=7"]
    flags = gin_checks.parse_flags([*words, "--gin.prepare.prepare.max_bad_records=1"])
    loaded = recipe_reader.load(flags)
    pending = recipe_planning.all_pending(loaded)
    found = {
        item.name: dict(recipe_planning.stage_flags(loaded, item, flags, pending).overrides)
        for item in loaded.stages
    }
    taken = {name for name, own in found.items() if "prepare.prepare.max_bad_records" in own}
    assert taken == {"passages", "queries"}
    logs = {name for name, own in found.items() if own.get("LOG_EVERY") == "7"}
    assert logs == {"bag_of_embeddings", "retriever"}
