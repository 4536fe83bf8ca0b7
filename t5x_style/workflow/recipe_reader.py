"""Reads a recipe: which stages, in which order, and what each reads of the others.

The gin form is described in `launch.recipe`, which runs recipes; `t5x_style.preflight` reads them.
A recipe is never executed by gin: `%stage.output` has no meaning there, and nothing is imported.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from t5x_style.configuration import gin_checks, renames
from t5x_style.configuration.gin_reader import (
    FOLDER_MACRO,
    Config,
    GinError,
    Macro,
    Reference,
    closest,
    leaves,
    to_gin,
    transform,
)
from t5x_style.workflow import links, recipe_overrides, space, stages
from t5x_style.workflow.links import DEFAULT_NAME
from t5x_style.workflow.plans import Decision
from t5x_style.workflow.recipe_problems import Problems
from t5x_style.workflow.recipe_problems import RecipeError as RecipeError
from t5x_style.workflow.store import Store, Version

STAGE, RUN = "launch.recipe.Stage", "launch.recipe.run"
RUN_PARAMETERS = {"stages", "run_dir", "budget", "publish", "macros", "inputs"}
STORE_MACRO, LIMIT_MACRO = "STORE", "STORE_LIMIT"  # settings of every recipe
STAGE_PARAMETERS = {"entry", "gin_files", "inputs", "bindings", "scaled"}


@dataclass(frozen=True)
class Output:
    """`%stage.name` in a recipe: what an earlier stage returns under that name."""

    stage: str
    name: str


@dataclass(frozen=True)
class Stage:
    """One stage of a recipe, its macros expanded; see the module's text for the gin form."""

    name: str
    entry: str
    gin_files: tuple[str, ...]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    bindings: Mapping[str, Any] = field(default_factory=dict)
    scaled: Mapping[str, int] = field(default_factory=dict)
    where: str = ""

    def needs(self) -> list[Output]:
        """The outputs of other stages that this one reads."""
        return [leaf for leaf in leaves(dict(self.inputs)) if isinstance(leaf, Output)]


@dataclass(frozen=True)
class Recipe:
    """A checked recipe: every `Output` refers to an earlier stage.

    Attributes:
      macros: for every stage whose gin files refer to them, unless it binds them itself.
      inputs: those that are paths, which the stage then declares as its inputs.
      store: where versions are; by default `.store` next to the run's folder.
      limit: STORE_LIMIT, as the user wrote it; None for none.
    """

    stages: tuple[Stage, ...]
    run_dir: Path
    budget: float
    publish: Mapping[str, Output]
    macros: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    store: Store = field(default_factory=lambda: Store(Path(DEFAULT_NAME)))
    limit: Any = None

    def link(self, name: str) -> Path:
        """The link to the current version of stage `name`."""
        return self.run_dir / name


def is_recipe(config: Config) -> bool:
    """Whether gin files describe a recipe, and not one stage."""
    return any(key[1] == RUN for key in config.bindings)


def load(flags: gin_checks.Flags) -> Recipe:
    """Reads a recipe and checks that its stages fit together.

    Raises:
      GinError: unknown or unused names, wrong types.
      RecipeError: a reference to a stage or output that does not exist or comes later.
    """
    own, overrides = recipe_overrides.split(flags)
    config = own.read()
    set_here = {name: config.macros.pop(name, None) for name in (STORE_MACRO, LIMIT_MACRO)}
    names = _outputs_as_values(config)
    overrides += recipe_overrides.take_macros(config, own)
    gin_checks.check_names(config, (RUN,))
    _check_parameters(config)
    settings = {key[2]: _value(config, key) for key in config.bindings if key[1] == RUN}
    for name in ("stages", "run_dir"):
        if name not in settings:
            raise GinError(f"The recipe lacks `recipe.run.{name} = ...`.")
    run_dir = Path(_typed(settings["run_dir"], str, "recipe.run.run_dir"))
    root, limit = (None if one is None else one.value for one in set_here.values())
    space.limit_of(limit)
    recipe = Recipe(
        tuple(_stage(config, item) for item in settings["stages"]),
        run_dir,
        float(_typed(settings.get("budget", 1.0), (int, float), "recipe.run.budget")),
        settings.get("publish", {}),
        _merged(settings.get("macros", {}), "recipe.run.macros"),
        _merged(settings.get("inputs", {}), "recipe.run.inputs"),
        Store(Path(_typed(root, str, STORE_MACRO))) if root else links.of_run(run_dir),
        limit,
    )
    if not 0 < recipe.budget < math.inf:
        raise RecipeError(f"recipe.run.budget must be above 0, found {recipe.budget}.")
    pending = all_pending(recipe)
    recipe, given = recipe_overrides.apply(
        recipe, overrides, config.macros, lambda item: stage_flags(recipe, item, flags, pending)
    )
    _check_references(recipe, names, flags)
    _check_macros(recipe, flags, given)
    return recipe


def _merged(value: Any, where: str) -> dict[str, Any]:
    """A dictionary by macro, or a list of them, of which later ones win."""
    found: dict[str, Any] = {}
    for part in value if isinstance(value, (list, tuple)) else [value]:
        for name, one in _typed(part, dict, where).items():
            found[renames.macro(name, where)] = one
    return found


def _outputs_as_values(config: Config) -> list[str]:
    """Turns `%stage.name` into `Output` in place, and returns the names of all stages."""
    names = [key[0] for key in config.bindings if key[1] == STAGE]

    def leaf(item: Any) -> Any:
        if isinstance(item, Macro) and "." in item.name and not item.name.startswith("gin."):
            return Output(*item.name.split(".", 1))
        return item

    for key, binding in config.bindings.items():
        config.bindings[key] = replace(binding, value=transform(binding.value, leaf))
    for name, macro in config.macros.items():
        config.macros[name] = replace(macro, value=transform(macro.value, leaf))
    return list(dict.fromkeys(names))


def _check_parameters(config: Config) -> None:
    known = {RUN: RUN_PARAMETERS, STAGE: STAGE_PARAMETERS}
    for (_, target, parameter), binding in config.bindings.items():
        if target not in known:
            raise GinError(f"{binding.where}: a recipe binds recipe.run and recipe.Stage only.")
        if parameter not in known[target]:
            hint = closest(parameter, known[target])
            raise GinError(f"{binding.where}: {binding.text} has no parameter {parameter!r}{hint}")


def _value(config: Config, key: tuple[str, str, str]) -> Any:
    binding = config.bindings[key]
    return config.expand(binding.value, binding.where)


def _typed(value: Any, expected: Any, where: str) -> Any:
    if not isinstance(value, expected) or isinstance(value, bool):
        kinds = expected if isinstance(expected, tuple) else (expected,)
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise GinError(f"{where} must be {wanted}, found {value!r}.")
    return value


def _stage(config: Config, item: Any) -> Stage:
    """Builds the stage that `@name/recipe.Stage()` stands for."""
    if not isinstance(item, Reference) or item.target != STAGE or not item.scope or not item.call:
        raise GinError(
            f"recipe.run.stages holds {to_gin(item)}; each element must be @name/recipe.Stage()."
        )
    keys = {key[2]: key for key in config.bindings if key[:2] == (item.scope, STAGE)}
    if not {"entry", "gin_files"} <= set(keys):
        raise GinError(f"Stage {item.scope} lacks {item.scope}/recipe.Stage.entry or .gin_files.")
    values = {name: _value(config, key) for name, key in keys.items()}
    name = f"{item.scope}/recipe.Stage"
    _typed(values["entry"], str, f"{name}.entry")
    _typed(values["gin_files"], (list, tuple), f"{name}.gin_files")
    for parameter in ("inputs", "bindings", "scaled"):
        values[parameter] = _merged(values.get(parameter, {}), f"{name}.{parameter}")
    for key, value in values["scaled"].items():
        if _typed(value, int, f"{name}.scaled[{key!r}]") < 0:
            raise GinError(f"{name}.scaled[{key!r}] must be 0 or more, found {value}.")
    values["gin_files"] = tuple(values["gin_files"])
    where = config.bindings[keys["entry"]].where
    values["entry"] = renames.entry(values["entry"], where)
    return Stage(item.scope, where=where, **values)


def _check_references(recipe: Recipe, names: list[str], flags: gin_checks.Flags) -> None:
    """Every `%stage.output` must name an earlier stage and something that its job returns."""
    earlier: list[Stage] = []

    @functools.cache
    def outputs_of(producer: str) -> set[str] | None:
        item = next(one for one in recipe.stages if one.name == producer)
        return stages.declared_outputs(job_of(item, flags))

    for item in recipe.stages:
        for output in item.needs():
            _check_output(output, earlier, recipe, outputs_of, f"Stage {item.name} ({item.where})")
        for leaf in leaves(dict(item.bindings)):
            if isinstance(leaf, Output):
                raise RecipeError(
                    f"Stage {item.name} ({item.where}): %{leaf.stage}.{leaf.name} stands under "
                    "bindings; put it under inputs, so that a change of it is noticed."
                )
        if item.name in [other.name for other in earlier]:
            raise RecipeError(f"Stage {item.name} is listed twice in recipe.run.stages.")
        earlier.append(item)
    for output in recipe.publish.values():
        if not isinstance(output, Output):
            raise RecipeError(f"recipe.run.publish: {output!r} must be a %stage.output.")
        _check_output(output, earlier, recipe, outputs_of, "recipe.run.publish")
    for name in names:
        if name not in [item.name for item in recipe.stages]:
            raise RecipeError(f"Stage {name} is described, but not listed in recipe.run.stages.")


def _check_macros(recipe: Recipe, flags: gin_checks.Flags, given: set[str]) -> None:
    """Each of `recipe.run.macros` and `.inputs`, but those given by hand, has a stage's use."""
    shared = {**recipe.macros, **recipe.inputs}
    for name, value in shared.items():
        if any(isinstance(leaf, Output) for leaf in leaves(value)):
            raise RecipeError(
                f"recipe.run: {name!r}: put the output of a stage under the inputs of those "
                "that read it, so that a change of it is noticed."
            )
    known: set[str] = set()
    for item in recipe.stages if shared else ():
        known |= _free_macros(item, _files(item, flags).read())
    for name in shared.keys() - known - given:
        raise RecipeError(
            f"recipe.run: {name!r}: no stage refers to %{name} without binding it"
            f"{closest(name, known)}"
        )


def _files(item: Stage, flags: gin_checks.Flags) -> gin_checks.Flags:
    return replace(flags, files=item.gin_files, overrides=())


def _free_macros(item: Stage, config: Config) -> set[str]:
    """What a stage's gin files refer to and it does not bind itself."""
    return gin_checks.macros_in_use(config) - {*item.inputs, *item.bindings, *item.scaled}


def _check_output(
    output: Output,
    earlier: list[Stage],
    recipe: Recipe,
    outputs_of: Callable[[str], set[str] | None],
    where: str,
) -> None:
    producers = {item.name: item for item in earlier}
    text = f"%{output.stage}.{output.name}"
    if output.stage not in producers:
        if output.stage in [item.name for item in recipe.stages]:
            raise RecipeError(
                f"{where}: {text} refers to a stage that does not run before it. Move "
                f"{output.stage} up in recipe.run.stages; circles are not possible."
            )
        raise RecipeError(
            f"{where}: {text}: no stage {output.stage!r}{closest(output.stage, producers)}"
        )
    declared = outputs_of(output.stage)
    if declared is not None and output.name not in declared:
        raise RecipeError(
            f"{where}: {text}: stage {output.stage} has no output {output.name!r}"
            f"{closest(output.name, declared)}"
        )


def job_of(item: Stage, flags: gin_checks.Flags) -> str:
    """The dotted path of the job that a stage runs."""
    config = _files(item, flags).read()
    return stages.job_of(config, stages.entry_job(item.entry))


@dataclass(frozen=True)
class Known:
    """What is known of stages while a recipe is planned or run.

    Attributes:
      done: stage -> the finished version that those after it read.
      pending: stages that have no finished version yet; their outputs have no path.
    """

    done: dict[str, Version] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)


def all_pending(recipe: Recipe) -> Known:
    """Before anything is looked up."""
    return Known({}, {item.name for item in recipe.stages})


def stage_flags(
    recipe: Recipe, item: Stage, flags: gin_checks.Flags, known: Known
) -> gin_checks.Flags:
    """The command line of one stage.

    Args:
      recipe: the whole recipe.
      item: the stage.
      flags: the recipe's own command line; search paths and allow-list are handed on.
      known: versions of the stages before it.
    """

    def path(value: Any) -> Any:
        return output_path(recipe, value, known) if isinstance(value, Output) else value

    scaled = {name: math.ceil(n * recipe.budget) for name, n in item.scaled.items()}
    config = _files(item, flags).read()
    free = _free_macros(item, config)
    shared = {**recipe.macros, **recipe.inputs}
    values = {name: value for name, value in shared.items() if name in free}
    values |= {**transform(dict(item.inputs), path), **item.bindings, **scaled}
    values[FOLDER_MACRO] = str(recipe.link(item.name))
    recipe_inputs = [name for name in recipe.inputs if name in free]
    inputs = dict.fromkeys([*stages.input_macros(config), *item.inputs, *recipe_inputs])
    values[stages.INPUTS] = [Macro(name) for name in inputs]
    values[stages.STORE_SETTING] = str(recipe.store.root)
    if recipe.limit is not None:
        values[stages.LIMIT_SETTING] = recipe.limit
    overrides = tuple((name, to_gin(value)) for name, value in values.items())
    rerun = tuple(name for name in flags.rerun if name == item.name)
    return replace(flags, files=item.gin_files, overrides=overrides, dry_run=False, rerun=rerun)


def output_path(recipe: Recipe, output: Output, known: Known) -> str:
    """Where an output is; for a stage still to run, a stand-in that `plan` knows."""
    if output.stage in known.pending:
        return str(recipe.link(output.stage) / f"<{output.name}>")
    version = known.done[output.stage]
    outputs = version.record["outputs"]
    if output.name not in outputs:
        raise RecipeError(
            f"%{output.stage}.{output.name}: stage {output.stage} returned no output "
            f"{output.name!r}{closest(output.name, outputs)}"
        )
    return str(version.output(output.name))


def plan(recipe: Recipe, item: Stage, flags: gin_checks.Flags, known: Known) -> stages.Plan:
    """A stage's plan; what it reads from pending stages counts as `still to be made`."""
    command = stage_flags(recipe, item, flags, known)
    pending = {
        output_path(recipe, output, known): f"%{output.stage}.{output.name}, still to be made"
        for output in item.needs()
        if output.stage in known.pending
    }
    return stages.plan(command, stages.entry_job(item.entry), pending)


def look_up(
    recipe: Recipe, flags: gin_checks.Flags, problems: Problems
) -> tuple[Known, dict[str, Decision]]:
    """Which stages are done and what each of them is waiting for; runs nothing.

    Every name, reference and link of the recipe is checked on the way. A stage with `problems`,
    to which they are added, counts as new.
    """
    known = Known()
    decisions: dict[str, Decision] = {}
    for item in recipe.stages:
        planned = problems.plan(item.name, functools.partial(plan, recipe, item, flags, known))
        waits_for = sorted({one.stage for one in item.needs()} & known.pending)
        if planned is None:
            decision = Decision("new", "has problems")
        elif waits_for:
            links.check(planned.store, planned.link)
            decision = Decision("new", f"after {', '.join(waits_for)}")
        else:
            decision = stages.decide(planned)
        if decision.status == "done" and decision.version is not None:
            known.done[item.name] = decision.version
        else:
            known.pending.add(item.name)
        decisions[item.name] = decision
    return known, decisions
