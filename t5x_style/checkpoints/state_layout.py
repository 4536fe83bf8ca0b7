"""Layout of a checkpoint: a TrainState as named items of plain nested dicts, and back."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_style.interfaces.objective import Table
from t5x_style.step.optimizers import path_string
from t5x_style.step.train_state import TrainState

Shapes = Mapping[str, Mapping[str, str]]
_log = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, is damaged, or belongs to another architecture."""


def items(state: TrainState) -> dict[str, Any]:
    """Items of a checkpoint: nested dicts of arrays, or of their shapes.

    All parameters are in one item, so that a run that freezes others can start from them. Tables
    are left out: they come from their sources.
    """
    frozen, _, others = nnx.split_state(state.variables, nnx.Param, Table, ...)
    everything = {
        "parameters": nested(nnx.merge_state(state.params, frozen)),
        "optimizer": _nest(_optimizer_leaves(state.opt_state)),
        "variables": nested(others),
        "progress": {"step": state.step, "key": _key_data(state.key)},
    }
    return {name: item for name, item in everything.items() if jax.tree.leaves(item)}


def state_like(
    target: TrainState, found: Mapping[str, Any], shardings: TrainState, key_impl: str
) -> TrainState:
    """The inverse of `items` for arrays that were read: a state like `target`, which is healthy.

    Args:
      target: of ShapeDtypeStructs with shardings.
      found: items; moments that are not in it start from 0, as Adam's do.
      shardings: of `target`.
      key_impl: JAX's name of the random number generator that the key is of.
    """
    parameters, variables = found["parameters"], found.get("variables", {})
    key = jax.random.wrap_key_data(found["progress"]["key"], impl=key_impl)
    return TrainState(
        step=found["progress"]["step"],
        params=filled(target.params, parameters),
        opt_state=_filled_optimizer(target.opt_state, found.get("optimizer", {})),
        variables=filled(target.variables, parameters, variables),
        key=jax.device_put(key, shardings.key),
        healthy=jnp.ones((), jnp.bool_, device=shardings.healthy),
    )


def nested(state: nnx.State) -> dict[str, Any]:
    """Nested dicts of arrays with string keys."""
    return _nest((path, variable.get_value()) for path, variable in nnx.to_flat_state(state))


def filled(state: nnx.State, *sources: Mapping[str, Any]) -> nnx.State:
    """`state` with each variable's value looked up by path in the sources; tables unchanged."""
    return nnx.from_flat_state(
        [
            (path, leaf if isinstance(leaf, Table) else leaf.replace(_find(path, sources)))
            for path, leaf in nnx.to_flat_state(state)
        ]
    )


def shapes(items: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """item -> path -> 'float32[3, 4]'."""
    return {
        name: {
            jax.tree_util.keystr(path, simple=True, separator="/"): _describe(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(item)
        }
        for name, item in items.items()
    }


def without_fresh_moments(wanted: Mapping[str, Any], saved: Shapes) -> dict[str, Any]:
    """`wanted` without the moments of parameters that were frozen when `saved` was saved."""
    parameters = wanted["parameters"]
    names = list(shapes({"parameters": parameters})["parameters"])
    flat = shapes({"optimizer": wanted.get("optimizer", {})})["optimizer"]
    had = {_owner(path, names) for path in saved.get("optimizer", {})}
    fresh = {p for p in flat if (owner := _owner(p, names)) is not None and owner not in had}
    if not fresh:
        return dict(wanted)
    _log.warning("moments start from 0, their parameters were frozen before: %s", sorted(fresh))
    kept = [
        (path, leaf) for path, leaf in _flat(wanted["optimizer"]) if path_string(path) not in fresh
    ]
    return dict(wanted) | {"optimizer": _nest(kept)}


def without_frozen_moments(saved: Shapes, wanted: Shapes) -> dict[str, Mapping[str, str]]:
    """`saved` without the moments of parameters that are frozen now."""
    names = list(wanted.get("parameters", {}))
    has = {_owner(path, names) for path in wanted.get("optimizer", {})}
    kept = {
        path: shape
        for path, shape in saved.get("optimizer", {}).items()
        if (owner := _owner(path, names)) is None or owner in has
    }
    return dict(saved) | ({"optimizer": kept} if kept else {})


def require_shapes(saved: Shapes, wanted: Shapes, path: Path) -> None:
    """Raises CheckpointError, a line an array, unless names and shapes are the same."""
    lines = []
    for item in sorted(saved.keys() | wanted.keys()):
        have, want = saved.get(item, {}), wanted.get(item, {})
        for name in sorted(have.keys() | want.keys()):
            if name not in have:
                lines.append(f"  {item} {name}: expected {want[name]}, missing in the checkpoint")
            elif name not in want:
                lines.append(f"  {item} {name}: not expected, the checkpoint has {have[name]}")
            elif have[name] != want[name]:
                lines.append(f"  {item} {name}: expected {want[name]}, found {have[name]}")
    if lines:
        shown = lines[:30] + ([f"  and {len(lines) - 30} more"] if len(lines) > 30 else [])
        raise CheckpointError(
            f"{path} is a checkpoint of another architecture or optimizer:\n"
            + "\n".join(shown)
            + "\nUse the configuration that it was trained with (operative_config.gin is next to "
            "checkpoints/), another MODEL_DIR, or initialise_from to import a part."
        )


def _optimizer_leaves(opt_state: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Path -> leaf: ('1', 'mu', 'encoder', ..., 'kernel')."""
    leaves = jax.tree_util.tree_leaves_with_path(
        opt_state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )
    return [
        (tuple(jax.tree_util.keystr((part,), simple=True) for part in path), _value(leaf))
        for path, leaf in leaves
    ]


def _filled_optimizer(target: Any, found: Mapping[str, Any]) -> Any:
    leaves = []
    for path, leaf in _optimizer_leaves(target):
        value = _find(path, (found,), default=None)
        if value is None:
            value = jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)
        leaves.append(value)
    return jax.tree.unflatten(jax.tree.structure(target), leaves)


def _owner(path: str, parameters: list[str]) -> str | None:
    """The parameter that an optimizer's array belongs to: its path ends with the parameter's."""
    owners = [name for name in parameters if path.endswith(f"/{name}")]
    return max(owners, key=len, default=None)


def _value(leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def _key_data(key: Any) -> Any:
    """Typed keys are saved as the integers they are made of."""
    if not isinstance(key, jax.ShapeDtypeStruct):
        return jax.random.key_data(key)
    data = jax.eval_shape(jax.random.key_data, key)
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=key.sharding)


def _nest(flat: Iterable[tuple[Iterable[Any], Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for path, leaf in flat:
        *parents, last = (str(part) for part in path)
        node = result
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = leaf
    return result


def _flat(tree: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    return [
        (tuple(str(part.key) for part in path), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _find(path: Iterable[Any], sources: Iterable[Mapping[str, Any]], default: Any = ...) -> Any:
    path = tuple(path)
    for source in sources:
        node: Any = source
        for part in path:
            node = node.get(str(part)) if isinstance(node, Mapping) else None
        if node is not None:
            return node
    if default is ...:
        raise KeyError(path_string(path))
    return default


def _describe(leaf: Any) -> str:
    return f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}"
