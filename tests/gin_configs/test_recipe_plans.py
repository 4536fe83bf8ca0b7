"""Plans of the recipes that are shipped: recorded in tests/golden/plans.json."""

import pytest

from tests import recipe_plans


@pytest.mark.parametrize("name", recipe_plans.names())
def test_plans_are_as_recorded(name: str) -> None:
    found = recipe_plans.of_recipe(name)
    lines = list(recipe_plans.differences(found, recipe_plans.read().get(name, {})))
    shown = "\n".join(lines[:40])
    assert not lines, f"{shown}\n{len(lines)} differences; if meant: {recipe_plans.COMMAND}"


def test_every_recipe_has_a_plan() -> None:
    stems = {path.stem for path in recipe_plans.RECIPES.glob("*.gin")}
    assert set(recipe_plans.read()) == stems - recipe_plans.PARTS
    included = {
        part
        for part in recipe_plans.PARTS
        for path in recipe_plans.RECIPES.glob("*.gin")
        if f"include 'recipes/{part}.gin'" in path.read_text()
    }
    assert included == recipe_plans.PARTS


def test_a_changed_value_is_named() -> None:
    recorded = recipe_plans.read()["untouched"]
    name = next(name for name, plan in recorded.items() if plan["parameters"])
    path = next(iter(recorded[name]["parameters"]))
    changed = recorded | {
        name: recorded[name] | {"parameters": recorded[name]["parameters"] | {path: "other"}}
    }
    (line,) = recipe_plans.differences(changed, recorded)
    assert line.startswith(f"{name} parameters {path}: recorded ")
    assert line.endswith("found other")


def test_packed_plans_are_read_back() -> None:
    recorded = recipe_plans.read()
    packed = recipe_plans.pack(recorded)
    for recipe, stages in packed["recipes"].items():
        for name, plan in stages.items():
            groups = [packed["groups"][key] for key in plan["parameters"]]
            merged = {path: text for group in groups for path, text in group.items()}
            assert merged == recorded[recipe][name]["parameters"]
