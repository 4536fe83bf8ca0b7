"""The statements of one gin file or command line, with old names resolved to the current ones.

Nothing is executed: gin's own parser yields statements, and what they refer to is a dotted path.
"""

import functools
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gin import config_parser

from t5x_style.configuration import gin_parser, module_names, rename_tables, renames
from t5x_style.configuration.gin_parser import GinError

Include = tuple[str, str]  # a file's name, and where it is included
Key = tuple[str, str, str]  # scope, target and parameter


@dataclass(frozen=True)
class Macro:
    """`%NAME` inside a value."""

    name: str


@dataclass(frozen=True)
class Reference:
    """`@scope/module.thing` or, with `call`, `@scope/module.thing()` inside a value.

    `target` is the absolute dotted path (`models.objectives.retromae.RetroMAE`), or "" when the
    file that holds the reference imports nothing of that name and no module has it.
    """

    text: str
    scope: str
    target: str
    call: bool


@dataclass(frozen=True)
class Binding:
    """`scope/target.parameter = value`; a macro has only a `parameter`, its name."""

    scope: str
    text: str
    target: str
    parameter: str
    value: Any
    where: str

    @property
    def name(self) -> str:
        """The name as the user wrote it: `train.train.steps`, `STEPS`."""
        prefix = f"{self.scope}/" if self.scope else ""
        return f"{prefix}{self.text}.{self.parameter}" if self.text else prefix + self.parameter


@dataclass(frozen=True)
class Import:
    """A module that a gin file uses: `symbol` is the name it binds, `path` what that name means.

    `module` and `path` are present names, see `renames`; `module_names` says what needs no import.
    """

    module: str
    symbol: str
    path: str
    where: str


class Delegate(config_parser.ParserDelegate):
    """Turns references into our dataclasses, resolving names with one file's imports.

    `renamed`: (old, present) name of what was met since it was last emptied; `named`: symbols of
    modules that were met without an import.
    """

    def __init__(self, symbols: dict[str, str]):
        self.symbols = symbols
        self.renamed: list[tuple[str, str]] = []
        self.named: list[str] = []

    def resolve(self, text: str) -> str:
        """`prepare.prepare` -> `input_pipelines.store.prepare.prepare`; "" when nobody knows it."""
        head, _, rest = text.partition(".")
        if head not in self.symbols:
            if head not in module_names.paths():
                return ""
            self.symbols[head] = module_names.paths()[head]
            self.named.append(head)
        return self.present(".".join(filter(None, (self.symbols[head], rest))))

    def present(self, path: str) -> str:
        found = renames.present(path)
        if found != path:
            self.renamed.append((path, found))
        return found

    def present_macro(self, name: str) -> str:
        scope, _, last = name.rpartition("/")
        found = rename_tables.MACROS.get(last, last)
        if found != last:
            self.renamed.append((last, found))
        return f"{scope}/{found}" if scope else found

    def note(self, where: str) -> None:
        """Says which names have changed, at the place where they were met."""
        for old, new in self.renamed:
            renames.note(where, old, new)
        self.renamed.clear()

    def met(self, where: str) -> list[Import]:
        """Modules named without an import; not an old one whose contents are in several now."""
        modules = [renames.present(self.symbols[symbol]) for symbol in self.named]
        self.named.clear()
        return [
            Import(module, name, module, where)
            for module in modules
            if (name := module.rpartition(".")[2]) in module_names.paths()
        ]

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        scope, _, text = scoped_configurable_name.rpartition("/")
        return Reference(text, scope, self.resolve(text), evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(self.present_macro(macro_name))


def parse_value(text: str, delegate: Delegate | None = None) -> Any:
    """Parses one gin value; raises SyntaxError when `text` is not exactly one value."""
    parser = gin_parser.Parser(text, delegate or Delegate({}))
    value = parser.parse_value()
    rest = parser.current_token.string.strip()
    if rest:
        raise SyntaxError(f"{rest!r} is left over after a value")
    return value


@functools.lru_cache(maxsize=4096)
def items(
    text: str, label: str, allowed: tuple[str, ...]
) -> tuple[Import | Binding | Include, ...]:
    """Statements of a file in order; parsed once, since the stages of a recipe share most files.

    Args:
      text: of the file.
      label: what is put before the line number in messages.
      allowed: top-level modules that it may import.

    Returns:
      shared by all who read the file: no value is changed in place.

    Raises:
      GinError: a syntax error, a forbidden import, a name that is bound twice or is gone.
    """
    found: list[Import | Binding | Include] = []
    seen: dict[Key, Binding] = {}
    delegate = Delegate({"gin": "gin"})  # dynamic registration, whether a file says so or not
    for statement in gin_parser.statements(text, delegate, label):
        where = f"{label}:{statement.location.line_num}"
        if isinstance(statement, config_parser.ImportStatement):
            found += _import(statement, delegate, allowed, where)
        elif isinstance(statement, config_parser.IncludeStatement):
            found.append((statement.filename, where))
        elif isinstance(statement, config_parser.BindingStatement):
            found.append(bound(statement, delegate, seen, where))
        found += delegate.met(where)
        delegate.note(where)
    return tuple(found)


def _import(
    statement: config_parser.ImportStatement,
    delegate: Delegate,
    allowed: Sequence[str],
    where: str,
) -> list[Import]:
    if statement.module == "__gin__.dynamic_registration":
        return []
    if statement.module.split(".")[0] not in allowed:
        raise GinError(
            f"{where}: a gin file may not import {statement.module!r}; allowed are "
            f"{', '.join(allowed)}. If you trust that code, pass "
            f"--gin_allow={statement.module.split('.')[0]}."
        )
    symbol = statement.bound_name()
    whole = statement.is_from or statement.alias
    module = delegate.present(statement.module)
    path = module if whole else statement.module.split(".")[0]
    delegate.symbols[symbol] = path
    if whole and symbol == statement.module.rpartition(".")[2]:
        symbol = module.rpartition(".")[2]  # other files know the module by its present name
    return [Import(module, symbol, path, where)]


def key_of(binding: Binding) -> Key:
    """Key of a binding; a later binding of the same key replaces it."""
    return (binding.scope, binding.target or binding.text, binding.parameter)


def bound(
    statement: config_parser.BindingStatement,
    delegate: Delegate,
    seen: dict[Key, Binding],
    where: str,
) -> Binding:
    """One binding or macro.

    Args:
      statement: as gin parsed it.
      delegate: that the parser had.
      seen: bindings of the same file so far; it is added.
      where: in messages.

    Raises:
      GinError: the name is bound twice in one file, or is gone.
    """
    text, parameter = statement.selector, statement.arg_name
    if not parameter:
        text, parameter = "", delegate.present_macro(statement.selector)
    target = delegate.resolve(text) if text else ""
    if target and (present := renames.parameter(target, parameter)) != parameter:
        delegate.renamed.append((f"{text}.{parameter}", f"{text}.{present}"))
        parameter = present
    if target and (instead := renames.instead(target, parameter)):
        raise GinError(f"{where}: {text}.{parameter} is gone; write instead {instead}.")
    binding = Binding(statement.scope, text, target, parameter, statement.value, where)
    key = key_of(binding)
    if key in seen:
        raise GinError(
            f"{where}: {binding.name} is already bound at {seen[key].where}. Keep one of them "
            "(a later --gin_file or --gin.NAME=VALUE may override it)."
        )
    seen[key] = binding
    return binding


def override_value(text: str, delegate: Delegate | None, where: str) -> Any:
    """Reads VALUE of `--gin.NAME=VALUE`: a gin value, or else the bare text itself.

    >>> override_value("3", None, ""), override_value("runs/mine", None, "")
    (3, 'runs/mine')
    """
    try:
        return parse_value(text, delegate)
    except (SyntaxError, tokenize.TokenError) as error:
        if text[:1] in tuple("%@\"'[({"):
            raise GinError(f"{where}: {text!r} is not a gin value: {error.args[0]}") from error
        return text
