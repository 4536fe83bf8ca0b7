"""Quasi-random points: values that fill the axes evenly, whoever draws them and in what order."""

from collections.abc import Sequence
from typing import Any

from t5x_style.sweeps.axes import Axis, ordered


def points(axes: Sequence[Axis], number: int, seed: int) -> dict[str, Any]:
    """The values of point `number` of a scrambled Halton sequence (Owen 2017).

    A function of its arguments alone: workers need not agree on anything, and more points add to
    those that there are. A dimension depends on the seed and on its place alone, so an axis that is
    added last changes no other.

    Args:
      axes: of the sweep.
      number: from 0.
      seed: of the scrambling.

    Returns:
      axis -> value, without axes that do not apply (`when`).
    """
    from scipy.stats import qmc

    (drawn,) = qmc.Halton(len(axes), rng=seed).fast_forward(number).random(1)
    shares = {axis.name: min(float(x), 1 - 2**-53) for axis, x in zip(axes, drawn, strict=True)}
    values: dict[str, Any] = {}
    for axis in ordered(axes):
        if axis.applies(values):
            values[axis.name] = axis.at(shares[axis.name])
    return values
