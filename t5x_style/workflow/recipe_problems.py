"""Gather all errors of a recipe into one message, with the places of their values."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from t5x_style.configuration import compared_systems, gin_checks
from t5x_style.configuration.gin_reader import COMMAND_LINE, Binding, Config, GinError, Macro
from t5x_style.workflow.fingerprints import InputError
from t5x_style.workflow.plans import Plan
from t5x_style.workflow.recipe_stage import RecipeError, Stage

# A refusal of a value: "@module.name: what is wrong (where it is bound)".
_REFUSAL = re.compile(r"(@\S+: )(.*?) \(((?:bound at |\w+ = ).*)\)", re.DOTALL)
_SHOWN = 3  # places of a problem


@dataclasses.dataclass
class _Problem:
    """Place of one error.

    Attributes:
      lead: what first refused it.
      stages: names of stages, in order.
      places: where it is bound, which differs between stages.
    """

    lead: str
    stages: dict[str, None] = dataclasses.field(default_factory=dict)
    places: dict[str, None] = dataclasses.field(default_factory=dict)

    def text(self, said: str) -> str:
        places = list(filter(None, self.places))
        more = [f"and {len(places) - _SHOWN} more"] if len(places) > _SHOWN else []
        where = f" ({'; '.join([*places[:_SHOWN], *more])})" if places else ""
        return f"{_named(list(self.stages))}: {self.lead}{said}{where}"


class Problems:
    """Errors, each with the stages in which it was found.

    Attributes:
      without_plan: stages whose problems left them without a plan.
    """

    def __init__(self, config: Config):
        """Args:
        config: the recipe, read.
        """
        self._config = config
        self._found: dict[str, _Problem] = {}
        self.without_plan: set[str] = set()

    def add(self, stage: str, texts: Iterable[str]) -> None:
        """Notes what is wrong with a stage."""
        for text in texts:
            lead, said, places = _parts(in_recipe(text, stage, self._config))
            problem = self._found.setdefault(said, _Problem(lead))
            problem.stages.setdefault(stage)
            problem.places.setdefault(places)

    def plan(self, stage: str, make: Callable[[], Plan]) -> Plan | None:
        """Result of `make`, or None, with the problems of names and of inputs noted."""
        try:
            return make()
        except (GinError, InputError) as error:
            self.add(stage, map(str, error.args))
            if isinstance(error, GinError):
                self.without_plan.add(stage)
            return None

    def names(self, item: Stage, flags: gin_checks.Flags) -> None:
        """Notes what is wrong with the names of a companion, which has no plan."""
        try:
            gin_checks.check_names(flags.read(), (item.job,))
        except GinError as error:
            self.add(item.name, error.args)
            self.without_plan.add(item.name)

    def refuse(self) -> None:
        """Raises RecipeError if there is a problem; the message holds all of them."""
        if not self._found:
            return
        lines = [problem.text(said) for said, problem in self._found.items()]
        if len(lines) == 1:
            raise RecipeError(f"{lines[0]}\nNothing was run.")
        numbered = [f"{number}. {line}" for number, line in enumerate(lines, 1)]
        raise RecipeError("\n".join([f"{len(lines)} problems; nothing was run.", *numbered]))


def _parts(text: str) -> tuple[str, str, str]:
    """Split a message into what refused a value, the error, and its place; the first and the last
    are "" of other problems.

    >>> _parts("@bert.BertConfig: heads must be 1 or more (heads = 0 at a.gin:3)")
    ('@bert.BertConfig: ', 'heads must be 1 or more', 'heads = 0 at a.gin:3')
    """
    found = _REFUSAL.fullmatch(text)
    return (found[1], found[2], found[3]) if found else ("", text, "")


def _named(stages: list[str]) -> str:
    """The stages of a problem, in words.

    >>> _named(["a"]), _named(["a", "b", "c", "d", "e"])
    ('Stage a', 'Stages a, b, c and 2 more')
    """
    if len(stages) == 1:
        return f"Stage {stages[0]}"
    rest = f" and {len(stages) - 3} more" if len(stages) > 3 else ""
    return f"Stages {', '.join(stages[:3])}{rest}"


def in_recipe(text: str, stage: str, config: Config) -> str:
    """A problem of a stage, with the recipe's places and flags in place of the stage's.

    What a recipe binds reaches a stage as its command line. The user wrote it in the recipe, or on
    the command line of the recipe, perhaps as a macro of another name.

    Args:
      text: the problem.
      stage: its name.
      config: the recipe, read.
    """
    known = origins(stage, config)
    by_name = {
        one.name: one.where
        for one in (*config.macros.values(), *config.bindings.values())
        if one.where.startswith(COMMAND_LINE) or "/" in one.name or one.text
    }

    def place(found: re.Match[str]) -> str:
        for name in (found[1], f"{stage}/{found[1]}"):
            if name in by_name:
                return by_name[name]
        return known.get(found[1], (found[0], ""))[0]

    def flag(found: re.Match[str]) -> str:
        return f"--gin.{known.get(found[1], ('', ''))[1] or f'{stage}/{found[1]}'}="

    text = re.sub(rf"(?<!{COMMAND_LINE} )--gin\.([\w./]+)=", flag, text)
    return re.sub(rf"{COMMAND_LINE} --gin\.([\w./]+)", place, text)


def origins(stage: str, config: Config) -> dict[str, tuple[str, str]]:
    """Name that a recipe binds for a stage -> where, and the recipe's macro that it follows or "".

    Args:
      stage: its name.
      config: the recipe, read.
    """
    found = {name: (macro.where, name) for name, macro in config.macros.items()}
    of_recipe = [one for one in config.bindings.values() if one.target.startswith("launch.recipe.")]
    shared = [one for one in of_recipe if not one.scope]
    own = [one for one in of_recipe if one.scope == stage and not one.target.endswith(".Kind")]
    for binding in (*shared, *_of_kinds(own, of_recipe), *own):
        if binding.parameter == "systems":
            found[compared_systems.SYSTEMS] = (binding.where, "")
        else:
            _walk(binding.value, binding.where, config.macros, found)
    return found


def _of_kinds(own: list[Binding], of_recipe: list[Binding]) -> list[Binding]:
    """Bindings of the kind that a stage names, after those of that one's kind."""
    kind = next((one.value for one in own if one.parameter == "kind"), None)
    named = [one for one in of_recipe if one.scope == kind and one.target.endswith(".Kind")]
    return [*_of_kinds(named, of_recipe), *named] if named else []


def _walk(
    value: Any, where: str, macros: Mapping[str, Binding], found: dict[str, tuple[str, str]]
) -> None:
    """Adds the keys of dictionaries, which may be macros or in lists."""
    if isinstance(value, Macro) and value.name in macros:
        _walk(macros[value.name].value, macros[value.name].where, macros, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _walk(item, where, macros, found)
    elif isinstance(value, dict):
        for name, item in value.items():
            place, macro = where, ""
            while isinstance(item, Macro) and item.name in macros:
                place, macro, item = macros[item.name].where, item.name, macros[item.name].value
            found[str(name)] = (place, macro)
