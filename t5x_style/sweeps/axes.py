"""The axes of a sweep: parameters, their values, and their conditions.

    LEARNING_RATE/sweep.Axis.log_uniform = (1e-5, 1e-3)
    POOLING/sweep.Axis.values = ['cls', 'mean']
    rate_of_bag/sweep.Axis:
      macro = 'bag_of_embeddings/LEARNING_RATE'        # any NAME of --gin.NAME=VALUE
      values = [1e-3, 5e-3]
      default = 5e-3                                   # what the recipe has
      when = {'POOLING': ['mean']}                     # only with these values of another axis

A list of values is crossed with the other lists (a grid), or drawn from. A range (`uniform`,
`log_uniform`, `integer`, `log_integer`, both ends included) is always drawn from.
"""

import graphlib
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from t5x_style.configuration.gin_reader import closest, to_gin

Scale = Literal["values", "uniform", "log_uniform", "integer", "log_integer"]
RANGES: tuple[Scale, ...] = ("uniform", "log_uniform", "integer", "log_integer")
KINDS: tuple[Scale, ...] = ("values", *RANGES)


class Unset:
    """The default of an axis that names none: the recipe's value, whatever that is."""

    def __repr__(self) -> str:
        return "unset"


UNSET = Unset()


@dataclass(frozen=True)
class Axis:
    """A parameter that varies.

    Attributes:
      name: of the axis; `when` of other axes and reports use it.
      macro: NAME of `--gin.NAME=VALUE` that it sets.
      scale: which of the forms above it has.
      values: of a list.
      low, high: ends of a range, included.
      when: axis -> values of it with which this one applies; all must hold.
      default: the recipe's value, where the file says it.
      where: file and line.
    """

    name: str
    macro: str
    scale: Scale
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    default: Any = UNSET
    where: str = ""

    @property
    def is_list(self) -> bool:
        """Whether it is a list of values, not a range."""
        return self.scale == "values"

    @property
    def is_logarithmic(self) -> bool:
        """Whether it is a range on a logarithmic scale."""
        return self.scale in ("log_uniform", "log_integer")

    def applies(self, values: Mapping[str, Any]) -> bool:
        """Whether it is to be set, given the values of the axes before it in `ordered`."""
        return all(
            other in values and is_among(values[other], wanted)
            for other, wanted in self.when.items()
        )

    def holds(self, value: Any) -> bool:
        """Whether it has a value."""
        if self.is_list:
            return is_among(value, self.values)
        whole = self.scale in ("integer", "log_integer")
        if type(value) is not int and (whole or type(value) is not float):
            return False
        return self.low <= value <= self.high

    def at(self, share: float) -> Any:
        """The value at a share of the way through the axis.

        Args:
          share: 0 <= share < 1.

        Returns:
          a value of the list, each for an equal part of [0, 1); or a number of the range. Floats
          have six significant digits, so that names and reports can show all of a value.
        """
        if self.is_list:
            return self.values[int(share * len(self.values))]
        if self.scale == "integer":
            return int(self.low) + int(share * (int(self.high) - int(self.low) + 1))
        if self.scale == "log_integer":
            low, high = math.log(self.low), math.log(self.high + 1)
            return min(int(math.exp(low + share * (high - low))), int(self.high))
        if self.scale == "log_uniform":
            low, high = math.log(self.low), math.log(self.high)
            return self.rounded(math.exp(low + share * (high - low)))
        return self.rounded(self.low + share * (self.high - self.low))

    def rounded(self, value: float) -> float:
        """A number of the range with six significant digits."""
        return min(max(float(f"{value:.6g}"), self.low), self.high)


def is_among(value: Any, values: Sequence[Any]) -> bool:
    """Whether a value is one of some; 1, 1.0 and True are three values.

    >>> is_among(True, [1, 2]), is_among((1, 2), [[1, 2]]), is_among((1, 2), [(1, 2)])
    (False, False, True)
    """
    return to_gin(value) in {to_gin(one) for one in values}


def problems(axes: Sequence[Axis]) -> Iterator[str]:
    """Errors of axes: each by itself, and together."""
    if not axes:
        yield "no axis: bind at least one, such as LEARNING_RATE/sweep.Axis.values = [1e-5, 2e-5]"
    known = {axis.name: axis for axis in axes}
    by_macro: dict[str, Axis] = {}
    for axis in axes:
        for problem in [*_range(axis), *_values(axis), *_conditions(axis, known)]:
            yield f"{axis.where}: axis {axis.name}: {problem}"
        if (other := by_macro.setdefault(axis.macro, axis)) is not axis:
            yield (
                f"{axis.where}: axes {other.name} and {axis.name} clash: both set {axis.macro} "
                f"({other.where})"
            )
    if circle := _circle(axes):
        yield f"{known[circle[0]].where}: `when` forms a cycle: {' -> '.join(circle)}"


def _range(axis: Axis) -> Iterator[str]:
    if axis.is_list:
        return
    ends = f"({axis.low:.6g}, {axis.high:.6g})"
    whole = axis.scale in ("integer", "log_integer")
    if not all(math.isfinite(end) for end in (axis.low, axis.high)):
        yield f"{axis.scale}: expected two finite numbers, found {ends}"
    elif axis.low >= axis.high:
        yield f"{axis.scale}: expected (low, high) with low below high, found {ends}"
    elif axis.is_logarithmic and axis.low <= 0:
        yield f"{axis.scale}: expected numbers above 0, which have a logarithm, found {ends}"
    elif whole and not all(isinstance(end, int) for end in (axis.low, axis.high)):
        yield f"{axis.scale}: expected two integers, found {ends}"
    elif not isinstance(axis.default, Unset) and not axis.holds(axis.default):
        yield f"default: expected a number of {axis.scale} = {ends}, found {axis.default!r}"


def _values(axis: Axis) -> Iterator[str]:
    if not axis.is_list:
        return
    texts = [to_gin(value) for value in axis.values]
    if not texts:
        yield "values: expected at least one, found none"
    if twice := next((text for text in texts if texts.count(text) > 1), None):
        yield f"values: {twice} is there twice"
    if not isinstance(axis.default, Unset) and not is_among(axis.default, axis.values):
        yield f"default: {axis.default!r} is none of its values; add it to them"


def _conditions(axis: Axis, known: Mapping[str, Axis]) -> Iterator[str]:
    for name, wanted in axis.when.items():
        other = known.get(name)
        if other is None:
            yield f"when: no axis {name!r}{closest(name, known)}"
        elif not wanted:
            yield f"when: no value of {name} is listed, so that the axis never applies"
        elif not other.is_list:
            yield f"when: {name} is a range; only an axis with `values` can be a condition"
        else:
            for value in wanted:
                if not is_among(value, other.values):
                    yield f"when: {value!r} is no value of {name}: {list(other.values)}"


def _circle(axes: Sequence[Axis]) -> list[str]:
    """A cycle of conditions, as names from an axis back to itself; [] where there is none."""
    try:
        graphlib.TopologicalSorter({axis.name: list(axis.when) for axis in axes}).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def ordered(axes: Sequence[Axis]) -> list[Axis]:
    """The axes with conditions after those that they name; else in the given order.

    Args:
      axes: without `problems`.
    """
    found: list[Axis] = []

    def add(axis: Axis) -> None:
        if axis not in found:
            for other in axes:
                if other.name in axis.when:
                    add(other)
            found.append(axis)

    for axis in axes:
        add(axis)
    return found


def bindings(
    axes: Sequence[Axis], values: Mapping[str, Any], no_change: Mapping[str, Set[str]]
) -> dict[str, Any]:
    """Bindings of a configuration: macro -> value.

    Args:
      axes: of the sweep.
      values: axis -> value.
      no_change: axis -> values, as gin has them, that are left out.
    """
    return {
        axis.macro: values[axis.name]
        for axis in axes
        if axis.name in values and to_gin(values[axis.name]) not in no_change.get(axis.name, ())
    }
