"""A parsed manifest, read by paths: what is missing is a value too, and problems have places."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


class _Missing:
    """The value of what a manifest does not have."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


@dataclass(frozen=True)
class Problem:
    """Where a manifest breaks a rule.

    Attributes:
      rule: 1 to 12, as in `job_set_rules`.
      path: in the manifest.
      expected: in words.
      found: the value there.
    """

    rule: int
    path: str
    expected: str
    found: object

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, found {self.found!r} (rule {self.rule})"


@dataclass(frozen=True)
class Node:
    """A value of the manifest, and where it is. What is not there is `MISSING`."""

    value: Any
    path: str = ""

    def __getitem__(self, key: str | int) -> "Node":
        inside = self.value
        name = f"[{key}]" if isinstance(key, int) or "/" in key else f".{key}"
        if isinstance(key, int):
            has = isinstance(inside, list) and key < len(inside)
        else:
            has = isinstance(inside, dict) and key in inside
        return Node(inside[key] if has else MISSING, f"{self.path}{name}".removeprefix("."))

    def at(self, *keys: str | int) -> "Node":
        """Several steps down."""
        node = self
        for key in keys:
            node = node[key]
        return node

    @property
    def items(self) -> list["Node"]:
        """Of a list; of anything else, none."""
        return [self[n] for n in range(len(self.value))] if isinstance(self.value, list) else []

    def by(self, key: str) -> dict[str, "Node"]:
        """Items of a list by one of their fields; the first of equal ones."""
        return {str(one[key].value): one for one in reversed(self.items)}

    @property
    def texts(self) -> list[str]:
        """Items of a list, as texts."""
        return [str(one.value) for one in self.items]

    def problem(self, rule: int, expected: str) -> Problem:
        """That this value is not the expected one."""
        return Problem(rule, self.path, expected, self.value)

    def unless(self, rule: int, wanted: object, why: str = "") -> Iterator[Problem]:
        """A problem unless the value is the wanted one, of the same type."""
        if type(self.value) is not type(wanted) or self.value != wanted:
            yield self.problem(rule, f"{wanted!r}{why and f' ({why})'}")
