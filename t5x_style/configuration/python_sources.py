"""Python modules found and parsed without importing them."""

import ast
import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
OURS = ("t5x_style", "models", "input_pipelines", "gin_configs", "launch")


@dataclass(frozen=True)
class Module:
    """Top-level definitions of one source file.

    Attributes:
      definitions: functions and classes by name.
      names: imported names and `name = other.thing` -> absolute dotted path.
      constants: `NAME = expression` -> the expression.
    """

    definitions: dict[str, ast.FunctionDef | ast.ClassDef] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)


def path_of(parts: Sequence[str]) -> Path | None:
    """The file of a module given as its dotted parts; None if there is none.

    Our files are looked for once in a process: a recipe asks ten thousand times, a sweep more.
    """
    return _of_ours(tuple(parts)) if parts[0] in OURS else _found(parts)


@functools.cache
def _of_ours(parts: tuple[str, ...]) -> Path | None:
    return _found(parts)


def _found(parts: Sequence[str]) -> Path | None:
    root = _search_path(parts[0])
    if root is None:
        return None
    base = os.path.join(root, *parts)
    for path in (f"{base}.py", os.path.join(base, "__init__.py")):
        if os.path.isfile(path):
            return Path(path)
    return None


def _search_path(package: str) -> str | None:
    """The folder that holds top-level `package`: the repository's own, or one on sys.path."""
    for folder in (str(REPOSITORY), *sys.path):
        path = os.path.join(folder, package)
        if os.path.isdir(path) or os.path.isfile(f"{path}.py"):
            return folder
    return None


def split(target: str) -> tuple[str, list[str]] | None:
    """A dotted path as (module, names inside it); None if no part of it is a module with source."""
    parts = target.split(".")
    for depth in range(len(parts), 0, -1):
        if path_of(parts[:depth]) is not None:
            return ".".join(parts[:depth]), parts[depth:]
    return None


def module(name: str) -> Module:
    """The parsed module of that dotted name; an empty one if it has no source."""
    path = path_of(name.split("."))
    if path is None:
        return Module()
    stat = path.stat()
    return _parsed(path, name, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4096)
def _parsed(path: Path, name: str, *_: int) -> Module:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = Module()
    for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.definitions[node.name] = node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                found.names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            base = imported_from(node, package)
            for alias in node.names:
                found.names[alias.asname or alias.name] = f"{base}.{alias.name}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.constants[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found.constants[node.target.id] = node.value
    return found


def imported_from(node: ast.ImportFrom, package: str) -> str:
    """The absolute module that `from ... import` names, seen from `package`."""
    base = node.module or ""
    if node.level:
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join(filter(None, (*above, base)))
    return base


def resolve(name: str, inside: str) -> str | None:
    """Resolve a dotted name used in module `inside` to an absolute dotted path.

    Follows imports and `name = other`; None for what is neither imported nor defined there.
    """
    head, _, rest = name.partition(".")
    found = module(inside)
    target: str | None = None
    if head in found.names:
        target = found.names[head]
    elif head in found.definitions:
        target = f"{inside}.{head}"
    elif isinstance(found.constants.get(head), ast.Name | ast.Attribute):
        value = ast.unparse(found.constants[head])
        target = resolve(value, inside) if value != head else None
    return None if target is None else ".".join(filter(None, (target, rest)))


def constant(name: str, inside: str, depth: int = 8) -> tuple[ast.expr, str] | None:
    """The expression that a dotted name used in module `inside` is bound to, and its module."""
    found = module(inside)
    if name in found.constants:
        return found.constants[name], inside
    target = resolve(name, inside)
    at = split(target) if target else None
    if at is None or len(at[1]) != 1 or depth == 0 or at == (inside, [name]):
        return None
    return constant(at[1][0], at[0], depth - 1)
