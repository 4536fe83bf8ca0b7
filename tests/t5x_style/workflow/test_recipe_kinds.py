"""Kinds of stages in a recipe."""

import pytest

from t5x_style.configuration import gin_reader
from t5x_style.workflow import recipe_reader
from tests.kits.recipe_kit import HEAD, RECIPE, make_house  # noqa: F401  a fixture

KINDS = """
sized/recipe.Kind:
  gin_files = [%SIZED]
  bindings = {'WIDTH': %UNKNOWN}
  publish = {'text.txt': 'text'}
wide/recipe.Kind:
  kind = 'sized'
  bindings = {'WIDTH': 9}
SIZED = 'make.gin'
first/recipe.Stage:
  kind = 'wide'
"""


def with_kinds(more=""):
    start = RECIPE.index("first/recipe.Stage:")
    end = RECIPE.index("\nsecond/")
    text = RECIPE[:start] + KINDS.lstrip() + more + RECIPE[end:]
    return text.replace("WIDTH = 3\n", "")


def test_a_stage_adds_to_its_kind(house, tmp_path):
    loaded = recipe_reader.load(house(with_kinds()))
    first = loaded.stages[0]
    assert (first.gin_files, dict(first.bindings)) == (("make.gin",), {"WIDTH": 9})
    assert {name: str(one) for name, one in loaded.publish.items()} == {
        "text.txt": "%first.text",
        "summary.txt": "%second.steps",
    }
    (tmp_path / "more.gin").write_text(HEAD + "WIDTH = 1\n")
    more = (
        "  gin_files = ['more.gin']\n  bindings = {'WIDTH': 2}\n  publish = {'text.txt': 'text'}\n"
    )
    first = recipe_reader.load(house(with_kinds(more))).stages[0]
    assert (first.gin_files, dict(first.bindings)) == (("make.gin", "more.gin"), {"WIDTH": 2})
    (tmp_path / "other.gin").write_text((tmp_path / "make.gin").read_text())
    first = recipe_reader.load(house(with_kinds("  files = {'SIZED': 'other.gin'}\n"))).stages[0]
    assert first.gin_files == ("other.gin",)


def test_a_macro_chooses_the_kind_of_a_stage(house):
    text = with_kinds().replace("  kind = 'wide'\n\nsecond", "  kind = %CHOICE\n\nsecond")
    assert "%CHOICE" in text
    first = recipe_reader.load(house("CHOICE = 'sized'\nUNKNOWN = 4\n" + text)).stages[0]
    assert dict(first.bindings) == {"WIDTH": 4}
    first = recipe_reader.load(house("CHOICE = 'sized'\n" + text, CHOICE="'wide'")).stages[0]
    assert dict(first.bindings) == {"WIDTH": 9}
    with pytest.raises(gin_reader.GinError, match="first/recipe.Stage.kind: no kind 'wid'.*wide"):
        recipe_reader.load(house("CHOICE = 'wid'\n" + text))


@pytest.mark.parametrize(
    ("kind", "stage", "value"),
    [("scaled", "bindings", 5), ("bindings", "scaled", 5), ("inputs", "bindings", "x")],
)
def test_a_stages_value_wins_wherever_its_kind_has_one(house, kind, stage, value):
    """A number that a kind scales, for example, and that the stage binds."""
    of_kind = f"other/recipe.Kind.{kind} = {{'WIDTH': 3}}\nfirst/recipe.Stage:\n  kind = 'other'\n"
    text = RECIPE.replace("first/recipe.Stage:\n", of_kind)
    text = text.replace("WIDTH = 3\n", "", 1).replace(
        "  bindings = {'WIDTH': %WIDTH}\n", f"  {stage} = {{'WIDTH': {value!r}}}\n"
    )
    first = recipe_reader.load(house(text)).stages[0]
    assert dict(getattr(first, stage)) == {"WIDTH": value}
    assert not getattr(first, kind)
