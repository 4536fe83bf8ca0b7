"""Read a recipe: its stages, their order, and what each reads of the others.

The gin form is described in `launch.recipe`, which runs recipes; `t5x_style.preflight` reads them.
A recipe is never executed by gin: `%stage.output` has no meaning there, and nothing is imported.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from t5x_style.configuration import compared_systems, gin_checks, renames
from t5x_style.configuration.gin_reader import (
    Config,
    GinError,
    Macro,
    closest,
    transform,
)
from t5x_style.storage import places
from t5x_style.workflow import (
    links,
    recipe_companions,
    recipe_order,
    recipe_overrides,
    recipe_planning,
    recipe_problems,
    recipe_systems,
    recipe_values,
    space,
    stages,
)
from t5x_style.workflow.recipe_stage import Companion, Recipe, RecipeError, Stage
from t5x_style.workflow.recipe_values import Output
from t5x_style.workflow.store import Store

STAGE, KIND, RUN = "launch.recipe.Stage", "launch.recipe.Kind", "launch.recipe.run"
COMPANION = "launch.recipe.Companion"
RUN_PARAMETERS = {
    *("run_dir", "budget", "publish", "macros", "inputs", "defaults", "paths", "cpu_devices"),
}
STORE_MACRO, LIMIT_MACRO = "STORE", "STORE_LIMIT"  # settings of every recipe
VALUES = ("inputs", "bindings", "scaled")  # of a stage: what sets macros and parameters
STAGE_PARAMETERS = {"kind", "gin_files", "files", "systems", "publish", *VALUES}
COMPANION_PARAMETERS = {*STAGE_PARAMETERS, *recipe_companions.PARAMETERS} - {"systems", "publish"}
KNOWN = {
    RUN: RUN_PARAMETERS,
    STAGE: STAGE_PARAMETERS,
    COMPANION: COMPANION_PARAMETERS,
    KIND: STAGE_PARAMETERS | COMPANION_PARAMETERS,
}
One = TypeVar("One", bound=Stage)  # or a companion
# Parameters that older recipes set, and why they have no effect any more
GONE = {
    "stages": "stages run in the order in which they read of each other, and a macro of the recipe "
    "reaches each stage whose gin files refer to it",
    "entry": "a job declares the program that runs it",
}


def is_recipe(config: Config) -> bool:
    """Whether gin files describe a recipe, and not one stage."""
    return any(key[1] in (RUN, STAGE) for key in config.bindings)


def load(flags: gin_checks.Flags) -> Recipe:
    """Reads a recipe and checks that its stages fit together.

    Raises:
      GinError: unknown or unused names, wrong types; the message has all that were found.
      RecipeError: a reference to a stage or output that does not exist, or is part of a cycle.
    """
    own, overrides = recipe_overrides.split(flags)
    config = own.read_all()
    in_file = recipe_overrides.of_file(config)
    set_here = {name: config.macros.pop(name, None) for name in (STORE_MACRO, LIMIT_MACRO)}
    recipe_values.mark_outputs(config)
    recipe_values.rename_files(config)
    _check_parameters(config)
    names = _names(config, STAGE)
    wrong = _Wrong()
    root, limit = (None if one is None else one.value for one in set_here.values())
    wrong.call(lambda: space.limit_of(limit))
    run_dir = wrong.call(lambda: _run_dir(config))
    budget = wrong.call(lambda: float(_positive(config, "budget", (int, float))))
    cpu_devices = wrong.call(lambda: _positive(config, "cpu_devices", int))
    store = wrong.call(lambda: None if root is None else _place(root, STORE_MACRO))
    described = [wrong.call(functools.partial(_stage, config, name)) for name in names]
    companions = [
        wrong.call(functools.partial(_companion, config, name))
        for name in _names(config, COMPANION)
    ]
    wrong.refuse()  # what follows is about stages that fit their kinds
    settings = {key[2]: one.value for key, one in config.bindings.items() if key[1] == RUN}
    given = recipe_values.Given(
        config,
        _merged(config, settings.get("macros", {}), "recipe.run.macros"),
        _merged(config, settings.get("inputs", {}), "recipe.run.inputs"),
        _present(_merged(config, settings.get("defaults", {}), "recipe.run.defaults"), names),
        set(_typed(settings.get("paths", []), (list, tuple), "recipe.run.paths")),
    )
    filled, next_to = recipe_companions.joined(
        [_filled(item, given, own) for item in described],
        [_filled(item, given, own) for item in companions],
        run_dir,
    )
    ordered = recipe_order.ordered(filled)
    recipe = Recipe(
        tuple(ordered),
        run_dir,
        budget,
        _published(_merged(config, settings.get("publish", {}), "recipe.run.publish"), ordered),
        links.of_run(run_dir) if store is None else Store(store),
        limit,
        recipe_order.next_to(next_to, ordered),
        cpu_devices,
    )
    pending = recipe_planning.all_pending(recipe)
    for name in in_file.macros:
        given.taken(name)
    wrong.texts += given.unused(own.files)
    changed = wrong.call(
        lambda: recipe_overrides.apply(
            recipe,
            [*in_file.overrides, *overrides],
            config.macros,
            given.paths | given.inputs.keys(),
            lambda item: recipe_planning.command(recipe, item, flags, pending),
            in_file.places,
        )
    )
    wrong.refuse()
    recipe_companions.require_shared(changed)
    return _for_companions(recipe_order.until(changed, flags.until), flags)


def _for_companions(recipe: Recipe, flags: gin_checks.Flags) -> Recipe:
    if flags.companions == "only" and not recipe.companions:
        raise RecipeError(
            "--companions=only: expected a recipe whose stages have companions, found none in it"
        )
    if flags.companions == "only" and flags.rerun:
        raise RecipeError(
            f"--companions=only: expected no --rerun, found --rerun={flags.rerun[0]}: companions "
            "make no stage. Pass it to the command that runs the stages alone."
        )
    return recipe


class _Wrong:
    """Errors, gathered for one message."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def call(self, make: Callable[[], Any]) -> Any:
        """Result of `make`; None after an error, which is noted."""
        try:
            return make()
        except (GinError, RecipeError, space.NoRoom) as error:
            self.texts += map(str, error.args)
            return None

    def refuse(self) -> None:
        """Raises GinError if anything was wrong."""
        if self.texts:
            raise GinError(*dict.fromkeys(self.texts))


def _run_dir(config: Config) -> Path:
    value = _setting(config, "run_dir", "RUN_DIR")
    if value is None:
        raise GinError("No folder to write to: pass --gin.RUN_DIR=PATH.")
    path = _place(value, "RUN_DIR")
    for part in (path, *path.parents):
        if part.exists() and not part.is_dir():
            raise GinError(
                f"RUN_DIR: expected a folder, which is made where there is none, found {path}; "
                f"{part} is a file. Choose another with --gin.RUN_DIR=PATH."
            )
    return path


def _place(value: Any, name: str) -> Path:
    """Path of a folder on this machine."""
    try:
        return places.local(_typed(value, str, name))
    except places.PathError as error:
        raise GinError(f"{name}: {error}") from None


def _positive(config: Config, parameter: str, kinds: Any) -> Any:
    """A number above 0; 1 where nothing sets it."""
    macro = parameter.upper()
    value = _setting(config, parameter, macro)
    if value is None:
        return 1
    if not 0 < _typed(value, kinds, macro) < math.inf:
        raise GinError(f"{macro} must be above 0, found {value}.")
    return value


def _names(config: Config, target: str) -> list[str]:
    """Of the stages or the companions, in the order in which they are described."""
    return list(dict.fromkeys(key[0] for key in config.bindings if key[1] == target))


def _setting(config: Config, parameter: str, macro: str) -> Any:
    """The value of `recipe.run.PARAMETER`, or else of a macro; None where neither is set."""
    binding = config.bindings.get(("", RUN, parameter), config.macros.get(macro))
    return None if binding is None else config.expand(binding.value, binding.where)


def _resolved(config: Config, value: Any, where: str) -> Any:
    """Return the value of a macro, with macros inside of it left unchanged."""
    seen: set[str] = set()
    while isinstance(value, Macro):
        if value.name in seen:
            raise GinError(f"{where}: macros refer to each other in a cycle: %{value.name}.")
        seen.add(value.name)
        value = config.macro(value.name, where)
    return value


def _merged(config: Config, value: Any, where: str) -> dict[str, Any]:
    """A dictionary by macro, or a list of them, of which later ones win."""
    found: dict[str, Any] = {}
    value = _resolved(config, value, where)
    for part in value if isinstance(value, (list, tuple)) else [value]:
        for name, one in _typed(_resolved(config, part, where), dict, where).items():
            found[renames.macro(name, where)] = one
    return found


def _present(defaults: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Those that are outputs of stages of the recipe."""
    return {
        name: value
        for name, value in defaults.items()
        if all(one.stage in names for one in recipe_values.outputs_in(value))
    }


def _check_parameters(config: Config) -> None:
    gin_checks.check_resolved(config)
    wrong = _Wrong()
    for (_, target, parameter), binding in config.bindings.items():
        if target not in KNOWN:
            wrong.texts.append(
                f"{binding.where}: a recipe binds recipe.run, recipe.Stage, recipe.Companion and "
                "recipe.Kind only."
            )
        elif parameter in GONE and target != COMPANION:
            renames.gone(binding.where, f"{binding.text}.{parameter}", GONE[parameter])
        elif parameter not in KNOWN[target]:
            hint = closest(parameter, KNOWN[target])
            text = f"{binding.where}: {binding.text} has no parameter {parameter!r}{hint}"
            wrong.texts.append(text)
    wrong.refuse()


def _typed(value: Any, expected: Any, where: str) -> Any:
    if not isinstance(value, expected) or isinstance(value, bool):
        kinds = expected if isinstance(expected, tuple) else (expected,)
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise GinError(f"{where} must be {wanted}, found {value!r}.")
    return value


def _stage(config: Config, name: str) -> Stage:
    """Stage described by `NAME/recipe.Stage`, with its kind."""
    where, values, further = _item(config, name, STAGE)
    recipe_companions.refuse_parameters(name, where, further)
    systems = values.pop("systems")
    if systems:
        values["inputs"][compared_systems.SYSTEMS] = systems
    return Stage(name, where=where, **values)


def _companion(config: Config, name: str) -> Companion:
    """Companion described by `NAME/recipe.Companion`, with its kind."""
    where, values, further = _item(config, name, COMPANION)
    del values["systems"]
    return recipe_companions.described(name, where, further, values)


def _item(config: Config, name: str, target: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Place and values of a stage or companion, and what only companions have."""
    where = next(one.where for key, one in config.bindings.items() if key[:2] == (name, target))
    described = _described(config, name, target)
    further = {one: described.pop(one) for one in recipe_companions.PARAMETERS}
    instead = described.pop("files")
    described["gin_files"] = transform(
        described["gin_files"],
        lambda leaf: instead.get(leaf.name, leaf) if isinstance(leaf, Macro) else leaf,
    )
    values = {  # only now: a stage may replace what a kind says
        parameter: config.expand(
            value, where, described["inputs"] if parameter == "systems" else ()
        )
        for parameter, value in described.items()
    }
    if not values["gin_files"]:
        what = target.removeprefix("launch.recipe.")
        raise GinError(
            f"{where}: {what.lower()} {name} lacks {name}/recipe.{what}.kind or .gin_files."
        )
    wrong = _Wrong()
    for key, value in values["scaled"].items():
        wrong.call(functools.partial(_scaled, config, name, where, key, value))
    wrong.refuse()
    values["inputs"] = {key: recipe_values.joined(one) for key, one in values["inputs"].items()}
    return where, values, {one: config.expand(value, where) for one, value in further.items()}


def _scaled(config: Config, stage: str, where: str, name: str, value: Any) -> None:
    """Raises GinError unless a number can be scaled; the message names the place."""
    place, macro = recipe_problems.origins(stage, config).get(name, (where, ""))
    what = f"{place}: {macro or name}"
    if _typed(value, int, what) < 0:
        raise GinError(f"{what} must be 0 or more, found {value}.")


def _described(
    config: Config, name: str, target: str, below: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The parameters of a stage or kind, after those of the kind that it names.

    Files are added to the kind's; of what both set by name, its own wins, whether either says it as
    an input, a binding or a number to scale. Macros within are not expanded yet.
    """
    label = f"{name}/{target.removeprefix('launch.')}"
    found = {
        key[2]: one.value
        for key, one in config.bindings.items()
        if key[:2] == (name, target) and key[2] not in GONE
    }
    kind = _resolved(config, found.pop("kind", None), label)
    base: dict[str, Any] = {}
    if kind is not None:
        kinds = {key[0] for key in config.bindings if key[1] == KIND}
        if kind not in kinds:
            raise GinError(f"{label}.kind: no kind {kind!r}{closest(str(kind), kinds)}")
        if kind in below:
            raise GinError(f"{label}.kind: {kind!r} is a kind of itself.")
        base = _described(config, kind, KIND, (*below, kind))
    files = _resolved(config, found.get("gin_files", []), label)
    _typed(files, (list, tuple), f"{label}.gin_files")
    values: dict[str, Any] = {"gin_files": (*base.get("gin_files", ()), *files)}
    own = {
        parameter: _merged(config, found.get(parameter, {}), f"{label}.{parameter}")
        for parameter in ("files", "systems", *VALUES, "publish")
    }
    set_here = {name for parameter in VALUES for name in own[parameter]}
    for parameter, named in own.items():
        hidden = set_here if parameter in VALUES else ()
        kept = {k: one for k, one in base.get(parameter, {}).items() if k not in hidden}
        values[parameter] = kept | named
    for parameter in recipe_companions.PARAMETERS:
        values[parameter] = found.get(parameter, base.get(parameter))
    return values


def _filled(item: One, given: recipe_values.Given, flags: gin_checks.Flags) -> One:
    """A stage or companion with its job, and with what it takes from the recipe."""
    for leaf in recipe_values.outputs_in(dict(item.bindings)):
        raise RecipeError(
            f"Stage {item.name} ({item.where}): {leaf} is under bindings; put it under inputs, "
            "so that a change of it is noticed."
        )
    alone = replace(flags, files=item.gin_files, overrides=())
    files = alone.read()
    if not isinstance(item, Companion):
        job = stages.job_of(files)
        item = replace(item, job=job, entry=stages.entry_of(job))
    item = recipe_systems.named(item, given, files, alone)
    own = {**item.inputs, **item.bindings, **item.scaled}
    set_here = replace(alone, overrides=recipe_values.overrides(own))
    inputs, bindings = given.to(item.name, own, files, set_here)
    return replace(
        item,
        inputs={**item.inputs, **inputs},
        bindings={**item.bindings, **bindings},
    )


def _published(asked: Mapping[str, Any], ordered: Sequence[Stage]) -> dict[str, Output]:
    """Files copied into the run's folder: what stages publish, and what the recipe adds."""
    found = {
        file: Output(item.name, output) for item in ordered for file, output in item.publish.items()
    }
    for file, output in asked.items():
        if not isinstance(output, Output):
            raise RecipeError(f"recipe.run.publish: {output!r} must be a %stage.output.")
        found[file] = output
    recipe_order.check_outputs(found.values(), ordered, "what is published")
    return found
