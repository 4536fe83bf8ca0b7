"""A trained objective's functions, compiled: what evaluation, encoding, search and export call."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from t5x_style.objective import Objective
from t5x_style.train_state import Definition


def jitted_functions(
    definition: Definition, abstract: Objective
) -> dict[str, Callable[..., Any]]:
    """name -> f(params, variables, *inputs), jitted, for every function of the objective.

    Args:
      definition: merges states into a module.
      abstract: the module without arrays; tells the names.
    """

    def bind(name: str) -> Callable[..., Any]:
        def call(params: nnx.State, variables: nnx.State, *inputs: Any) -> Any:
            module = definition.module(params, variables)
            module.eval()  # no dropout
            return module.functions()[name].call(*inputs)

        return jax.jit(call)

    return {name: bind(name) for name in abstract.functions()}
