"""Systems that a stage of a recipe compares: outputs of other stages become its inputs.

    evaluation/recipe.Stage:
      kind = 'comparison'
      systems = {'none': %none.model, 'mlm': {'CHECKPOINT': %mlm.model, 'POOLING': 'mean'}}

is for the stage

    inputs = {'NONE': %none.model, 'MLM': %mlm.model}
    bindings = {'SYSTEMS': {'none': %NONE, 'mlm': {'CHECKPOINT': %MLM, 'POOLING': 'mean'}}}

which `configuration.compared_systems` expands. A recipe's macro SYSTEMS is for all its stages whose
gin files refer to it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from t5x_style.configuration import gin_checks, gin_macros
from t5x_style.configuration.compared_systems import CHECKPOINT, SYSTEMS, macro_of
from t5x_style.configuration.gin_reader import Config, Macro
from t5x_style.workflow.recipe_stage import RecipeError, Stage
from t5x_style.workflow.recipe_values import Given, Output, joined, outputs_in

One = TypeVar("One", bound=Stage)  # or a companion


def named(stage: One, given: Given, files: Config, flags: gin_checks.Flags) -> One:
    """A stage whose systems read other stages by macros that are inputs.

    Args:
      stage: as the recipe describes it.
      given: what the recipe holds for its stages.
      files: the stage's gin files.
      flags: a command line of these files alone.

    Raises:
      RecipeError: an output that is not the value of a name, or an input that is there already.
    """
    own = {**stage.inputs, **stage.bindings}
    systems = own.get(SYSTEMS)
    if systems is None and SYSTEMS in gin_macros.in_bindings(files.bindings.values()):
        systems = given.taken(SYSTEMS)
    systems = joined(systems)
    if not isinstance(systems, Mapping):
        return stage
    inputs: dict[str, Any] = {}
    found: dict[Any, Any] = {}
    for name, said in systems.items():
        settings = said if isinstance(said, Mapping) else {CHECKPOINT: said}
        changed = {key: _input(stage, name, key, one, inputs) for key, one in settings.items()}
        found[name] = changed if isinstance(said, Mapping) else changed[CHECKPOINT]
    files = flags.read_all()  # without the systems that it may have by itself
    macros = {name: one for name, one in files.macros.items() if name != SYSTEMS}
    known = gin_macros.in_bindings((*files.bindings.values(), *macros.values()))
    for macro in inputs.keys() & {*own, *macros, *known}:
        raise RecipeError(
            f"Stage {stage.name} ({stage.where}): systems: {inputs[macro]} would be its input "
            f"{macro}, a macro that it has already; choose another name for the system."
        )
    bindings = {**stage.bindings, SYSTEMS: found}
    kept = {name: one for name, one in stage.inputs.items() if name != SYSTEMS}
    return replace(stage, inputs={**kept, **inputs}, bindings=bindings)


def _input(stage: Stage, name: Any, key: Any, value: Any, inputs: dict[str, Any]) -> Any:
    """Value that a system sets something to; an output is added to the inputs and named."""
    if not outputs_in(value):
        return value
    if not isinstance(value, Output):
        raise RecipeError(
            f"Stage {stage.name} ({stage.where}): systems: {key!r} of {name!r} must be one "
            f"%stage.output or none, found {value!r}."
        )
    macro = macro_of(str(name), str(key))
    if macro in inputs and inputs[macro] != value:
        raise RecipeError(
            f"Stage {stage.name} ({stage.where}): systems: {inputs[macro]} and {value} would both "
            f"be input {macro}; choose another name for one system."
        )
    inputs[macro] = value
    return Macro(macro)
