"""The configurations of a sweep that are known before it runs: grids and quasi-random points."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from t5x_style.sweeps import quasi_random
from t5x_style.sweeps.axes import Axis, bindings, ordered
from t5x_style.sweeps.trials import Configuration

NoChange = Mapping[str, Set[str]]  # axis -> its values, as gin has them, that the recipe has


def grid(axes: Sequence[Axis]) -> Iterator[dict[str, Any]]:
    """All combinations of the lists, the last axis fastest; axis -> value, where it applies.

    >>> b = Axis("B", "B", "values", (3,), when={"A": (2,)})
    >>> [*grid([Axis("A", "A", "values", (1, 2)), b])]
    [{'A': 1}, {'A': 2, 'B': 3}]
    """
    yield from _combined(ordered(axes), {})


def _combined(axes: Sequence[Axis], chosen: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not axes:
        yield chosen
        return
    first, rest = axes[0], axes[1:]
    if not first.applies(chosen):
        yield from _combined(rest, chosen)
        return
    for value in first.values:
        yield from _combined(rest, chosen | {first.name: value})


def configurations(
    axes: Sequence[Axis],
    sampler: str,
    number: int | None,
    seed: int,
    no_change: NoChange,
    recipes: Mapping[str, Any],
) -> list[Configuration]:
    """The recipe's configuration, and those of a grid or of quasi-random points, each once.

    Args:
      axes: of the sweep.
      sampler: 'grid', 'quasi_random', or another, of which only the recipe's is known.
      number: of quasi-random points.
      seed: of the points.
      no_change: values that are the recipe's.
      recipes: axis -> the recipe's value, where it is known.
    """
    points: list[dict[str, Any]] = []
    if sampler == "grid":
        points = list(grid(axes))
    elif sampler == "quasi_random":
        points = [quasi_random.points(axes, place, seed) for place in range(number or 0)]
    found: dict[str, Configuration] = {}
    own = Configuration(0, dict(recipes), {}, {})
    for made in (own, *(of(axes, values, 0, no_change) for values in points)):
        found.setdefault(made.name, replace(made, number=len(found)))
    return list(found.values())


def of(
    axes: Sequence[Axis], values: Mapping[str, Any], number: int, no_change: NoChange
) -> Configuration:
    """The configuration with these values.

    Args:
      axes: of the sweep.
      values: axis -> value.
      number: its place.
      no_change: values that are the recipe's.
    """
    return Configuration(
        number, dict(values), bindings(axes, values, {}), bindings(axes, values, no_change)
    )
