"""Bindings that gin files need not repeat: `gin_configs/conventions.gin`.

    any.tokenizer = %TOKENIZER

gives %TOKENIZER to every parameter `tokenizer` that has no default and no binding. A convention
fills what would be an error otherwise, so it never changes a configuration that was complete.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from t5x_style.configuration import gin_reader, signatures
from t5x_style.configuration.gin_reader import Binding, Config, GinError, Reference, leaves

FILE = "gin_configs/conventions.gin"
ANY = "any"  # what conventions bind the parameters of
# What recipes and sweeps bind: they hold references for their stages, which fill them.
RECIPES = ("launch.recipe.", "launch.sweep.")


@dataclass(frozen=True)
class _Mention:
    """Attributes:
    target: dotted path.
    text: the name as the file writes it.
    scope: in which it is called.
    where: file and line.
    """

    target: str
    text: str
    scope: str
    where: str


@functools.cache
def conventions() -> Mapping[str, Any]:
    """Parameter -> value that `FILE` gives it.

    Raises:
      GinError: `FILE` binds something other than `any.PARAMETER`.
    """
    config = gin_reader.read([str(gin_reader.REPOSITORY / FILE)])
    for binding in (*config.bindings.values(), *config.macros.values()):
        if binding.text != ANY or binding.scope:
            raise GinError(
                f"{binding.where}: expected `{ANY}.PARAMETER = VALUE`, found {binding.name}; bind "
                "it in a file that names its class."
            )
    return {binding.parameter: binding.value for binding in config.bindings.values()}


def add(config: Config) -> None:
    """Bind by convention what the configuration mentions and leaves without a value.

    A mention is a binding or a reference; it sees the bindings of its scope and of those around
    it. An added binding has no scope, and the file and line of the first mention that lacks it,
    which messages about its value then name. A recipe or a sweep is left unchanged.
    """
    if any(key[1].startswith(RECIPES) for key in config.bindings):
        return
    todo = list(_mentions(config))
    seen: set[tuple[str, str]] = set()
    while todo:
        mention = todo.pop(0)
        if (mention.target, mention.scope) in seen:
            continue
        seen.add((mention.target, mention.scope))
        for name in _required(mention.target) & conventions().keys():
            key = ("", mention.target, name)
            if any((scope, *key[1:]) in config.bindings for scope in _around(mention.scope)):
                continue
            value = conventions()[name]
            config.bindings[key] = Binding(
                "", mention.text, mention.target, name, value, mention.where
            )
            todo += _references(value, mention.scope, mention.where)


def _required(target: str) -> set[str]:
    """Parameters without a default."""
    parameters = signatures.signature(target).parameters
    return {name for name, parameter in parameters.items() if parameter.default is None}


def _around(scope: str) -> list[str]:
    """Scopes whose bindings a call in `scope` sees: `a/b` -> ``, `a`, `a/b`."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]


def _mentions(config: Config) -> Iterator[_Mention]:
    for binding in (*config.bindings.values(), *config.macros.values()):
        if binding.target:
            yield _Mention(binding.target, binding.text, binding.scope, binding.where)
        yield from _references(binding.value, binding.scope, binding.where)


def _references(value: Any, scope: str, where: str) -> Iterator[_Mention]:
    for leaf in leaves(value):
        if isinstance(leaf, Reference) and leaf.target:
            yield _Mention(leaf.target, leaf.text, leaf.scope or scope, where)
