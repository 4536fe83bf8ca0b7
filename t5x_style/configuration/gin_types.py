"""Compares gin values with annotations: `--gin.LR='1e-4'` must not reach the optimizer as text.

Run-time type checkers sample one element of a container; a configuration is small, so here every
element is checked. An int is fine where a float is expected; a bool is not fine as a number.
"""

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

from t5x_style.configuration.gin_reader import Reference, closest

Locate = Callable[[Reference], Any]


def annotations(thing: Any) -> dict[str, Any]:
    """Annotations of a function's or a class's parameters; {} when they cannot be resolved."""
    function = thing.__init__ if inspect.isclass(thing) else thing
    try:
        return typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError, AttributeError):  # names that exist for type checkers only
        return {}


def describe(hint: Any) -> str:
    """An annotation as the user would write it.

    >>> describe(tuple[int, ...] | None)
    'tuple[int, ...] | None'
    """
    if hint is type(None):
        return "None"
    if inspect.isclass(hint) and not get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("collections.abc.", "")


def mismatch(value: Any, hint: Any, locate: Locate) -> str:
    """Says why `value` does not fit `hint`; "" when it fits or when nothing can be said.

    Args:
      value: a gin value with its macros expanded; it may hold references.
      hint: a resolved annotation.
      locate: returns the class or function that a reference names.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, typing.TypeVar | str):
        return ""
    if origin is typing.Annotated:
        return mismatch(value, arguments[0], locate)
    if origin in (Union, types.UnionType):
        problems = [mismatch(value, option, locate) for option in arguments]
        return "" if "" in problems else _plain(value)
    if isinstance(value, Reference):
        return _reference_mismatch(value, hint, locate)
    if origin is Literal:
        return "" if value in arguments else f"not one of {arguments}{_near(value, arguments)}"
    if origin is not None:
        return _container_mismatch(value, origin, arguments, locate)
    return _scalar_mismatch(value, hint)


def _plain(value: Any) -> str:
    return f"a {type(value).__name__}" if not isinstance(value, Reference) else "a reference"


def _near(value: Any, options: tuple[Any, ...]) -> str:
    return closest(value, map(str, options)) if isinstance(value, str) else ""


def _scalar_mismatch(value: Any, hint: Any) -> str:
    if hint is None or hint is type(None):
        return "" if value is None else _plain(value)
    if not inspect.isclass(hint):
        return ""  # NewType and the like: nothing to compare with
    if isinstance(value, bool):
        return "" if hint in (bool, object) else _plain(value)
    if isinstance(value, int) and hint in (float, complex):
        return ""
    try:
        return "" if isinstance(value, hint) else _plain(value)
    except TypeError:  # a protocol that cannot be checked at run time
        return ""


def _container_mismatch(value: Any, origin: Any, arguments: tuple, locate: Locate) -> str:
    if origin is collections.abc.Callable or origin is type:
        return f"{_plain(value)}, write @module.name"
    if not isinstance(value, origin) or isinstance(value, str):
        return _plain(value)
    if isinstance(value, dict) and len(arguments) == 2:  # else its keys count
        pairs = [(k, arguments[0]) for k in value] + [(v, arguments[1]) for v in value.values()]
    elif origin is tuple and Ellipsis not in arguments:
        if len(value) != len(arguments):
            return f"{len(value)} elements instead of {len(arguments)}"
        pairs = list(zip(value, arguments, strict=True))
    else:
        pairs = [(item, arguments[0]) for item in value]
    for item, hint in pairs:
        problem = mismatch(item, hint, locate)
        if problem:
            return f"{item!r} inside is {problem}"
    return ""


def _reference_mismatch(reference: Reference, hint: Any, locate: Locate) -> str:
    """A called class must be a subclass of a class hint; a bare `@name` must be callable."""
    if reference.target.startswith("gin."):
        return ""
    thing = locate(reference)
    if reference.call:
        result = thing if inspect.isclass(thing) else annotations(thing).get("return", Any)
        if not (inspect.isclass(hint) and inspect.isclass(result)) or get_origin(hint):
            return ""
        if getattr(hint, "_is_protocol", False) or issubclass(result, hint):
            return ""
        return f"@...() gives {result.__name__}"
    scalar = hint in (int, float, str, bool, type(None)) or get_origin(hint) in (tuple, list, dict)
    return f"a function; write @{reference.text}() to call it" if scalar else ""
