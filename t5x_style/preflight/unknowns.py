"""Placeholders for values that are not known before a run, see `trial`.

Whoever computes with an `Unknown` ends there, without a verdict. Others are assumed: the size of a
vocabulary, which fits every other, and numbers and lists, with which a rule about other fields
can be tried.
"""

import collections.abc
import dataclasses
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.configuration import gin_types
from t5x_style.interfaces import contract

ASSUMED_NUMBER = 1 << 20
ASSUMED_TOKENS = 30522
NOT_KNOWN = "<not known yet>"


class NotKnownError(Exception):
    """A decision depends on a value that is not known yet."""


class Unknown:
    """A value that is not known yet; it can be held and passed on, but not used."""

    def __repr__(self) -> str:
        return NOT_KNOWN

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotKnownError(name)


class Refused(Unknown):
    """A value that was refused; another message reports it."""


class Named(Unknown):
    """An object that is not made before the run, of which the name is known.

    Attributes:
      metrics: what it measures, where it says so, see `hooks.Evaluator`; None of all others.
    """

    def __init__(self, name: str, metrics: Sequence[str] | None = None):
        self.name, self.metrics = name, metrics


def _used(self: Any, *others: Any) -> Any:
    raise NotKnownError


_USES = (
    *("lt", "le", "gt", "ge", "eq", "ne", "bool", "len", "iter", "contains", "getitem", "call"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv"),
    *("mod", "rmod", "pow", "rpow", "neg", "abs", "int", "float", "index", "str", "fspath", "hash"),
)
for _name in _USES:
    setattr(Unknown, f"__{_name}__", _used)


class AssumedSize(int):
    """A number of tokens that fits every other: both will come from the same tokenizer."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def guess(thing: Any, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Assume the unknown arguments of a call that are numbers or lists.

    Args:
      thing: what is called.
      arguments: by name.

    Returns:
      the arguments, with a large number or an empty list for each such one; the names of these.
    """
    hints = gin_types.annotations(thing)
    assumed: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, Unknown):
            hint = hints.get(name)
            if hint in (int, float):
                assumed[name] = ASSUMED_NUMBER
            elif typing.get_origin(hint) is collections.abc.Sequence:
                assumed[name] = ()
    return {**arguments, **assumed}, list(assumed)


def existing(path: Any) -> Any:
    """A path, or a list or dict of them, with those that are not there yet unknown."""
    if isinstance(path, dict):
        return {key: existing(item) for key, item in path.items()}
    if isinstance(path, list | tuple):
        return type(path)(existing(item) for item in path)
    return Unknown() if isinstance(path, str) and path and not Path(path).exists() else path


def tokenizer(thing: Any, tokenizer_folder: Any) -> Any:
    """What one of these functions of `contract` gives of a folder, which may be unknown."""
    if isinstance(tokenizer_folder, Unknown):
        names = ("pad", "unk", "cls", "sep", "mask")
        special = {name: number for number, name in enumerate(names)}
        size = AssumedSize(ASSUMED_TOKENS)
        ids = tuple(special.values())
        vocabulary = contract.Vocabulary(
            size=size, special_ids=ids, fingerprint="assumed", **special
        )
        made = {
            contract.load_vocabulary: vocabulary,
            contract.vocabulary_size: size,
            contract.special_ids: ids,
        }
        return made[thing]
    return thing(tokenizer_folder)


def half_known(thing: Any, arguments: Mapping[str, Any]) -> Any:
    """An object whose constructor met an unknown, with the fields that are known."""
    made = thing.__new__(thing)
    for field in dataclasses.fields(thing):
        value = arguments.get(field.name, field.default)
        if value is dataclasses.MISSING:
            made_by = field.default_factory
            value = Unknown() if isinstance(made_by, dataclasses._MISSING_TYPE) else made_by()
        object.__setattr__(made, field.name, value)
    return made
