"""Settings of a recipe's command line or file for its stages, by their names.

    --gin.prepare.prepare.max_bad_records=1  a parameter: for every stage that leads to it
    --gin.retriever/LOG_EVERY=10             either, for one stage
    --gin.retriever/query/token_groups.Rows.segments=8    the same with a scope of gin

A recipe's file may say the same: `retriever/LOG_EVERY = 10`; the command line wins.

A stage gets such a value as if the recipe had bound it: whatever the recipe says of that name in a
dictionary of the stage gives way. A macro without a stage, `--gin.LOG_EVERY=10`, is the recipe's:
it reaches the stages that refer to it and do not set it (`recipe_values`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gin import config_parser

from t5x_style.configuration import gin_checks, gin_macros, renames, signatures
from t5x_style.configuration.gin_reader import (
    COMMAND_LINE,
    FOLDER_MACRO,
    RUN,
    Config,
    GinError,
    closest,
    override_value,
    to_gin,
)
from t5x_style.workflow.recipe_stage import Recipe, Stage

One = TypeVar("One", bound=Stage)  # or a companion
Override = tuple[str, str]  # NAME and VALUE of --gin.NAME=VALUE
RECIPE = "recipe"  # the module that recipes bind
RECIPE_PATH = f"launch.{RECIPE}."


@dataclass(frozen=True)
class Target:
    """A stage that flags may address.

    Attributes:
      flags: its command line.
      job: dotted path of what it runs.
      bound: names in the dictionaries that the recipe has for it.
    """

    flags: gin_checks.Flags
    job: str
    bound: Collection[str]


@dataclass(frozen=True)
class Given:
    """Settings of the command line for a stage by a name; `instead_of` names of the recipe."""

    name: str
    text: str
    instead_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class InFile:
    """Settings of a recipe's file for stages, by their names.

    Attributes:
      overrides: as those of a command line, macros in their values expanded.
      places: name -> file and line.
      macros: that the values refer to.
    """

    overrides: list[Override]
    places: Mapping[str, str]
    macros: Collection[str]


def split(flags: gin_checks.Flags) -> tuple[gin_checks.Flags, list[Override]]:
    """The flags of the recipe itself, and those that can only be for its stages."""
    recipe: list[Override] = []
    others: list[Override] = []
    for name, text in flags.overrides:
        scope, selector, parameter = config_parser.parse_binding_key(name)
        own = selector.split(".")[0] == RECIPE if parameter else not scope
        (recipe if own else others).append((name, text))
    return replace(flags, overrides=tuple(recipe)), others


def of_file(config: Config) -> InFile:
    """Settings of a recipe's file for stages; removed from `config`, the recipe as read."""
    of_stages = [name for name in config.macros if "/" in name]
    parameters = [key for key in config.bindings if not key[1].startswith(RECIPE_PATH)]
    found = [
        *(config.macros.pop(name) for name in of_stages),
        *(config.bindings.pop(key) for key in parameters),
    ]
    return InFile(
        [(one.name, to_gin(config.expand(one.value, one.where))) for one in found],
        {one.name: one.where for one in found},
        gin_macros.in_bindings(found),
    )


def spread(
    overrides: Iterable[Override],
    targets: Mapping[str, Target],
    recipe: Collection[str],
    places: Mapping[str, str],
) -> dict[str, list[Given]]:
    """Stage -> what the flags give it.

    Args:
      overrides: of the command line, those that the recipe does not take.
      targets: all stages by name.
      recipe: the macros of the recipe, for suggestions.
      places: name -> where a file sets it, for messages.

    Raises:
      GinError: a flag reaches no stage.
    """
    found: dict[str, list[Given]] = {name: [] for name in targets}
    wrong: list[str] = []
    now = dict(targets)  # a flag may lead to what a later one is about
    for name, text in overrides:
        try:
            where = places.get(name, f"{COMMAND_LINE} --gin.{name}")
            for reached, one in _reached(name, text, now, recipe, where).items():
                found[reached].append(one)
                now[reached] = _with(now[reached], one)
        except GinError as error:
            wrong += error.args
    if wrong:
        raise GinError(*wrong)
    return found


def _reached(
    name: str, text: str, targets: Mapping[str, Target], recipe: Collection[str], where: str
) -> dict[str, Given]:
    """The stages that one flag reaches."""
    scope, selector, parameter = config_parser.parse_binding_key(name)
    stage, _, rest = scope.partition("/")
    if not parameter:  # `split` leaves only those of a stage
        if stage not in targets or rest:
            raise GinError(f"{where}: no stage {scope!r}{closest(scope, targets)}")
        macro = renames.macro(selector, where)
        return {stage: _macro(macro, text, targets[stage], where, recipe)}
    chosen, scope = ({stage: targets[stage]}, rest) if stage in targets else (targets, scope)
    prefix = f"{scope}/" if scope else ""
    return _parameter(f"{prefix}{selector}.{parameter}", text, chosen, where)


def apply(
    recipe: Recipe,
    overrides: Sequence[Override],
    macros: Collection[str],
    paths: Collection[str],
    command: Callable[[Stage], gin_checks.Flags],
    places: Mapping[str, str],
) -> Recipe:
    """A recipe with what the command line gives its stages.

    Args:
      recipe: as it was read.
      overrides: of the file and the command line, those that the recipe does not take.
      macros: those of the recipe, for suggestions.
      paths: macros that are inputs.
      command: the command line of a stage, without the overrides.
      places: name -> where a file sets it, for messages.

    Raises:
      GinError: all flags that reach no stage, or whose value cannot be scaled.
    """
    if not overrides:
        return recipe
    targets = {
        item.name: Target(
            command(item),
            item.job,
            {*item.inputs, *item.bindings, *item.scaled},
        )
        for item in (*recipe.stages, *recipe.companions)
    }
    given = spread(overrides, targets, macros, places)
    return replace(
        recipe,
        stages=tuple(changed(one, given[one.name], paths, places) for one in recipe.stages),
        companions=tuple(changed(one, given[one.name], paths, places) for one in recipe.companions),
    )


def changed(
    stage: One, given: Iterable[Given], paths: Collection[str], places: Mapping[str, str]
) -> One:
    """A stage or companion of a recipe with what the command line gives it.

    Args:
      stage: as the recipe describes it.
      given: of `spread`.
      paths: macros that are inputs.
      places: name -> where a file sets it, for messages.
    """
    tables = {name: dict(getattr(stage, name)) for name in ("inputs", "scaled", "bindings")}
    for one in given:
        places_of = (places.get(name) for name in (one.name, f"{stage.name}/{one.name}"))
        where = next(filter(None, places_of), f"{COMMAND_LINE} --gin.{one.name}")
        value = override_value(one.text, None, where)
        table = next((name for name in tables if one.name in tables[name]), "bindings")
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if table == "scaled" and not whole:
            raise GinError(
                f"{where}: {one.name}, which the budget scales, must be int and 0 or more, found "
                f"{value!r}."
            )
        if table == "bindings" and one.name in paths:
            table = "inputs"
        for name in one.instead_of:
            for other in tables.values():
                other.pop(name, None)
        tables[table][one.name] = value
    return replace(
        stage, inputs=tables["inputs"], scaled=tables["scaled"], bindings=tables["bindings"]
    )


def _macro(name: str, text: str, target: Target, where: str, recipe: Collection[str]) -> Given:
    """What a flag gives the stage that it names, whose gin files or bindings refer to the macro."""
    if name == FOLDER_MACRO:
        raise GinError(f"{where}: a recipe's stages write under its folder: set --gin.RUN_DIR=PATH")
    known = {*gin_macros.in_use(_of_files(target).read()), *target.bound}
    if name not in known:
        names = {one for one in {*known, *recipe} if one.isupper()}
        raise GinError(
            f"{where}: macro {name} is set, but nothing refers to %{name}{closest(name, names)}"
        )
    return _without_lost_macros(Given(name, text, (name,)), target)


def _parameter(name: str, text: str, targets: Mapping[str, Target], where: str) -> dict[str, Given]:
    """The stages that lead to something with a parameter."""
    found: dict[str, Given] = {}
    hints: list[str] = []
    for stage, target in targets.items():
        scope, path, parameter = _key(name, target)
        config = target.flags.read()
        if path in gin_checks.targets(config, (RUN, target.job)):
            known = signatures.signature(path).parameters
            if known and parameter not in known:
                hints.append(
                    f"{'.'.join(path.split('.')[-2:])} has no parameter {parameter!r}"
                    f"{closest(parameter, known)}"
                )
                continue
            key = (scope, path, parameter)
            same = tuple(one for one in target.bound if "." in one and _key(one, target) == key)
            found[stage] = _without_lost_macros(Given(name, text, same), target)
    if not found and hints:
        raise GinError(f"{where}: {hints[0]}")
    if not found:
        raise GinError(
            f"{where}: {name} is set, but no stage leads to it{closest(name, _names(targets))}"
        )
    return found


def _without_lost_macros(given: Given, target: Target) -> Given:
    """The same, also in place of the macros of the recipe that only the old value referred to."""
    before = gin_macros.in_use(target.flags.read())
    after = gin_macros.in_use(_with(target, given).flags.read())
    lost = tuple(name for name in target.bound if name in before - after)
    return replace(given, instead_of=(*given.instead_of, *lost))


def _with(target: Target, given: Given) -> Target:
    gone = {given.name, *given.instead_of}
    kept = tuple(pair for pair in target.flags.overrides if pair[0] not in gone)
    flags = replace(target.flags, overrides=(*kept, (given.name, given.text)))
    return replace(target, flags=flags)


def _of_files(target: Target, *overrides: Override) -> gin_checks.Flags:
    return replace(target.flags, overrides=overrides)


def _key(name: str, target: Target) -> tuple[str, str, str]:
    """(scope, dotted path, parameter) that a name resolves to after a stage's gin files."""
    config = _of_files(target, (name, "None")).read()
    where = f"{COMMAND_LINE} --gin.{name}"
    return next(key for key, one in config.bindings.items() if one.where == where)


def _names(targets: Mapping[str, Target]) -> set[str]:
    """Names that stages bind already, as users would write them."""
    return {
        binding.name
        for target in targets.values()
        for binding in target.flags.read().bindings.values()
    }
