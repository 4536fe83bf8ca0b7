"""A trained objective's functions, compiled: what evaluation, encoding, search and export call."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
from flax import nnx


def jitted_functions(
    graphdef: nnx.GraphDef, names: Iterable[str], mesh: jax.sharding.Mesh | None = None
) -> dict[str, Callable[..., Any]]:
    """name -> f(params, variables, *inputs), jitted, for functions of an objective.

    Args:
      graphdef: merge(graphdef, params, variables) is the module.
      names: of `Objective.functions()`.
      mesh: that parameters and inputs are spread over; a kernel has to know it. None: one device.
    """
    context = (
        contextlib.nullcontext
        if mesh is None
        else lambda: jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
    )

    def bind(name: str) -> Callable[..., Any]:
        def call(params: nnx.State, variables: nnx.State, *inputs: Any) -> Any:
            module = nnx.merge(graphdef, params, variables, copy=True)
            module.eval()  # no dropout
            with context():
                return module.functions()[name].call(*inputs)

        return jax.jit(call)

    return {name: bind(name) for name in names}
