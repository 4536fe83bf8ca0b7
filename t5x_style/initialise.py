"""Takes over weights from a checkpoint or from another library's files, by path.

A run that neither resumes nor starts from scratch names its sources in gin:

    train.train.initialise_from = [@initialise.Initialise()]
    initialise.Initialise.source = @initialise.Checkpoint()
    initialise.Initialise.paths = {'encoder': 'encoder'}
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from t5x_style import checkpointing
from t5x_style.optim import path_string
from t5x_style.train_state import TrainState


class InitialiseError(ValueError):
    """Weights that do not fit; the message lists every path."""


class Source(Protocol):
    """Something with weights."""

    def arrays(self) -> Mapping[str, np.ndarray]:
        """Path -> array; arrays of stacked layers have the layers first."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The parameters of one of our own training stages.

    Attributes:
      folder: of the stage.
      step: which checkpoint; the best by development metric by default, or else the newest.
    """

    folder: str
    step: int | None = None

    def arrays(self) -> Mapping[str, np.ndarray]:
        """Path -> array.

        Raises:
          CheckpointError: there is none, or it is damaged.
        """
        path = checkpointing.find(self.folder, self.step)
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
            found = reader.restore(
                path, args=ocp.args.Composite(parameters=ocp.args.StandardRestore())
            )
        flat = jax.tree_util.tree_leaves_with_path(found["parameters"])
        return {
            jax.tree_util.keystr(where, simple=True, separator="/"): np.asarray(leaf)
            for where, leaf in flat
        }


@dataclasses.dataclass(frozen=True)
class Initialise:
    """What is taken over from one source.

    Attributes:
      source: where the weights come from.
      paths: path in the source -> path here; a path stands for everything below it.
      layers: which layers of the source, in order, for stacked parameters: [-2, -1] takes the last
        two, [0, 0, 1, 1] repeats each of two; None takes all as they are.
      unused: regular expressions for paths of the source below `paths` that may be left over.
      missing: regular expressions for paths here, below `paths`, that may keep their fresh values.
    """

    source: Source
    paths: Mapping[str, str]
    layers: Sequence[int] | None = None
    unused: Sequence[str] = ()
    missing: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.source} ({', '.join(f'{a} -> {b}' for a, b in self.paths.items())})"


def apply(
    state: TrainState, initialisers: Sequence[Initialise], shardings: TrainState
) -> TrainState:
    """The state with weights taken over, each array in its sharding; later sources win.

    A table with rows to spare (a vocabulary padded for another mesh) is filled from the top and
    keeps its fresh rows below.

    Raises:
      InitialiseError: a path matches nothing, something is left over or missing that no pattern
        allows, or a shape differs.
    """
    params = dict(nnx.to_flat_state(state.params))
    frozen = dict(nnx.to_flat_state(nnx.split_state(state.variables, nnx.Param, ...)[0]))
    here = {path_string(path): variable for path, variable in (params | frozen).items()}
    taken: dict[str, np.ndarray] = {}
    for initialiser in initialisers:
        taken |= _match(initialiser, here)
    return dataclasses.replace(
        state,
        params=_replace(state.params, shardings.params, taken),
        variables=_replace(state.variables, shardings.variables, taken),
    )


def _match(initialiser: Initialise, here: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Target path -> array in its final shape, for one source."""
    arrays = initialiser.source.arrays()
    problems: list[str] = []
    result = {}
    for source_prefix, target_prefix in initialiser.paths.items():
        theirs = _below(arrays, source_prefix)
        ours = _below(here, target_prefix)
        if not theirs:
            problems.append(
                f"{source_prefix!r}: the source has nothing there, only {_tops(arrays)}"
            )
        if not ours:
            problems.append(f"{target_prefix!r}: there is nothing here, only {_tops(here)}")
        for rest in sorted(theirs.keys() - ours.keys()):
            if not _allowed(initialiser.unused, _join(source_prefix, rest)):
                problems.append(f"{_join(source_prefix, rest)}: in the source, not here")
        for rest in sorted(ours.keys() - theirs.keys()):
            if not _allowed(initialiser.missing, _join(target_prefix, rest)):
                problems.append(f"{_join(target_prefix, rest)}: here, not in the source")
        for rest in sorted(ours.keys() & theirs.keys()):
            name = _join(target_prefix, rest)
            try:
                result[name] = _fit(theirs[rest], ours[rest], initialiser.layers)
            except ValueError as error:
                problems.append(f"{name}: {error}")
    if problems:
        raise InitialiseError(
            f"{initialiser.source}: weights do not fit:\n  "
            + "\n  ".join(problems)
            + "\nMend Initialise.paths, or list what may be left in Initialise.unused and "
            "Initialise.missing."
        )
    return result


def _fit(array: np.ndarray, variable: Any, layers: Sequence[int] | None) -> np.ndarray:
    names = variable.get_metadata().get("out_sharding") or ()
    if layers is not None and names[:1] == ("layers",):
        array = array[np.asarray(layers)]
    shape = variable.shape
    if array.shape == shape:
        return array
    padded = names[:1] == ("vocab",) and array.shape[1:] == shape[1:] and array.shape[0] < shape[0]
    if not padded:
        raise ValueError(f"expected shape {tuple(shape)}, found {array.shape}")
    fresh = np.array(jax.device_get(variable.get_value()))
    fresh[: array.shape[0]] = array
    return fresh


def _replace(state: nnx.State, shardings: nnx.State, taken: Mapping[str, np.ndarray]) -> nnx.State:
    placed = []
    where = dict(nnx.to_flat_state(shardings))
    for path, variable in nnx.to_flat_state(state):
        array = taken.get(path_string(path))
        if array is not None:
            sharding = where[path].get_value()
            variable = variable.replace(_place(array.astype(variable.dtype), sharding))
        placed.append((path, variable))
    return nnx.from_flat_state(placed)


def _place(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _below(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What lies at or below a path, by the rest of the path."""
    if not prefix:
        return dict(tree)
    start = prefix + "/"
    found = {path[len(start) :]: leaf for path, leaf in tree.items() if path.startswith(start)}
    return found | ({"": tree[prefix]} if prefix in tree else {})


def _join(prefix: str, rest: str) -> str:
    return "/".join(part for part in (prefix, rest) if part)


def _tops(tree: Mapping[str, Any]) -> list[str]:
    return sorted({path.split("/")[0] for path in tree})


def _allowed(patterns: Sequence[str], path: str) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)
