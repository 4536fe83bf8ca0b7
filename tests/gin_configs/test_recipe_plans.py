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
    assert set(recipe_plans.read()) == stems - {recipe_plans.KINDS}


def test_every_part_is_part_of_a_recipe() -> None:
    texts = [path.read_text() for path in recipe_plans.RECIPES.glob("**/*.gin")]
    parts = [path.stem for path in recipe_plans.RECIPES.glob("parts/*.gin")]
    assert len(parts) >= 10
    for part in parts:
        assert any(f"include 'recipes/parts/{part}.gin'" in text for text in texts), part


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


@pytest.mark.parametrize("name", ["m3", "m3_tiny", "finetune_m3", "splade", "colbert", "ance"])
def test_what_a_recipe_claims_is_searched_and_exported(name: str) -> None:
    recipe = recipe_plans.read()[name]
    trained = {recipe[stage]["inputs"]["CHECKPOINT"] for stage in ("search", "export")}
    assert trained == {f"%{name.removeprefix('finetune_').removesuffix('_tiny')}.model"}
    if "m3" in name:
        assert recipe["export"]["inputs"]["HYBRID_CONTRACT"] == "%m3_weights.contract"
