"""A trained objective's functions, compiled: what evaluation, encoding, search and export call."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
from flax import nnx

OBJECTIVE = "objective"  # what a trainer calls `jitted_objective` among an objective's functions


def pure_function(graphdef: nnx.GraphDef, name: str) -> Callable[..., Any]:
    """f(params, variables, *inputs) for a function of `Objective.functions()`, without dropout.

    Args:
      graphdef: merge(graphdef, params, variables) is the module.
      name: of the function.
    """

    def call(params: nnx.State, variables: nnx.State, *inputs: Any) -> Any:
        module = nnx.merge(graphdef, params, variables, copy=True)
        module.eval()  # no dropout
        return module.functions()[name].call(*inputs)

    return call


def jitted_objective(graphdef: nnx.GraphDef, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """f(params, variables, batch, key) -> an objective's metrics of a clean batch, jitted.

    'loss' is among them. There is no dropout; what is hidden and retrieved is as in training.

    Args:
      graphdef: merge(graphdef, params, variables) is the objective.
      mesh: that parameters and batch are spread over.
    """

    def call(params: nnx.State, variables: nnx.State, batch: Any, key: jax.Array) -> Any:
        module = nnx.merge(graphdef, params, variables, copy=True)
        module.eval()
        corrupt_key, retrieve_key, loss_key = jax.random.split(key, 3)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            batch = module.retrieve(module.corrupt(batch, corrupt_key), retrieve_key)
            loss, metrics = module.loss(batch, loss_key)
        return {**metrics, "loss": loss}

    return jax.jit(call)


def jitted_functions(
    graphdef: nnx.GraphDef, names: Iterable[str], mesh: jax.sharding.Mesh | None = None
) -> dict[str, Callable[..., Any]]:
    """name -> `pure_function`, jitted.

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

    def jitted(name: str) -> Callable[..., Any]:
        function = pure_function(graphdef, name)

        def call(params: nnx.State, variables: nnx.State, *inputs: Any) -> Any:
            with context():
                return function(params, variables, *inputs)

        return jax.jit(call)

    return {name: jitted(name) for name in names}
