"""A recipe of three toy stages, and a folder to run it in."""

import pytest

from t5x_style.configuration import gin_checks

HEAD = "from __gin__ import dynamic_registration\n"
MAKE = HEAD + (
    "from t5x_style import stage\nfrom tests.kits import gin_toys\n"
    "stage.run.job = @gin_toys.make\ngin_toys.make.size = @gin_toys.Size()\n"
    "gin_toys.Size.width = %WIDTH\n"
)
COUNT = HEAD + (
    "from t5x_style import stage\nfrom tests.kits import gin_toys\n"
    "stage.run.job = @gin_toys.count\nstage.run.inputs = [%SOURCE]\n"
    "gin_toys.count:\n  source = %SOURCE\n  steps = %STEPS\n  stop_at = %STOP_AT\n"
)
RECIPE = (
    HEAD
    + """from launch import recipe
WIDTH = 3
BUDGET = 1.0
STOP_AT = -1
recipe.run.run_dir = 'runs'
recipe.run.budget = %BUDGET
recipe.run.publish = {'summary.txt': %second.steps}

first/recipe.Stage:
  gin_files = ['make.gin']
  bindings = {'WIDTH': %WIDTH}

second/recipe.Stage:
  gin_files = ['count.gin']
  inputs = {'SOURCE': %first.text}
  bindings = {'STOP_AT': %STOP_AT}
  scaled = {'STEPS': 4}

third/recipe.Stage:
  gin_files = ['make_alone.gin']
  bindings = {'gin_toys.Size.width': 5}
"""
)


@pytest.fixture(name="house")
def make_house(tmp_path, monkeypatch):
    """A folder with a recipe and its stages' gin files; returns `flags(recipe text, **macros)`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make.gin").write_text(MAKE)
    (tmp_path / "count.gin").write_text(COUNT)
    (tmp_path / "make_alone.gin").write_text(MAKE.replace("gin_toys.Size.width = %WIDTH\n", ""))

    def flags(text=RECIPE, **macros):
        (tmp_path / "recipe.gin").write_text(text)
        return gin_checks.Flags(("recipe.gin",), tuple(macros.items()), allow=("tests",))

    return flags
