"""Floating-point operations of a traced function: its matrix products, times the trips of loops.

Compilers count a loop once. Here the jaxpr is walked: rematerialised products are counted as often
as they run; products whose results nothing uses are not. Elementwise work is not counted.
"""

import dataclasses
import math
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params
from jax.interpreters import partial_eval


@dataclasses.dataclass(frozen=True)
class Count:
    """Attributes:
    flops: of the global program, 2 for a multiplication and an addition.
    unknown_loops: loops with products in them whose trips depend on data; counted as one trip.
    """

    flops: float = 0.0
    unknown_loops: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.flops + other.flops, self.unknown_loops + other.unknown_loops)

    def times(self, trips: float) -> "Count":
        """That often."""
        return Count(self.flops * trips, self.unknown_loops)


def count(closed: ClosedJaxpr) -> Count:
    """FLOPs of a call of the traced function, on all devices together."""
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return _of_jaxpr(jaxpr)


def _of_jaxpr(jaxpr: Jaxpr) -> Count:
    return sum((_of_equation(equation) for equation in jaxpr.eqns), Count())


def _of_equation(equation: Any) -> Count:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        inner = math.prod(shape[axis] for axis in contracted)
        return Count(2.0 * equation.outvars[0].aval.size * inner)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval
        outputs = kernel.shape[params["dimension_numbers"].rhs_spec[0]]
        return Count(2.0 * equation.outvars[0].aval.size * kernel.size / outputs)
    inside = [_of_jaxpr(getattr(sub, "jaxpr", sub)) for sub in jaxprs_in_params(params)]
    if name == "cond":  # at most one branch runs
        return max(inside, key=lambda one: one.flops)
    total = sum(inside, Count())
    if name == "scan":
        return total.times(params["length"])
    if name == "while" and total.flops:
        return total + Count(unknown_loops=1)
    if name == "shard_map":  # shapes inside are those of one device along these axes
        sizes = params["mesh"].shape
        return total.times(math.prod(sizes[axis] for axis in params["newly_manual_axes"]))
    if name == "pallas_call":  # shapes inside are those of one block
        return total.times(math.prod(params["grid_mapping"].grid))
    return total
