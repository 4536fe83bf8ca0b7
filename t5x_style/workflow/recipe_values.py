"""Values that the stages of a recipe take from it: macros, and outputs of other stages.

One rule: what a stage's gin files refer to, and the stage does not set, has the recipe's value. The
recipe's value of NAME is that of `recipe.run.macros` or `recipe.run.inputs`, or else its macro
NAME, or else that of `recipe.run.defaults`; where there is none, the gin files' own holds.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from t5x_style.configuration import gin_checks, gin_macros, rename_tables, renames
from t5x_style.configuration.gin_reader import (
    COMMAND_LINE,
    FOLDER_MACRO,
    Config,
    Macro,
    closest,
    leaves,
    to_gin,
    transform,
)
from t5x_style.workflow import stages

SETTINGS = {"RUN_DIR", "BUDGET", "CPU_DEVICES"}  # macros that `recipe.run` reads by itself


@dataclass(frozen=True)
class Output:
    """`%stage.name` in a recipe: what another stage returns under that name."""

    stage: str
    name: str

    def __str__(self) -> str:
        return f"%{self.stage}.{self.name}"


def mark_outputs(config: Config) -> None:
    """Turns `%stage.name` into `Output`, in place."""

    def leaf(item: Any) -> Any:
        if isinstance(item, Macro) and "." in item.name and not item.name.startswith("gin."):
            return Output(*item.name.split(".", 1))
        return item

    for key, binding in config.bindings.items():
        config.bindings[key] = replace(binding, value=transform(binding.value, leaf))
    for name, macro in config.macros.items():
        config.macros[name] = replace(macro, value=transform(macro.value, leaf))


def rename_files(config: Config) -> None:
    """Turns old names of macros that name gin files into the present ones, in place.

    Such a name may be another macro of a stage, so its value decides, and where it is used.
    """
    for old, new in rename_tables.RECIPE_FILES.items():
        macro = config.macros.get(old)
        if macro is not None and str(macro.value).endswith(".gin"):
            renames.note(macro.where, old, new)
            config.macros[new] = replace(config.macros.pop(old), parameter=new)

    def leaf(item: Any) -> Any:
        if isinstance(item, Macro):
            return Macro(rename_tables.RECIPE_FILES.get(item.name, item.name))
        return item

    def key(item: Any) -> Any:
        return rename_tables.RECIPE_FILES.get(item, item) if isinstance(item, str) else leaf(item)

    for name, binding in config.bindings.items():
        if binding.parameter in ("gin_files", "files"):
            change = leaf if binding.parameter == "gin_files" else key
            config.bindings[name] = replace(binding, value=transform(binding.value, change))


def joined(value: Any) -> Any:
    """One dictionary in place of a list of them, of which later ones win; all else unchanged.

    >>> joined([{"a": 1}, {"b": 2}]), joined(["a", "b"])
    ({'a': 1, 'b': 2}, ['a', 'b'])
    """
    if not isinstance(value, list | tuple) or not value:
        return value
    if not all(isinstance(part, Mapping) for part in value):
        return value
    return {name: one for part in value for name, one in part.items()}


def outputs_in(value: Any) -> list[Output]:
    """The outputs in a value, nested ones too."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Output)]


def overrides(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Values as a command line has them; outputs, which have no path yet, by their name."""

    def text(leaf: Any) -> Any:
        return str(leaf) if isinstance(leaf, Output) else leaf

    return tuple((name, to_gin(transform(value, text))) for name, value in values.items())


def _is_in(where: str, files: Sequence[str]) -> bool:
    """Whether something is set in one of these files, or on the command line."""
    paths = [f"{path}:" for path in map(str, files)]
    return where.startswith(COMMAND_LINE) or any(
        where.startswith(path) or where.endswith(path) or f"/{path}" in where for path in paths
    )


@dataclass
class Given:
    """Values that a recipe holds for its stages.

    Attributes:
      config: of the recipe, with `Output`s.
      macros, inputs, defaults, paths: `recipe.run.macros` and so on.
    """

    config: Config
    macros: Mapping[str, Any]
    inputs: Mapping[str, Any]
    defaults: Mapping[str, Any]
    paths: Set[str]
    _taken: set[str] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    _set_by: dict[str, list[str]] = field(default_factory=dict)
    _parameters: dict[str, str] = field(default_factory=dict)  # its name alone -> as gin has it

    def to(
        self, stage: str, own: Mapping[str, Any], files: Config, flags: gin_checks.Flags
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Values that a stage takes: further inputs, and further bindings.

        Args:
          stage: its name.
          own: what the stage sets itself.
          files: its gin files, unchanged.
          flags: its command line with `own`.
        """
        given = (self.macros, self.inputs, self.config.macros, self.defaults)
        names = {name for values in given for name in values} - {FOLDER_MACRO}
        needed = gin_macros.needed(flags.read(), names - own.keys())
        self._asked |= needed
        for binding in files.bindings.values():
            self._parameters.setdefault(binding.parameter, f"{binding.text}.{binding.parameter}")
        for name in own:
            self._set_by.setdefault(name, []).append(stage)
        paths = self.paths | set(stages.inputs_of(files))
        inputs: dict[str, Any] = {}
        bindings: dict[str, Any] = {}
        for name in sorted((needed & names) - own.keys()):
            value = self._value(name)
            is_input = name in paths or name in self.inputs or bool(outputs_in(value))
            (inputs if is_input else bindings)[name] = value
        self._taken |= {*inputs, *bindings}
        return inputs, bindings

    def taken(self, name: str) -> Any:
        """The value of a macro, which is used thereby; None where nothing sets it."""
        given = (self.macros, self.inputs, self.config.macros, self.defaults)
        if not any(name in values for values in given):
            return None
        self._taken.add(name)
        return self._value(name)

    def _hint(self, name: str, used: Set[str]) -> str:
        """Suggestion for a macro without a use."""
        if name == FOLDER_MACRO:
            return ": a recipe's stages write under its folder: set --gin.RUN_DIR=PATH"
        if stages_that_set := self._set_by.get(name):
            names, one = ", ".join(stages_that_set), stages_that_set[0]
            return f": {names} set it; for one of them --gin.{one}/{name}=VALUE"
        if parameter := self._parameters.get(name.lower()):
            return f"; the parameter of this name is set by --gin.{parameter}=VALUE"
        return closest(name, used | self._asked)

    def _value(self, name: str) -> Any:
        for values in (self.macros, self.inputs):
            if name in values:
                return self.config.expand(values[name], f"recipe.run: {name!r}")
        if name in self.config.macros:
            return self.config.expand(Macro(name), self.config.macros[name].where)
        return self.config.expand(self.defaults[name], f"recipe.run.defaults: {name!r}")

    def unused(self, files: Sequence[str]) -> Iterator[str]:
        """Errors of values that reach no stage, once each stage took what it needs.

        Args:
          files: gin files of the recipe itself. What files that they include set may lose its use,
            where the recipe sets more than they knew of.
        """
        used = gin_macros.in_use(self.config) | self._taken | SETTINGS
        for name, macro in self.config.macros.items():
            if name not in used and _is_in(macro.where, files):
                yield (
                    f"{macro.where}: macro {name} is set, but nothing refers to %{name}"
                    f"{self._hint(name, used)}"
                )
        for name in {*self.macros, *self.inputs} - self._taken:
            yield (
                f"recipe.run: {name!r}: no stage refers to %{name} without setting it"
                f"{closest(name, self._asked)}"
            )
