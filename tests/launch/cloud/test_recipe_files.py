"""Gin files of a user's recipe travel with the code."""

from launch.cloud import code_archive, recipe_files
from t5x_style.configuration.gin_checks import Flags
from t5x_style.workflow import recipe_reader
from tests.kits.recipe_kit import make_house  # noqa: F401  a fixture


def test_files_of_a_recipe_its_includes_and_its_stages(house, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more/steps.gin").write_text("STEPS_MORE = 3\n")
    (tmp_path / "head.gin").write_text("include 'more/steps.gin'\nWIDTH = 4\n")
    flags = house()
    recipe = tmp_path / "recipe.gin"
    recipe.write_text(recipe.read_text().replace("WIDTH = 3\n", "include 'head.gin'\n"))
    found = recipe_files.of_recipe(flags, recipe_reader.load(flags))
    names = ["count.gin", "head.gin", "make.gin", "make_alone.gin", "more/steps.gin", "recipe.gin"]
    assert [str(path.relative_to(tmp_path)) for path in found] == names
    archive = code_archive.build(tmp_path / "out", found)
    assert code_archive.build(tmp_path / "out").files == archive.files - len(names)


def test_files_of_the_project_add_nothing(tmp_path):
    """They are in the archive already; `tmp_path` is not where the command runs."""
    flags = Flags(("gin_configs/recipes/smoke.gin",), ())
    found = recipe_files.of_recipe(flags, recipe_reader.load(flags))
    assert {"smoke.gin", "quickstart.gin", "kinds.gin", "train.gin"} <= {one.name for one in found}
    with_them, without = code_archive.build(tmp_path, found), code_archive.build(tmp_path)
    assert with_them == without
