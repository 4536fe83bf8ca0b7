"""Compares a configuration with the code that it names, which is imported for that.

What is wrong is yielded, one text for each problem, so that all of it can be said at once.
"""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from t5x_style.configuration import gin_types
from t5x_style.configuration.gin_reader import (
    Binding,
    Config,
    GinError,
    Macro,
    Reference,
    closest,
    leaves,
    to_gin,
)


def locate(target: str, where: str) -> Any:
    """Imports the module of a dotted path and returns the thing it names.

    Raises:
      GinError: no such module or attribute, with the closest name that exists.
    """
    parts = target.split(".")
    found, depth = _deepest_module(parts, where)
    for part in parts[depth:]:
        if not hasattr(found, part):
            public = [name for name in vars(found) if not name.startswith("_")]
            raise GinError(
                f"{where}: {'.'.join(parts[:depth])} has no {part!r}{closest(part, public)}"
            )
        found, depth = getattr(found, part), depth + 1
    return found


def _deepest_module(parts: list[str], where: str) -> tuple[Any, int]:
    """Imports the longest prefix of `parts` that is a module; returns it and its length."""
    for depth in range(len(parts), 0, -1):
        name = ".".join(parts[:depth])
        try:
            return importlib.import_module(name), depth
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if not (name == missing or name.startswith(missing + ".")):
                raise
    raise GinError(f"{where}: no module {parts[0]!r}.")


def problems(config: Config) -> Iterator[str]:
    """Unknown configurables and parameters, values of another type than annotated, and parameters
    without default that `@thing()` leaves unset."""
    for binding in config.bindings.values():
        if not binding.target.startswith("gin."):
            yield from _of_binding(config, binding)
    for binding in (*config.bindings.values(), *config.macros.values()):
        for leaf in leaves(binding.value):
            if isinstance(leaf, Reference) and not leaf.target.startswith("gin."):
                yield from _of_reference(config, leaf, binding)


def job_problems(config: Config, job: str) -> Iterator[str]:
    """Parameters of a stage's job that have neither a default nor a binding."""
    module, _, name = job.rpartition(".")
    unset = [p for p in _unset(config, job, locate(job, job)) if p != "model_dir"]
    if unset:
        short = f"{module.rpartition('.')[2]}.{name}"
        yield (
            f"{short} needs {', '.join(unset)}, which nothing sets: name the gin files of this "
            f"stage with --gin_file (gin_configs/runs), or add `{short}.{unset[0]} = ...`."
        )


def _of_binding(config: Config, binding: Binding) -> Iterator[str]:
    try:
        thing = locate(binding.target, binding.where)
        known = parameters(thing)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
        if binding.parameter not in known and not takes_any:
            hint = closest(binding.parameter, known)
            yield f"{binding.where}: {binding.text} has no parameter {binding.parameter!r}{hint}"
            return
        annotation = gin_types.annotations(thing).get(binding.parameter, Any)
        value = config.expand(binding.value, binding.where)
        problem = gin_types.mismatch(
            value, annotation, lambda ref: locate(ref.target, binding.where)
        )
        if problem:
            yield (
                f"{binding.where}: {binding.name} must be {gin_types.describe(annotation)}, found "
                f"{to_gin(value)} ({problem}){origin(config, binding)}"
            )
    except GinError as error:
        yield str(error)


def origin(config: Config, binding: Binding) -> str:
    """Places, in words, where the macros that a binding refers to are set."""
    found: list[str] = []
    todo = [leaf for leaf in leaves(binding.value) if isinstance(leaf, Macro)]
    while todo:
        name = todo.pop(0).name
        macro = config.macros.get(name)
        if macro is not None:
            found.append(f"; %{name} is set at {macro.where}")
            todo += [leaf for leaf in leaves(macro.value) if isinstance(leaf, Macro)]
    return "".join(dict.fromkeys(found)) or "."


def _of_reference(config: Config, reference: Reference, binding: Binding) -> Iterator[str]:
    """`@thing()` passes nothing by hand: every parameter needs a default or a binding."""
    try:
        thing = locate(reference.target, binding.where)
    except GinError as error:
        yield str(error)
        return
    for name in _unset(config, reference.target, thing) if reference.call else ():
        yield (
            f"{binding.where}: {to_gin(reference)} needs {name!r}, which nothing sets: add "
            f"`{reference.text}.{name} = ...`."
        )


def _unset(config: Config, target: str, thing: Any) -> list[str]:
    """Parameters of `thing`, which `target` names, without a default or a binding."""
    bound = {key[2] for key in config.bindings if key[1] == target}
    return [
        name
        for name, parameter in parameters(thing).items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in bound
    ]


def parameters(thing: Any) -> dict[str, inspect.Parameter]:
    """Parameters of a function or class, by name."""
    try:
        return dict(inspect.signature(thing).parameters)
    except (TypeError, ValueError):  # a builtin without a signature accepts what it accepts
        return {"kwargs": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)}
