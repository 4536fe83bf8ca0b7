"""The effective values of a stage's parameters, read from its gin files and the code's defaults.

`of_job` follows the job's parameters through the references that gin would call, and gives each
value under its path from the job, whatever modules and macros it came through:

    optimizer                  @optimizers.AdamW()
    optimizer.learning_rate    0.001
    pipeline.store             input prepare-3f2a9c0d1e2b4a5c/store

An input is there as the version or the content that it is, never as a path. Nothing is imported.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from t5x_style.configuration import python_sources, rename_tables, renames, signatures
from t5x_style.configuration.gin_reader import (
    FOLDER_MACRO,
    Config,
    GinError,
    Macro,
    Reference,
    to_gin,
)
from t5x_style.configuration.signatures import OPERATIONAL, Parameter, Source

Values = dict[str, str]  # path from the job -> text of the value
FOLDER_PARAMETER = "model_dir"  # of every job: where it writes
DEEPEST = 40  # references in references; more is a cycle
EMPTY = {"dict()": "{}", "list()": "[]", "tuple()": "[]"}  # default factories


@dataclass(frozen=True)
class Effective:
    """Attributes:
    semantic: what decides the job's outputs.
    operational: what may change at any time.
    """

    semantic: Values = field(default_factory=dict)
    operational: Values = field(default_factory=dict)


def of_job(config: Config, job: str, inputs: Mapping[str, Any]) -> Effective:
    """Args:
      config: the gin files, read and checked.
      job: its dotted path.
      inputs: macro that is an input -> identity of what is there, see `fingerprints.of_inputs`;
        a list or a dict if the macro's value is one.

    Raises:
      GinError: references that form a cycle.
    """
    walk = _Walk(config, inputs)
    walk.call("", job, "", frozenset({FOLDER_PARAMETER}), 0)
    semantic: Values = {}
    operational: Values = {}
    for path, (text, marker) in walk.found.items():
        free = path not in walk.decides and _is_operational(marker, walk.found)
        (operational if free else semantic)[path] = text
    return Effective(semantic, operational)


def _is_operational(marker: str, found: Mapping[str, tuple[str, str]]) -> bool:
    if not marker:
        return False
    _, unless, name = marker.partition(f"{OPERATIONAL} unless ")
    return not unless or found.get(name, ("None", ""))[0] in ("None", "''", "[]", "False")


def bound(config: Config, target: str, scope: str) -> dict[str, tuple[Any, str]]:
    """Parameter -> (value, place) of the bindings that a call of `target` in `scope` sees.

    Of several bindings of one parameter, that of the innermost scope counts.
    """
    seen: dict[str, tuple[int, Any, str]] = {}
    for (outer, other, parameter), binding in config.bindings.items():
        inside = f"{scope}/".startswith(f"{outer}/" if outer else "")
        if other == target and inside and len(outer) >= seen.get(parameter, (0,))[0]:
            seen[parameter] = (len(outer), binding.value, binding.where)
    return {name: (value, where) for name, (_, value, where) in seen.items()}


class _Walk:
    """Follows references as gin would.

    Attributes:
      found: path -> (text, marker of the field).
      decides: see `Signature.decides`, of all that is called.
    """

    def __init__(self, config: Config, inputs: Mapping[str, Any]):
        self.config, self.inputs = config, inputs
        self.found: dict[str, tuple[str, str]] = {}
        self.decides: set[str] = set()

    def call(
        self,
        path: str,
        target: str,
        scope: str,
        without: frozenset[str],
        depth: int,
        marker: str = "",
    ) -> None:
        """Arguments of a call of `target` in `scope`."""
        if depth > DEEPEST:
            raise GinError(f"{path}: references form a cycle, at @{target}.")
        found = bound(self.config, target, scope)
        signature = signatures.signature(target)
        self.decides |= set(signature.decides)
        names = [
            *signature.parameters,
            *(name for name in found if name not in signature.parameters),
        ]
        kind = renames.kind(target)
        for name in names:
            if name in without:
                continue
            parameter = signature.parameters.get(name, Parameter(None))
            first = rename_tables.PARAMETERS.get(f"{kind}.{name}", name)
            here = f"{path}.{first}".lstrip(".")
            before = set(self.found)
            mark = marker or parameter.marker
            if name in found:
                value, where = found[name]
                self.value(here, value, scope, where, mark, depth, "float" in parameter.annotation)
            elif parameter.default is not None:
                self.default(here, parameter.default, mark, depth, "float" in parameter.annotation)
            added = rename_tables.ADDED.get(f"{kind}.{first}")
            if added is not None and self.found.get(here, ("", ""))[0] == added:
                for key in set(self.found) - before:
                    del self.found[key]
        self._unwrap(path, kind)

    def _unwrap(self, path: str, kind: str) -> None:
        """Move what a wrapper gets to the parameters of `kind` that had it first."""
        wrappers = renames.wrappers(kind)
        heads = {old: f"{path}.{old}".lstrip(".") for old in wrappers}
        for old, wrapper in wrappers.items():
            outer = f"{path}.{wrapper.parameter}".lstrip(".")
            if self.found.get(outer, ("", ""))[0] != f"@{renames.kind(wrapper.target)}()":
                self.found.setdefault(heads[old], ("None", ""))
                continue
            inner = f"{outer}.{wrapper.source}"
            keys = [key for key in self.found if _is_inside(key, outer)]
            # Both may have a parameter of one name: take all out before any goes back.
            for key, value in {key: self.found.pop(key) for key in keys}.items():
                head, now = (inner, outer) if _is_inside(key, inner) else (outer, heads[old])
                self.found[now + key.removeprefix(head)] = value

    def value(
        self, path: str, value: Any, scope: str, where: str, marker: str, depth: int, is_float: bool
    ) -> None:
        """A gin value, at its path."""
        if isinstance(value, Macro):
            if value.name in self.inputs:
                self._input(path, self.inputs[value.name], marker)
            elif value.name == FOLDER_MACRO:
                self.found[path] = ("the stage's folder", marker)
            else:  # gin evaluates a macro in the macro's own scope
                inside = self.config.macro(value.name, where)
                self.value(path, inside, value.name, where, marker, depth + 1, is_float)
        elif isinstance(value, Reference):
            self._reference(path, value, scope, marker, depth)
        elif isinstance(value, dict | list | tuple) and not _is_plain(value):
            self._container(path, value, scope, where, marker, depth)
        else:
            self.found[path] = (_text(value, is_float), marker)

    def _input(self, path: str, identity: Any, marker: str) -> None:
        if isinstance(identity, Mapping):
            for key, one in identity.items():
                self._input(f"{path}[{key!r}]", one, marker)
        elif isinstance(identity, list | tuple):
            for key, one in enumerate(identity):
                self._input(f"{path}[{key}]", one, marker)
        else:
            self.found[path] = (f"input {identity}", marker)

    def _container(
        self, path: str, value: Any, scope: str, where: str, marker: str, depth: int
    ) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        names = f" {[to_gin(key) for key in value]}" if isinstance(value, dict) else ""
        self.found[path] = (f"{type(value).__name__} of {len(value)}{names}", marker)
        for key, item in items:
            # A list may hold one object several times; a path has one value.
            self.value(f"{path}[{to_gin(key)}]", item, scope, where, marker, depth, False)

    def _reference(
        self, path: str, reference: Reference, scope: str, marker: str, depth: int
    ) -> None:
        target = reference.target
        name = f"@{renames.kind(target)}{'()' if reference.call else ''}"
        self.found[path] = (name, marker)
        nothing: frozenset[str] = frozenset()
        inner = reference.scope or scope
        self.call(path, target, inner, nothing, depth + 1, marker)
        if not reference.call and not reference.scope and scope:
            # A bare @function may be called later, outside of this scope.
            outside = _Walk(self.config, self.inputs)
            outside.call(path, target, "", nothing, depth + 1, marker)
            for key, (text, mark) in outside.found.items():
                if self.found.get(key, (text, ""))[0] != text or key not in self.found:
                    self.found[f"{key} (outside {scope})"] = (text, mark)

    def default(self, path: str, source: Source, marker: str, depth: int, is_float: bool) -> None:
        """A default of the code, at its path; an object by the values that it is made with."""
        node, module = source.node, source.module
        if isinstance(node, ast.Name | ast.Attribute):
            constant = python_sources.constant(ast.unparse(node), module)
            if constant is not None and depth < DEEPEST:
                self.default(path, Source(*constant), marker, depth + 1, is_float)
                return
        if ast.unparse(node) in EMPTY:
            self.found[path] = (EMPTY[ast.unparse(node)], marker)
            return
        if isinstance(node, ast.Call) and self._made(path, node, module, marker, depth):
            return
        try:
            value = ast.literal_eval(node)
        except ValueError:
            self.found[path] = (_expression(node, module), marker)
        else:
            self.found[path] = (_text(value, is_float), marker)

    def _made(self, path: str, node: ast.Call, module: str, marker: str, depth: int) -> bool:
        """Whether the default is an object of our own classes, whose values are then found."""
        target = python_sources.resolve(ast.unparse(node.func), module)
        found = signatures.define(target) if target else None
        if target is None or found is None:
            return False
        self.found[path] = (f"@{renames.kind(target)}()", marker)
        names = list(signatures.signature(target).parameters)
        given = dict(zip(names, node.args, strict=False))
        given |= {word.arg: word.value for word in node.keywords if word.arg}
        # Python makes it, not gin: bindings do not reach it.
        plain = _Walk(Config(), {})
        plain.call(path, target, "", frozenset(given), depth + 1, marker)
        self.found |= plain.found
        for name, value in given.items():
            self.default(f"{path}.{name}", Source(value, module), marker, depth + 1, False)
        return True


def _is_inside(path: str, head: str) -> bool:
    """Whether a path is `head` or that of something in it."""
    return path.startswith(head) and path[len(head) : len(head) + 1] in ("", ".", "[", " ")


def _is_plain(value: Any) -> bool:
    """Whether a gin value holds neither macros nor references."""
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return not isinstance(value, Macro | Reference)


def _text(value: Any, is_float: bool) -> str:
    """A value as text: 1 is 1.0 for a float, and a tuple is like a list."""
    if is_float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    return to_gin(_lists(value))


def _lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return value


def _expression(node: ast.expr, module: str, depth: int = 8) -> str:
    """An expression as text, with the constants that it uses written out."""

    class Inline(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return self.inlined(name)

        def visit_Attribute(self, attribute: ast.Attribute) -> ast.expr:
            return self.inlined(attribute)

        def inlined(self, use: ast.expr) -> ast.expr:
            constant = python_sources.constant(ast.unparse(use), module)
            if constant is None or depth == 0:
                return use
            return ast.parse(_expression(*constant, depth - 1), mode="eval").body

    return ast.unparse(Inline().visit(ast.parse(ast.unparse(node), mode="eval")))
