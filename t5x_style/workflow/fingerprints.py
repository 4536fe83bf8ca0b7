"""Fingerprints of what a stage reads and of the code it runs.

Each is a dict of small parts (input -> identity, source file -> hash), so that a difference can be
named, and `digest` makes one hash of it. Nothing is imported or executed. The third part of a
stage's fingerprint, its parameters, is in `configuration.parameters`.
"""

import ast
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5x_style.configuration import python_sources
from t5x_style.configuration.gin_reader import ALLOWED, FOLDER_MACRO, RUN, Config, Reference, leaves
from t5x_style.configuration.python_sources import path_of as source_path
from t5x_style.configuration.signatures import JOBS
from t5x_style.storage import places, remote_inputs
from t5x_style.workflow import files, links, store

DOCUMENTED = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# These decide whether a job runs and keep its records; they compute nothing that it writes.
MACHINERY = frozenset(
    f"t5x_style.{name}"
    for name in ("stage", "stage_main", "recipe_file", "fingerprints", "gin_reader", "gin_types")
) | {"t5x_style.configuration.gin_checks", "t5x_style.runs", "t5x_style.gc"}
MACHINERY_PACKAGE = "t5x_style.workflow"
COMPUTING = frozenset({"t5x_style.workflow.lineage"})  # but this decides what a page says
_HUB_NAME = re.compile(r"([\w-][\w.-]*)/[\w.-]+")
HASHED_BYTES = 1 << 30  # larger files count by size and modification time


class InputError(ValueError):
    """Inputs of a stage that are missing, unfinished or not paths; an argument for each."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


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


def of_code(
    roots: Iterable[str], config: Config, allow: Sequence[str] = (), machinery: bool = False
) -> dict[str, str]:
    """Hashes of our sources that the roots and the gin files' references import, directly or not.

    Comments, blank lines and docstrings do not count. Modules that gin files import without
    referring to them do not count either; nor, without `machinery`, does what only decides whether
    a stage runs.
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
            if module not in parts and (machinery or not _is_machinery(module)):
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


def _is_machinery(module: str) -> bool:
    inside = f"{module}.".startswith(f"{MACHINERY_PACKAGE}.") and module not in COMPUTING
    return module in MACHINERY or inside


def _source(path: Path, module: str) -> tuple[str, tuple[str, ...]]:
    stat = path.stat()
    return _parsed(path, module, stat.st_mtime_ns, stat.st_size)


@functools.cache
def _parsed(path: Path, module: str, *_: int) -> tuple[str, tuple[str, ...]]:
    """(hash of the syntax tree without docstrings, imported names) of one source file."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    imported: list[str] = []
    # What is under `if __name__ == "__main__"` is no part of the job, and declarations count by
    # themselves.
    tree.body = [node for node in tree.body if not _is_main_guard(node) and not _is_jobs(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = python_sources.imported_from(node, package)
            imported += [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(imported)


def _is_jobs(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == JOBS


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


@dataclass(frozen=True)
class Inputs:
    """Inputs of a stage.

    Attributes:
      identities: macro -> identity of what is there, a list or a dict of them where the macro is
        one: `<version> by code <hash>/<path in it>`, or name and sha256 of an outside file, or
        sha256 of an outside folder.
      paths: macro -> its value with links replaced by the versions that they point to now.
      versions: ids of the stage versions among them.
    """

    identities: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, Any] = field(default_factory=dict)
    versions: tuple[str, ...] = ()

    def flat(self) -> dict[str, str]:
        """Macro, or macro[key] -> identity."""
        return {
            f"{name}[{key!r}]" if key != "" else name: identity
            for name, value in self.identities.items()
            for key, identity in named(value)
        }


def named(value: Any) -> Iterable[tuple[Any, Any]]:
    """(key, item) of a dict or a list; one thing has the key ""."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else [("", value)]


def of_inputs(values: Mapping[str, Any], known: Mapping[str, str] | None = None) -> Inputs:
    """Looks up inputs; a value may be one path, several in a list or by name, or None.

    Args:
      values: macro -> its value.
      known: identities of paths that are still to be written.

    Raises:
      InputError: a path that does not exist, that an unfinished stage should have written, or
        whose version is not as it was when it was finished.
    """
    identities: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    versions: set[str] = set()
    wrong: list[str] = []
    for name, value in values.items():
        found: dict[Any, tuple[Any, Any]] = {}
        for key, path in named(value):
            identity = (known or {}).get(path)
            try:
                found[key] = (path, identity) if identity else _look_up(path, name, versions)
            except InputError as error:
                wrong.append(str(error))
                found[key] = (path, None)
        identities[name] = _like(value, {key: one for key, (_, one) in found.items()})
        paths[name] = _like(value, {key: path for key, (path, _) in found.items()})
    if wrong:
        raise InputError(*dict.fromkeys(wrong))
    return Inputs(identities, paths, tuple(sorted(versions)))


def _like(value: Any, found: dict[Any, Any]) -> Any:
    """`found` in the form of `value`: a dict, a list, or one thing."""
    if isinstance(value, Mapping):
        return found
    return list(found.values()) if isinstance(value, list | tuple) else found[""]


def check_declared(config: Config, inputs: Sequence[str]) -> None:
    """Refuses a bound path into a stage's folder that is no input.

    Such a path would count as a mere text: the stage would not run again when what is there
    changes.

    Raises:
      InputError: naming the binding and the folder.
    """
    for binding in config.bindings.values():
        if binding.target == RUN:
            continue
        for leaf in leaves(config.expand(binding.value, binding.where, (FOLDER_MACRO, *inputs))):
            if isinstance(leaf, str) and _may_be_a_path(leaf):
                version = store.version_at(Path(leaf))
                if version is not None:
                    raise InputError(
                        f"{binding.where}: {binding.name} is {leaf!r}, inside the stage folder "
                        f"{version.folder}. Make it a macro and list it in stage.run.inputs, so "
                        "that a change there is noticed."
                    )


def _may_be_a_path(text: str) -> bool:
    return os.path.islink(text) or (os.sep in text and os.path.exists(text))


def _look_up(path: Any, name: str, versions: set[str]) -> tuple[Any, str]:
    """An input's path without links to versions, and its identity; adds the version it is in."""
    if path is None or path == "":
        return path, "none"
    if not isinstance(path, str):
        raise InputError(f"Input {name} must be a path, found {path!r}.")
    where = _here(path)
    version = store.version_at(where)
    if not (where.exists() or _is_listed(version, where)):
        raise InputError(
            f"Input {name} does not exist: {path}. Run the stage that writes it, or set "
            f"--gin.{name}=PATH.{_of_hub(path)}"
        )
    if version is None:
        # Ids of records may hold the name of their file; names in a folder are part of its content.
        name = f"{where.name} " if where.is_file() else ""
        return str(where) if places.is_remote(path) else path, f"{name}sha256 {content(where)}"
    if version.manifest is None:
        return path, _without_manifest(version, path)
    inside = where.resolve().relative_to(version.folder.resolve()).as_posix()
    changed = files.changed_files(version, "" if inside == "." else inside)
    if changed:
        raise InputError(
            f"Input {name}: {', '.join(changed[:3])} changed since {version.folder} was finished. "
            "A version never changes: put the file back, or copy what you edited elsewhere and "
            f"name the copy; --rerun={version.record['name']} of its run makes it again."
        )
    versions.add(version.id)
    whole = inside == "."
    real = version.folder if whole else version.folder / inside
    shown = str(real) if where.is_absolute() else os.path.relpath(real)
    return shown, version.identity if whole else f"{version.identity}/{inside}"


def _of_hub(path: str) -> str:
    """Advice for a path that looks like a name on a hub, OWNER/NAME; "" for other paths.

    >>> _of_hub("data/absent/corpus")
    ''
    """
    owner = _HUB_NAME.fullmatch(path)
    if owner is None or os.path.isdir(owner[1]):
        return ""
    return (
        f" If {path} is a name on the Hugging Face Hub: nothing is fetched here. Download it, then "
        f"set the folder: hf download {path} --local-dir FOLDER (a data set: with --repo-type "
        "dataset)."
    )


def _here(path: str) -> Path:
    """Path of an input on this machine; what is on object storage, and no version, is copied."""
    try:
        where = places.local(path)
        if places.is_remote(path):
            links.follow(path)
            if store.version_at(where) is None:
                remote_inputs.fetch(path)
    except ValueError as error:
        raise InputError(f"Input {path}: {error}") from error
    return where


def _is_listed(version: store.Version | None, where: Path) -> bool:
    """Whether a version that is on object storage has a file or folder that is not here."""
    if version is None or version.manifest is None or not version.url:
        return False
    inside = where.resolve().relative_to(version.folder.resolve()).as_posix()
    names = version.manifest["files"]
    return inside in names or any(name.startswith(f"{inside}/") for name in names)


def _without_manifest(version: store.Version, path: str) -> str:
    """The identity of what a stage wrote before there was a store."""
    record = (
        json.loads((version.folder / store.STAGE_FILE).read_text(encoding="utf-8"))
        if (version.folder / store.STAGE_FILE).exists()
        else {}
    )
    if record.get("fingerprint") and "format" not in record:
        inside = Path(path).resolve().relative_to(version.folder.resolve()).as_posix()
        return f"made without a store {record['fingerprint']}/{inside}"
    why = version.damage or f"{store.STARTED_FILE} but no {store.STAGE_FILE}"
    raise InputError(
        f"Input {path} belongs to {version.folder}, a stage that has not finished ({why}). "
        "Run that stage again first."
    )


def content(path: Path) -> str:
    """sha256 of a file, or of a folder's sorted relative names and contents."""
    if path.is_file():
        return _file_hash(path)
    return digest(
        {item.relative_to(path).as_posix(): _file_hash(item) for item in files.walk(path)}
    )


def _file_hash(path: Path) -> str:
    stat = path.stat()
    return _cached_file_hash(str(path.resolve()), stat.st_size, stat.st_mtime_ns)


@functools.cache
def _cached_file_hash(path: str, size: int, mtime_ns: int) -> str:
    if size > HASHED_BYTES:
        return f"size {size} modified {mtime_ns}"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
