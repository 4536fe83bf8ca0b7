"""Check a whole recipe before its first stage runs, and report all errors at once.

Names and inputs are checked while stages are planned, and nothing is imported for that. Types and
ranges are in the code that stages run. It is imported in one more process for all stages that are
not done (`t5x_style.preflight.stage_checks`), which takes a few seconds: so every rule is written
once, where it is used, and a recipe that is done starts in a blink.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from t5x_style.configuration import gin_checks
from t5x_style.configuration.gin_reader import REPOSITORY
from t5x_style.workflow import recipe_planning
from t5x_style.workflow.plans import Decision
from t5x_style.workflow.recipe_planning import Known
from t5x_style.workflow.recipe_problems import Problems
from t5x_style.workflow.recipe_stage import Companion, Recipe, RecipeError, Stage

PROGRAM = "t5x_style.preflight.stage_checks"
CHECKED = "KENNEL_CHECKED"  # set by a sweep, which has asked PROGRAM of all its trials at once


def survey(recipe: Recipe, flags: gin_checks.Flags) -> dict[str, Decision]:
    """Find stages that are done and that would run, of a recipe without any known problem.

    Raises:
      RecipeError: names, inputs, types and ranges of all stages that are wrong.
      StoreError: something else is at the place of a stage's link.
    """
    problems = Problems(flags.read_all())
    known, decisions = recipe_planning.look_up(recipe, flags, problems)
    asked: list[Stage] = [item for item in recipe.stages if item.name in known.pending]
    for item in recipe.companions:
        if item.stage in known.pending:
            asked.append(item)
            problems.names(item, recipe_planning.companion_flags(recipe, item, flags, known))
    commands = [
        command(recipe, item.name, flags, known)
        for item in asked
        if item.name not in problems.without_plan
    ]
    unchecked = [] if os.environ.get(CHECKED) else commands
    for stage, text in problems_of(unchecked) if unchecked else ():
        problems.add(stage, [text])
    problems.refuse()
    return decisions


def budget_note(recipe: Recipe) -> str:
    """Note of the settings that the budget reduces to 1; "" for none."""
    left: dict[str, list[str]] = {}
    for item in recipe.stages:
        for name, number in item.scaled.items():
            if number > 1 and math.ceil(number * recipe.budget) == 1:
                left.setdefault(f"{name} = {number}", []).append(item.name)
    said = "; ".join(f"{what} of {', '.join(names)}" for what, names in left.items())
    return f"note: the budget {recipe.budget} leaves 1 of {said}" if said else ""


def command(recipe: Recipe, name: str, flags: gin_checks.Flags, known: Known) -> dict[str, Any]:
    """The command line of a stage or a companion, as `problems_of` takes it."""
    item = next(one for one in (*recipe.stages, *recipe.companions) if one.name == name)
    own = recipe_planning.command(recipe, item, flags, known)
    return {
        "name": name,
        "job": item.job,
        "is_stage": not isinstance(item, Companion),
        "files": own.files,
        "overrides": own.overrides,
        "search_paths": own.search_paths,
        "allow": own.allow,
    }


def problems_of(commands: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """(name, what is wrong with it) of command lines, each with a name; one process for all.

    Raises:
      RecipeError: the check itself failed.
    """
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},  # no device is taken
    )
    if done.returncode:
        end = "\n".join(done.stderr.splitlines()[-5:])
        raise RecipeError(f"{PROGRAM}, which checks the stages, failed ({done.returncode}):\n{end}")
    yield from json.loads(done.stdout)
