"""Systems to compare, as one dictionary; each gets bindings in a scope of its name.

    SYSTEM_KINDS = {'model': @retrieval_systems.exact_search(), 'bm25': @retrieval_systems.Bm25()}
    evaluate.evaluate.systems = %SYSTEMS
    restored_model.load.checkpoint = %CHECKPOINT

    SYSTEMS = {
        'bm25': 'bm25',                                         # a kind
        'mine': 'runs/mine/retriever',                          # a model: its CHECKPOINT
        'other': {'CHECKPOINT': %OTHER, 'POOLING': 'mean'},     # macros, or any parameter
        'bag': {'CHECKPOINT': 'runs/bag', 'gin_files': ['gin_configs/models/bag.gin']},
        'both': {'kind': 'fusion', 'FIRST': 'mine'},
    }

A system is the stage's configuration with other values: what it is made of and differs is written
as `other/text_embedding.EmbeddingConfig.pooling = 'mean'`, its parameter `name` among it, and
SYSTEMS becomes the list of the references `@other/retrieval_systems.exact_search()`. What a system
sets an input to (`input_macros`) is an input: that of a path is called like the system, in capital
letters (MINE), or `MINE_INDEX` for others than CHECKPOINT.

What files bind for kinds that no system has is left out, as are inputs that nothing refers to.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from t5x_style.configuration import input_macros, reach
from t5x_style.configuration.gin_macros import in_bindings
from t5x_style.configuration.gin_reader import (
    COMMAND_LINE,
    RUN,
    Binding,
    Config,
    GinError,
    Macro,
    Reference,
    closest,
    leaves,
    to_gin,
    transform,
)
from t5x_style.configuration.system_differences import Differences

SYSTEMS, KINDS = "SYSTEMS", "SYSTEM_KINDS"
CHECKPOINT = "CHECKPOINT"
MODEL = "model"  # the kind of a system that names none
WORDS = ("kind", "gin_files")  # in a system's dictionary, apart from macros and parameters
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NO_KEY = (
    "no macro (in capital letters), no parameter (module.name.parameter) and none of "
    f"{', '.join(WORDS)}"
)
# Parameters whose values name systems
NAMING = {
    ("t5x_style.evaluation.hybrid_search.HybridPart", "of"),
    ("t5x_style.evaluate.evaluate", "baseline"),
    ("t5x_style.evaluate.evaluate", "compared"),
    ("t5x_style.evaluate_bitext.evaluate_bitext", "pictured"),
    ("t5x_style.evaluation.retrieval_systems.Fusion", "first"),
    ("t5x_style.evaluation.retrieval_systems.Fusion", "second"),
    ("t5x_style.evaluation.retrieval_systems.Reranker", "base"),
}
# Further files, further overrides -> the stage's configuration with them, systems not yet expanded
Read = Callable[[Sequence[str], Sequence[tuple[str, str]]], Config]


def macro_of(name: str, setting: str = CHECKPOINT) -> str:
    """The macro that is an input of the stage, for what a system sets.

    >>> macro_of("mine"), macro_of("mine", "INDEX"), macro_of("mine", "published_index.load.folder")
    ('MINE', 'MINE_INDEX', 'MINE_FOLDER')
    """
    start = name.replace("-", "_").upper()
    return start if setting == CHECKPOINT else f"{start}_{setting.rpartition('.')[2].upper()}"


def expand(config: Config, read: Read) -> None:
    """Writes the systems of a configuration into its bindings, in place.

    What is wrong with them is added to `config.problems`, for `gin_checks.check_names`.

    Args:
      config: a stage's, as it was read; unchanged if it has no SYSTEM_KINDS.
      read: reads the same stage with further files and overrides.
    """
    kinds = config.macros.pop(KINDS, None)
    if kinds is None:
        return
    used = Macro(SYSTEMS) in _leaves(config.bindings.values())
    value = _resolved(config, Macro(SYSTEMS)) if used else None
    if isinstance(value, Macro):
        return  # nobody says which systems: `check_names` asks for them
    if isinstance(value, dict):
        _Expansion(config, kinds, read).add(value)
    if not config.problems:
        _leave_out(config, kinds)


def _resolved(config: Config, value: Any) -> Any:
    """Return the value of a macro, or the macro itself where nothing sets it."""
    seen: set[str] = set()
    while isinstance(value, Macro) and value.name in config.macros and value.name not in seen:
        seen.add(value.name)
        value = config.macros[value.name].value
    return value


def _leaves(bindings: Iterable[Binding]) -> list[Any]:
    return [leaf for binding in bindings for leaf in leaves(binding.value)]


@dataclass(frozen=True)
class _System:
    """Entry of the dictionary for one system.

    Attributes:
      key: its name as the dictionary has it, which may be a macro.
      root: what it is.
      files: gin files that hold for it alone.
      macros, parameters: what it sets, by name.
    """

    name: str
    key: Any
    root: Reference
    files: tuple[str, ...] = ()
    macros: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)


class _Expansion:
    """Adds systems to a configuration."""

    def __init__(self, config: Config, kinds: Binding, read: Read):
        self.config, self.read = config, read
        self.kinds: Mapping[str, Reference] = kinds.value
        self.base = replace(config, bindings=dict(config.bindings), macros=dict(config.macros))
        self.where = config.macros[SYSTEMS].where
        listed = config.bindings.get(("", RUN, "inputs"))
        more = [one.name for one in listed.value] if listed else []
        self.inputs = {*input_macros.NAMES, *more}
        self.asked = {CHECKPOINT}  # inputs that any system sets: all that refer to them need one

    def add(self, given: Mapping[Any, Any]) -> None:
        """Writes all systems, or notes what is wrong with them."""
        references: list[Reference] = []
        names: dict[str, str] = {}
        own: set[str] = set()  # macros that systems set
        for said in given.values():
            inside = _resolved(self.config, said)
            self.asked |= self.inputs & inside.keys() if isinstance(inside, dict) else set()
        for key, said in given.items():
            name = _resolved(self.config, key)
            try:
                self._check_name(name, names)
                names[macro_of(name)] = name
                system = self._system(name, key, said)
                own |= system.macros.keys()
                references.append(self._write(system))
            except GinError as error:
                where = f"{self.where}: system {name!r}"
                self.config.problems += [f"{where}: {text}" for text in error.args]
        if self.config.problems:  # as it was, but for these
            self.config.bindings, self.config.macros = self.base.bindings, self.base.macros
            return
        binding = self.config.macros[SYSTEMS]
        self.config.macros[SYSTEMS] = replace(binding, value=references)
        self._drop_shared(own)
        self.config.problems += _unknown_names(self.config, names.values())

    def _check_name(self, name: Any, names: Mapping[str, str]) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise GinError("its name must be letters, digits, '_' and '-', a letter first.")
        if (other := names.get(macro_of(name))) is not None:
            raise GinError(f"{other!r} is the same name; change one of them.")

    def _system(self, name: str, key: Any, said: Any) -> _System:
        """A system, from any of the forms in which it may be said."""
        inside = _resolved(self.config, said)
        if isinstance(inside, Reference):
            return _System(name, key, inside)
        if isinstance(inside, str) and inside in self.kinds:
            return _System(name, key, self.kinds[inside])
        if not isinstance(inside, dict):
            inside = {CHECKPOINT: said}
        kind = _resolved(self.config, inside.get("kind", MODEL))
        if kind not in self.kinds:
            raise GinError(f"no kind {kind!r}{closest(str(kind), self.kinds)}")
        files = _resolved(self.config, inside.get("gin_files", ()))
        if not isinstance(files, list | tuple):
            raise GinError(f"gin_files must be a list, found {files!r}.")
        settings = {
            what: value
            for what, value in inside.items()
            if what not in WORDS and value != Macro(what)  # %CHECKPOINT is that of the stage
        }
        for what in settings:
            if not isinstance(what, str) or not (what.isupper() or "." in what):
                hint = closest(str(what).upper(), self._macros())
                raise GinError(f"{what!r} is {_NO_KEY}{hint}")
        return _System(
            name,
            key,
            self.kinds[kind],
            tuple(self.config.expand(files, self.where)),
            {
                what: self._input(name, what, one)
                for what, one in settings.items()
                if "." not in what
            },
            {what: one for what, one in settings.items() if "." in what},
        )

    def _input(self, name: str, key: str, value: Any) -> Any:
        """Value that a system sets a macro to; for a path of an input, a macro that becomes one."""
        if key not in self.inputs or isinstance(value, Macro) or not value:
            return value
        macro = macro_of(name, key)
        if macro in self.base.macros or macro in in_bindings(self.base.bindings.values()):
            raise GinError(
                f"its {key} would be macro {macro}, which the stage has already; choose another "
                "name."
            )
        binding = Binding("", "", "", macro, value, self.where)
        self.config.macros[macro] = self.base.macros[macro] = binding
        return Macro(macro)

    def _macros(self) -> set[str]:
        return {*in_bindings(self.base.bindings.values()), *self.base.macros, "KIND", "GIN_FILES"}

    def _write(self, system: _System) -> Reference:
        """Adds what a system is made of and differs; its reference."""
        own, parameters = self._configuration(system)
        scope = system.name.replace("-", "_")
        found = Differences(self.base, own, scope, self.where, system.macros.keys())
        reference = found.of(system.root)
        self._check_use(system, own, found, parameters)
        for key, binding in found.bindings.items():
            self.config.bindings.setdefault(key, binding)
        for name, macro in found.macros.items():
            self.config.macros[name] = self.base.macros[name] = macro
        self.config.imports += [one for one in own.imports if one not in self.config.imports]
        none = Binding("", "stage.run", RUN, "inputs", [], self.where)
        known = self.config.bindings.get(("", RUN, "inputs"), none)
        listed = [one for key, one in system.macros.items() if key in self.inputs]
        value = [*known.value, *(one for one in listed if one not in known.value)]
        if value:
            self.config.bindings["", RUN, "inputs"] = replace(known, value=value)
        return reference

    def _configuration(self, system: _System) -> tuple[Config, dict[str, Binding]]:
        """The stage's configuration for one system, and its parameters by name."""
        texts = [(key, to_gin(value)) for key, value in system.parameters.items()]
        own = replace(self.base, bindings=dict(self.base.bindings), macros=dict(self.base.macros))
        if system.files or texts:
            own = self.read(system.files, texts)
            own.macros = self.base.macros | own.macros
        labels = {f"{COMMAND_LINE} --gin.{key}": key for key in system.parameters}
        parameters: dict[str, Binding] = {}
        for key, binding in own.bindings.items():
            if binding.where in labels:
                own.bindings[key] = replace(binding, where=self.where)
                parameters[labels[binding.where]] = own.bindings[key]
        for name, value in system.macros.items():
            own.macros[name] = Binding("", "", "", name, value, self.where)
        root = system.root
        own.bindings["", root.target, "name"] = Binding(
            "", root.text, root.target, "name", system.key, self.where
        )
        return own, parameters

    def _check_use(
        self, system: _System, own: Config, found: Differences, parameters: Mapping[str, Binding]
    ) -> None:
        """Refuses what a system sets in vain, and inputs that it lacks."""
        wrong = [
            f"nothing of it refers to %{name}{closest(name, found.met)}"
            for name in system.macros.keys() - found.met
        ]
        names = {one.name for one in own.bindings.values() if one.target in found.targets()}
        wrong += [
            f"nothing of it leads to {name}{closest(name, names - parameters.keys())}"
            for name, binding in parameters.items()
            if binding.target not in found.targets()
        ]
        wrong += [
            f"it lacks {name}: write {{'{name}': PATH}}."
            for name in sorted(self.asked & found.met)
            if (name not in own.macros or own.macros[name].value in (None, ""))
        ]
        if wrong:
            raise GinError(*wrong)

    def _drop_shared(self, own: Collection[str]) -> None:
        """Removes what has a value in the scopes of systems alone."""
        lost = {name for name in own if name not in self.config.macros}
        for key, binding in list(self.config.bindings.items()):
            if key[1:] != (RUN, "inputs") and any(
                isinstance(one, Macro) and one.name in lost
                for one in reach.through_macros(self.config, binding.value)
            ):
                self.config.overridden.append(self.config.bindings.pop(key))


def _unknown_names(config: Config, names: Collection[str]) -> Iterator[str]:
    """Values that should name systems and do not."""
    for (_, target, parameter), binding in config.bindings.items():
        if (target, parameter) not in NAMING:
            continue
        value, where = binding.value, binding.where
        while isinstance(value, Macro) and value.name in config.macros:
            value, where = config.macros[value.name].value, config.macros[value.name].where
        value = transform(value, lambda leaf: _resolved(config, leaf))
        if parameter == "pictured":  # (system, task)
            value = [pair[0] for pair in value]
        for name in leaves(value):
            if isinstance(name, str) and name not in names:
                yield f"{where}: {binding.name}: no system {name!r}{closest(name, names)}"


def _leave_out(config: Config, kinds: Binding) -> None:
    """Removes what files bind for kinds that nothing refers to."""
    roots = [one for one in leaves(kinds.value) if isinstance(one, Reference)]
    reached = reach.from_calls(config, [(RUN, "")])[0]
    lost = reach.from_calls(config, [(one.target, one.scope) for one in roots])[0] - reached
    for key, binding in list(config.bindings.items()):
        if key in lost and not binding.where.startswith(COMMAND_LINE):
            config.overridden.append(config.bindings.pop(key))
    inputs = config.bindings.pop(("", RUN, "inputs"), None)
    if inputs is not None:
        met = in_bindings((*config.bindings.values(), *config.macros.values()))
        kept = [one for one in inputs.value if one.name in {*met, *config.macros}]
        config.bindings["", RUN, "inputs"] = replace(inputs, value=kept)
