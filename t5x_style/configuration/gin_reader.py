"""Reads gin files without executing them: no import runs, no configurable is called.

gin executes what it reads, ignores a mistyped macro in silence and lets the last of two equal
bindings win. Here gin's own parser only yields statements; they become one `Config`, in which
every name carries the file and line it came from. `gin_checks` checks it; `workflow.fingerprints`
identifies it; `workflow.recipe_reader` reads recipes with it. Nothing here imports JAX.
"""

import os
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gin import config_parser

from t5x_style.configuration import gin_parser, module_names, rename_tables, renames
from t5x_style.configuration.gin_parser import GinError as GinError
from t5x_style.configuration.python_sources import REPOSITORY as REPOSITORY
from t5x_style.configuration.renamed_files import FILES, GONE, SETTINGS
from t5x_style.configuration.suggestions import closest as closest

ALLOWED = ("t5x_style", "models", "input_pipelines", "gin_configs", "launch")
FOLDER_MACRO = "MODEL_DIR"  # the folder a stage writes; set from outside, known to every file
COMMAND_LINE = "command line"
RUN = "t5x_style.stage.run"  # the configurable that calls a stage's job


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


@dataclass
class Config:
    """What the files and the command line say together; later statements have won.

    `overridden` holds the bindings and macros that lost, `problems` what `gin_checks.check_names`
    refuses before it looks further.
    """

    bindings: dict[tuple[str, str, str], Binding] = field(default_factory=dict)
    macros: dict[str, Binding] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    overridden: list[Binding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def macro(self, name: str, where: str) -> Any:
        """Returns the unexpanded value of macro `name`; unknown names are a `GinError`."""
        if name == "gin.REQUIRED":
            return Macro(name)
        if name not in self.macros:
            hint = "" if name == FOLDER_MACRO else closest(name, self.macros)
            raise GinError(f"{where}: %{name} has no value: pass --gin.{name}=VALUE{hint}")
        return self.macros[name].value

    def expand(self, value: Any, where: str, keep: Iterable[str] = (), _open: tuple = ()) -> Any:
        """Replaces macros inside `value` by their values, but for the names in `keep`."""

        def leaf(item: Any) -> Any:
            if not isinstance(item, Macro) or item.name in keep or item.name == "gin.REQUIRED":
                return item
            if item.name in _open:
                chain = " -> ".join(f"%{name}" for name in (*_open, item.name))
                raise GinError(f"{where}: macros refer to each other in a circle: {chain}.")
            return self.expand(self.macro(item.name, where), where, keep, (*_open, item.name))

        return transform(value, leaf)


def transform(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Rebuilds a gin value with every literal, macro and reference in it passed through `leaf`."""
    if isinstance(value, dict):
        return {transform(k, leaf): transform(v, leaf) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(transform(item, leaf) for item in value)
    return leaf(value)


def leaves(value: Any) -> Iterator[Any]:
    """Yields every literal, macro and reference inside a gin value."""
    if isinstance(value, dict):
        for item in (*value, *value.values()):
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def to_gin(value: Any) -> str:
    """Writes a value as gin text; `parse_value` reads it back."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_gin(k)}: {to_gin(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{to_gin(item)}, " for item in value).rstrip() + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_gin, value)) + "]"
    if isinstance(value, Macro):
        return f"%{value.name}"
    if isinstance(value, Reference):
        scope = f"{value.scope}/" if value.scope else ""
        return f"@{scope}{value.text}{'()' if value.call else ''}"
    return repr(value)


class _Delegate(config_parser.ParserDelegate):
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


def parse_value(text: str, delegate: _Delegate | None = None) -> Any:
    """Parses one gin value; raises SyntaxError when `text` is not exactly one value."""
    parser = gin_parser.Parser(text, delegate or _Delegate({}))
    value = parser.parse_value()
    rest = parser.current_token.string.strip()
    if rest:
        raise SyntaxError(f"{rest!r} is left over after a value")
    return value


def find_file(name: str, search_paths: Sequence[Path], where: str) -> Path:
    """Returns the first existing file called `name` along `search_paths`."""
    for folder in search_paths:
        path = Path(name) if os.path.isabs(name) else folder / name
        if path.is_file():
            return path
    around = {str(p.relative_to(f)) for f in search_paths for p in f.glob("gin_configs/**/*.gin")}
    for old in (name, f"gin_configs/{name}"):
        if old in FILES:
            renames.note(where, name, FILES[old])
            return find_file(FILES[old], search_paths, where)
        if old in GONE:
            raise GinError(f"{where}: {name} is gone: {GONE[old]}.")
    raise GinError(
        f"{where}: no gin file {name!r} under {', '.join(str(p) for p in search_paths)}"
        f"{closest(name, around)}. Give a path from there, or add --gin_search_paths."
    )


@dataclass
class _Reader:
    search_paths: Sequence[Path]
    allowed: Sequence[str]
    config: Config = field(default_factory=Config)
    open_files: tuple[Path, ...] = ()

    def read_file(self, name: str, where: str) -> None:
        path = find_file(name, self.search_paths, where)
        if path in self.open_files:
            raise GinError(f"{where}: {name!r} includes itself.")
        self.open_files += (path,)
        self.config.files.append(path)
        self.read_text(path.read_text(encoding="utf-8"), str(path))
        if name in SETTINGS and not path.as_posix().endswith(name):
            self.read_text(SETTINGS[name], f"{path} as {name}")
        self.open_files = self.open_files[:-1]

    def read_text(self, text: str, label: str) -> None:
        """Adds the statements of one file; `label` stands before the line number in messages."""
        symbols = {"gin": "gin"}  # dynamic registration, whether a file says so or not
        seen: dict[tuple[str, str, str], Binding] = {}
        delegate = _Delegate(symbols)
        for statement in gin_parser.statements(text, delegate, label):
            where = f"{label}:{statement.location.line_num}"
            if isinstance(statement, config_parser.ImportStatement):
                self._import(statement, delegate, where)
            elif isinstance(statement, config_parser.IncludeStatement):
                self.read_file(statement.filename, where)
            elif isinstance(statement, config_parser.BindingStatement):
                self.bind(statement, delegate, seen, where)
            self.config.imports += delegate.met(where)
            delegate.note(where)

    def _import(
        self, statement: config_parser.ImportStatement, delegate: _Delegate, where: str
    ) -> None:
        if statement.module == "__gin__.dynamic_registration":
            return
        if statement.module.split(".")[0] not in self.allowed:
            raise GinError(
                f"{where}: a gin file may not import {statement.module!r}; allowed are "
                f"{', '.join(self.allowed)}. If you trust that code, pass "
                f"--gin_allow={statement.module.split('.')[0]}."
            )
        symbol = statement.bound_name()
        whole = statement.is_from or statement.alias
        module = delegate.present(statement.module)
        path = module if whole else statement.module.split(".")[0]
        delegate.symbols[symbol] = path
        if whole and symbol == statement.module.rpartition(".")[2]:
            symbol = module.rpartition(".")[2]  # other files know the module by its present name
        self.config.imports.append(Import(module, symbol, path, where))

    def bind(
        self,
        statement: config_parser.BindingStatement,
        delegate: _Delegate,
        seen: dict[tuple[str, str, str], Binding],
        where: str,
    ) -> None:
        """Records one binding or macro; the same name twice in one file is an error."""
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
        key = (statement.scope, target or text, parameter)
        if key in seen:
            raise GinError(
                f"{where}: {binding.name} is already bound at {seen[key].where}. Keep one of them "
                "(a later --gin_file or --gin.NAME=VALUE may override it)."
            )
        seen[key] = binding
        table: dict[Any, Binding] = self.config.bindings if text else self.config.macros
        name = key if text else binding.name
        self.config.overridden += [table[name]] if name in table else []
        table[name] = binding


def search_folders(search_paths: Sequence[str]) -> list[Path]:
    """The user's search paths, then the repository and its gin_configs."""
    folders = [Path(path) for path in search_paths]
    return [*folders, REPOSITORY, REPOSITORY / "gin_configs"]


def read(
    files: Sequence[str],
    overrides: Sequence[tuple[str, str]] = (),
    *,
    search_paths: Sequence[str] = (".",),
    allow: Sequence[str] = (),
) -> Config:
    """Reads gin files and command-line overrides into one `Config`, executing nothing.

    Args:
      files: paths or names along the search paths; later files win.
      overrides: (name, value) pairs of `--gin.NAME=VALUE`; they win over every file.
      search_paths: folders in which files and includes are looked for.
      allow: top-level modules that files may import besides Kennel's own packages.

    Raises:
      GinError: a missing file, a syntax error, a forbidden import, a duplicate binding.
    """
    reader = _Reader(search_folders(search_paths), (*ALLOWED, *allow))
    for name in files:
        reader.read_file(name, COMMAND_LINE)
    imported = {item.symbol: item.path for item in reader.config.imports}
    delegate = _Delegate({"gin": "gin"} | renames.aliases(imported) | imported)
    seen: dict[tuple[str, str, str], Binding] = {}
    for name, text in overrides:
        where = f"{COMMAND_LINE} --gin.{name}"
        scope, selector, parameter = config_parser.parse_binding_key(name)
        value = override_value(text, delegate, where)
        statement = config_parser.BindingStatement(scope, selector, parameter, value, None)
        reader.bind(statement, delegate, seen, where)
        reader.config.imports += delegate.met(where)
        delegate.note(where)
    return reader.config


def override_value(text: str, delegate: _Delegate | None, where: str) -> Any:
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
