"""Reads gin files without executing them: no import runs, no configurable is called.

gin executes what it reads, ignores a mistyped macro in silence and lets the last of two equal
bindings win. Here gin's own parser only yields statements; they become one `Config`, in which
every name carries the file and line it came from. `gin_checks` checks it; `workflow.fingerprints`
identifies it; `workflow.recipe_reader` reads recipes with it. Nothing here imports JAX.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gin import config_parser

from t5x_style.configuration import gin_statements, renames
from t5x_style.configuration.gin_parser import GinError as GinError
from t5x_style.configuration.gin_statements import Binding as Binding
from t5x_style.configuration.gin_statements import Delegate, Key
from t5x_style.configuration.gin_statements import Import as Import
from t5x_style.configuration.gin_statements import Macro as Macro
from t5x_style.configuration.gin_statements import Reference as Reference
from t5x_style.configuration.gin_statements import override_value as override_value
from t5x_style.configuration.gin_statements import parse_value as parse_value
from t5x_style.configuration.python_sources import REPOSITORY as REPOSITORY
from t5x_style.configuration.renamed_files import FILES, GONE, SETTINGS
from t5x_style.configuration.suggestions import closest as closest

ALLOWED = ("t5x_style", "models", "input_pipelines", "gin_configs", "launch")
FOLDER_MACRO = "MODEL_DIR"  # the folder a stage writes; set from outside, known to every file
COMMAND_LINE = "command line"
RUN = "t5x_style.stage.run"  # the configurable that calls a stage's job


@dataclass
class Config:
    """Statements of the files and the command line; later statements have overridden earlier ones.

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
                raise GinError(f"{where}: macros refer to each other in a cycle: {chain}.")
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
    allowed: tuple[str, ...]
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
        """Adds the statements of one file; `label` is put before the line number in messages."""
        for item in gin_statements.items(text, label, self.allowed):
            if isinstance(item, Import):
                self.config.imports.append(item)
            elif isinstance(item, Binding):
                self.add(item)
            else:
                self.read_file(*item)

    def add(self, binding: Binding) -> None:
        """Records a binding or a macro in the place of an earlier one."""
        config, is_macro = self.config, not binding.text
        table: dict[Any, Binding] = config.macros if is_macro else config.bindings
        name = binding.name if is_macro else gin_statements.key_of(binding)
        config.overridden += [table[name]] if name in table else []
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
    delegate = Delegate({"gin": "gin"} | renames.aliases(imported) | imported)
    seen: dict[Key, Binding] = {}
    for name, text in overrides:
        where = f"{COMMAND_LINE} --gin.{name}"
        scope, selector, parameter = config_parser.parse_binding_key(name)
        value = override_value(text, delegate, where)
        statement = config_parser.BindingStatement(scope, selector, parameter, value, None)
        reader.add(gin_statements.bound(statement, delegate, seen, where))
        reader.config.imports += delegate.met(where)
        delegate.note(where)
    return reader.config
