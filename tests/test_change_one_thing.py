"""docs/change_one_thing.md: each row's setting is accepted and reaches the stages that it says."""

import re
import shlex
from pathlib import Path

import pytest

from launch import cli
from tests import recipe_plans

PAGE = (Path(__file__).resolve().parent.parent / "docs/change_one_thing.md").read_text("utf-8")


def rows():
    """(recipe, setting, stages that read it) of every row; the recipe is its section's."""
    for section in PAGE.split("\n## ")[1:]:
        (recipe,) = re.findall(r"^\.venv/bin/kennel run (\w+)", section, re.MULTILINE)
        for line in section.splitlines():
            match = re.fullmatch(r"\| [^|]+ \| `([^`|]+)` \| ([^|]+) \|", line)
            if match:
                yield pytest.param(recipe, *match.groups(), id=f"{recipe}-{match[1]}")


@pytest.fixture(scope="module")
def unchanged():
    """recipe -> its plan without a setting."""
    plans: dict[str, dict[str, recipe_plans.Plan]] = {}

    def of(recipe):
        if recipe not in plans:
            plans[recipe] = recipe_plans.of_recipe(recipe)
        return plans[recipe]

    return of


def flags_of(recipe, setting):
    """The setting as the command of the section would pass it."""
    words = cli.python_arguments(["run", recipe, *shlex.split(setting)])
    return [word.removeprefix("--gin.") for word in words if word.startswith("--gin.")]


def test_every_row_is_read():
    table = [line for line in PAGE.splitlines() if line.startswith("| ")]
    heads = sum(line.startswith("| to change") for line in table)
    assert heads == PAGE.count("\n## ") and len(list(rows())) == len(table) - heads > 30


@pytest.mark.parametrize("recipe,setting,stages", rows())
def test_a_setting_reaches_the_stages_of_its_row(recipe, setting, stages, unchanged):
    before = unchanged(recipe)
    after = recipe_plans.of_recipe(recipe, flags_of(recipe, setting))
    assert after.keys() == before.keys()
    parts = ("entry", "job", "inputs", "parameters")
    changed = {name for name in before if any(before[name][p] != after[name][p] for p in parts)}
    said = set() if stages.startswith("none") else set(stages.split(", "))
    assert changed == said
    if stages.startswith("none; a"):  # it is read all the same, by what may resume with it
        assert any(before[name]["operational"] != after[name]["operational"] for name in before)
