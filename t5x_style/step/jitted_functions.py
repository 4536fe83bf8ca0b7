"""A trained objective's functions, compiled: what evaluation, encoding, search and export call."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx

from t5x_style.interfaces.objective import ModelFunction

OBJECTIVE = "objective"  # what a trainer calls `jitted_objective` among an objective's functions


def pure_function(graphdef: nnx.GraphDef, name: str) -> Callable[..., Any]:
    """f(params, variables, *inputs, **static) for a function of `Objective.functions()`.

    Without dropout.

    Args:
      graphdef: merge(graphdef, params, variables) is the module.
      name: of the function.
    """

    def call(params: nnx.State, variables: nnx.State, *inputs: Any, **static: Any) -> Any:
        module = nnx.merge(graphdef, params, variables, copy=True)
        module.eval()  # no dropout
        function = module.functions()[name]
        found = function(*inputs, **static)
        # A function may compute more than it is asked for: compiled, what is not returned is not
        # computed.
        return {kind: found[kind] for kind in static["kinds"]} if static else found

    return call


def jitted_objective(graphdef: nnx.GraphDef, mesh: jax.sharding.Mesh) -> ModelFunction:
    """(params, variables, batch, key) -> an objective's metrics of a clean batch, jitted.

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

    return ModelFunction(jax.jit(call), {}, "metrics by name", "metrics")


def jitted_functions(
    graphdef: nnx.GraphDef,
    functions: Mapping[str, ModelFunction],
    mesh: jax.sharding.Mesh | None = None,
) -> dict[str, ModelFunction]:
    """name -> a function that calls `pure_function`, jitted; the kinds it returns are static.

    Args:
      graphdef: merge(graphdef, params, variables) is the module.
      functions: of the objective, all or some.
      mesh: that parameters and inputs are spread over; a kernel has to know it. None: one device.
    """
    context = (
        contextlib.nullcontext
        if mesh is None
        else lambda: jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
    )

    def jitted(name: str) -> Callable[..., Any]:
        function = pure_function(graphdef, name)

        def call(params: nnx.State, variables: nnx.State, *inputs: Any, **static: Any) -> Any:
            with context():
                return function(params, variables, *inputs, **static)

        return jax.jit(call, static_argnames="kinds")

    return {
        name: dataclasses.replace(function, call=jitted(name))
        for name, function in functions.items()
    }


def bound(
    functions: Mapping[str, ModelFunction], params: nnx.State, variables: nnx.State
) -> dict[str, ModelFunction]:
    """Jitted functions with the parameters and variables that they are called with."""
    return {
        name: dataclasses.replace(
            function, call=functools.partial(function.call, params, variables)
        )
        for name, function in functions.items()
    }
