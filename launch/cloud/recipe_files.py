"""The gin files that a recipe and its stages read."""

from dataclasses import replace
from pathlib import Path

from t5x_style.configuration.gin_checks import Flags
from t5x_style.workflow.recipe_stage import Recipe


def of_recipe(flags: Flags, recipe: Recipe) -> list[Path]:
    """Absolute paths of all of them, for `code_archive.build`: the hosts need them too.

    Args:
      flags: the command line of the recipe.
      recipe: what they lead to.

    Raises:
      GinError: a gin file cannot be read.
    """
    items = (*recipe.stages, *recipe.companions)
    each = [replace(flags, files=item.gin_files, overrides=()) for item in items]
    return sorted({path.absolute() for one in (flags, *each) for path in one.read_all().files})
