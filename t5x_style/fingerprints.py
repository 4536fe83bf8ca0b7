"""Fingerprints of a stage: what was bound, what it reads, which code it runs.

Each is a dict of small parts (binding name -> value, input -> hash, source file -> hash), so that
a difference can be named, and `digest` makes one hash of it. Nothing is imported or executed.
"""

import ast
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.gin_reader import (
    ALLOWED,
    FOLDER_MACRO,
    REPOSITORY,
    RUN,
    Config,
    Reference,
    leaves,
    to_gin,
    transform,
)

STAGE_FILE = "stage.json"
STARTED_FILE = "stage.started.json"
DOCUMENTED = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# These decide whether a job runs, not what it computes; what they bind is fingerprinted itself.
MACHINERY = frozenset(
    f"t5x_style.{name}"
    for name in ("stage", "stage_main", "recipe_file", "fingerprints", "gin_reader", "gin_types")
) | {"t5x_style.gin_utils"}
# How checkpoints are kept and read, not what is computed: who follows the advice to fall back to
# an older one, or to keep fewer on a full disk, must find the folder as it was.
KEEPING = frozenset({"t5x_style.checkpointing.Checkpointing"})
HASHED_BYTES = 1 << 30  # larger files count by size and modification time


class InputError(ValueError):
    """An input of a stage that is missing, unfinished or not a path."""


def digest(parts: Any) -> str:
    """sha256 of a JSON value, independent of the order of keys."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Names whose parts were added, removed or changed.

    >>> differences({"a": "1", "b": "2"}, {"a": "1", "b": "3"})
    ['b']
    """
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))


def of_bindings(config: Config, inputs: Sequence[str]) -> dict[str, str]:
    """Canonical bindings: macros expanded, names absolute.

    MODEL_DIR, input paths and how checkpoints are kept are left out.
    """
    keep = (FOLDER_MACRO, *inputs)

    def absolute(item: Any) -> Any:
        if not isinstance(item, Reference):
            return item
        return Reference(item.target, item.scope, item.target, item.call)

    parts = {}
    for (scope, target, parameter), binding in config.bindings.items():
        if target == RUN or target in KEEPING:
            continue  # the job and the inputs are recorded by themselves
        value = transform(config.expand(binding.value, binding.where, keep), absolute)
        parts[f"{scope}/{target}.{parameter}".lstrip("/")] = to_gin(value)
    return parts


def of_code(roots: Iterable[str], config: Config, allow: Sequence[str] = ()) -> dict[str, str]:
    """Hashes of our sources that the roots and the gin files' references import, directly or not.

    Comments, blank lines and docstrings do not count. Modules that gin files import without
    referring to them do not count either.
    """
    packages = (*ALLOWED, *allow)
    targets = set(roots)
    for binding in (*config.bindings.values(), *config.macros.values()):
        if binding.target != RUN:  # it keeps records; it computes nothing
            targets.add(binding.target)
        targets |= {leaf.target for leaf in leaves(binding.value) if isinstance(leaf, Reference)}
    todo, parts = list(targets), {}
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen or name.split(".")[0] not in packages:
            continue
        seen.add(name)
        for module, path in _module_files(name):
            if module not in parts and module not in MACHINERY:
                parts[module], imported = _source(path, module)
                todo += imported
    return parts


def _module_files(name: str) -> list[tuple[str, Path]]:
    """Source files that importing `name` runs: its packages, then the module itself."""
    parts, found = name.split("."), []
    for depth in range(1, len(parts) + 1):
        module = ".".join(parts[:depth])
        path = source_path(parts[:depth])
        if path is not None:  # a folder without __init__.py runs nothing itself
            found.append((module, path))
    return found


def _search_path(package: str) -> Path | None:
    """The folder that holds top-level `package`: the repository's own, or one on sys.path."""
    for folder in (str(REPOSITORY), *sys.path):
        root = Path(folder)
        if (root / package).is_dir() or (root / f"{package}.py").is_file():
            return root
    return None


def source_path(parts: Sequence[str]) -> Path | None:
    """The file of a module given as its dotted parts, found without importing anything."""
    root = _search_path(parts[0])
    if root is None:
        return None
    base = root.joinpath(*parts)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _source(path: Path, module: str) -> tuple[str, tuple[str, ...]]:
    stat = path.stat()
    return _parsed(path, module, stat.st_mtime_ns, stat.st_size)


@functools.cache
def _parsed(path: Path, module: str, *_: int) -> tuple[str, tuple[str, ...]]:
    """(hash of the syntax tree without docstrings, imported names) of one source file."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    imported: list[str] = []
    # what stands under `if __name__ == "__main__"` is no part of the job
    tree.body = [node for node in tree.body if not _is_main_guard(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(filter(None, (*above, base)))
            imported += [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(imported)


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def of_inputs(paths: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """Hashes of input paths; a value may be one path, several in a list or by name, or None.

    `known` holds hashes of paths that are still to be written.

    Raises:
      InputError: a path that does not exist, or that an unfinished stage should have written.
    """
    found = {}
    for name, value in paths.items():
        named = value.items() if isinstance(value, dict) else enumerate(leaves(value))
        for key, path in named:
            found[f"{name}[{key}]" if key else name] = known.get(path) or of_path(path, name)
    return found


def check_declared(config: Config, inputs: Sequence[str]) -> None:
    """Refuses a bound path into a stage's folder that `stage.run.inputs` does not list.

    Such a path would count as a mere text: the stage would not run again when what lies there
    changes.

    Raises:
      InputError: naming the binding and the folder.
    """
    for binding in config.bindings.values():
        for leaf in leaves(config.expand(binding.value, binding.where, (FOLDER_MACRO, *inputs))):
            if isinstance(leaf, str) and os.sep in leaf and os.path.exists(leaf):
                folder = _stage_folder(Path(leaf))
                if folder is not None:
                    raise InputError(
                        f"{binding.where}: {binding.name} is {leaf!r}, inside the stage folder "
                        f"{folder}. Make it a macro and list it in stage.run.inputs, so that a "
                        "change there is noticed."
                    )


def of_path(path: Any, name: str) -> str:
    """A stage's output counts by that stage's fingerprint, an outside path by its content."""
    if path is None or path == "":
        return "none"
    if not isinstance(path, str):
        raise InputError(f"Input {name} must be a path, found {path!r}.")
    where = Path(path)
    if not where.exists():
        raise InputError(
            f"Input {name} does not exist: {path}. Run the stage that writes it, or set "
            f"--gin.{name}=PATH."
        )
    folder = _stage_folder(where)
    if folder is None:
        return content(where)
    stage = json.loads((folder / STAGE_FILE).read_text(encoding="utf-8"))
    relative = os.path.relpath(where.resolve(), folder)
    recorded = stage["hashes"].get(relative)
    if recorded and recorded != content(where):
        return f"{stage['fingerprint']} edited {content(where)}"
    return str(stage["fingerprint"])


def _stage_folder(path: Path) -> Path | None:
    """The innermost finished stage folder that holds `path`; unfinished ones are an error."""
    for folder in (path.resolve(), *path.resolve().parents):
        if (folder / STAGE_FILE).is_file():
            return folder
        if (folder / STARTED_FILE).is_file():
            raise InputError(
                f"Input {path} belongs to {folder}, a stage that has not finished "
                f"({STARTED_FILE} but no {STAGE_FILE}). Run that stage again first."
            )
    return None


def content(path: Path) -> str:
    """sha256 of a file, or of a folder's sorted relative names and contents."""
    if path.is_file():
        return _file_hash(path)
    files = sorted(item for item in path.rglob("*") if item.is_file())
    return digest({item.relative_to(path).as_posix(): _file_hash(item) for item in files})


def _file_hash(path: Path) -> str:
    stat = path.stat()
    return _cached_file_hash(str(path.resolve()), stat.st_size, stat.st_mtime_ns)


@functools.cache
def _cached_file_hash(path: str, size: int, mtime_ns: int) -> str:
    if size > HASHED_BYTES:
        return f"size {size} modified {mtime_ns}"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
