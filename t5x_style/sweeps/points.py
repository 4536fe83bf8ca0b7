"""The configurations of a sweep that are known before it runs: grids and quasi-random points."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from t5x_style.sweeps import quasi_random
from t5x_style.sweeps.axes import Axis, bindings, ordered
from t5x_style.sweeps.sweep_reader import Sweep
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
    sweep: Sweep, no_change: NoChange, recipes: Mapping[str, Any]
) -> list[Configuration]:
    """The configurations that are known before a sweep runs, each once, the recipe's first.

    Args:
      sweep: its axes, and the points that it names, of a grid, or quasi-random.
      no_change: values that are the recipe's.
      recipes: axis -> the recipe's value, where it is known.
    """
    axes = sweep.axes
    points = [dict(one) for one in sweep.points]
    if sweep.sampler == "grid":
        points += grid(axes)
    elif sweep.sampler == "quasi_random":
        count = sweep.trials or 0
        points += [quasi_random.points(axes, place, sweep.sampler_seed) for place in range(count)]
    found: dict[str, Configuration] = {}
    of_recipe = Configuration(0, dict(recipes), {}, {})
    for made in (of_recipe, *(of(axes, values, 0, no_change) for values in points)):
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
