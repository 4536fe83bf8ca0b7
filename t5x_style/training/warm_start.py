"""Imports weights from a checkpoint or from another library's files, by path.

A run that neither resumes nor starts from scratch names its sources in gin:

    train.train.initialise_from = [@warm_start.Initialise()]
    warm_start.Initialise.source = @warm_start.Checkpoint()
    warm_start.Initialise.paths = {'encoder': 'encoder'}
    warm_start.Initialise.unused = ['^head/']

Every parameter here must come from some source, and every one of a source must go somewhere, unless
it is listed: a mistyped path would otherwise leave part of a model untrained in silence.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from t5x_style.checkpoints import checkpointing
from t5x_style.step.optimizers import path_string
from t5x_style.step.train_state import TrainState


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
        return checkpointing.read_parameters(self.folder, self.step)


@dataclasses.dataclass(frozen=True)
class Initialise:
    """Weights to import from one source.

    Attributes:
      source: where the weights come from.
      paths: path in the source -> path here; a path means everything below it, '' for all.
      layers: which layers of the source, in order, for stacked parameters: [-2, -1] takes the last
        two, [0, 0, 1, 1] repeats each of two, [-1] also fills a single layer; None takes all.
      unused: regular expressions for paths of the source that may be left over.
      missing: regular expressions for paths here that may keep their fresh values.
    """

    source: Source
    paths: Mapping[str, str]
    layers: Sequence[int] | None = None
    unused: Sequence[str] = ()
    missing: Sequence[str] = ()

    def __str__(self) -> str:
        pairs = [f"{a or 'all'} -> {b or 'all'}" for a, b in self.paths.items()]
        return f"{self.source} ({', '.join(pairs)})"


@dataclasses.dataclass
class _Opened:
    """A source that has been read, and what has been taken of it by all who name it."""

    source: Source
    arrays: Mapping[str, np.ndarray]
    used: set[str] = dataclasses.field(default_factory=set)
    unused: list[str] = dataclasses.field(default_factory=list)


def apply(
    state: TrainState, initialisers: Sequence[Initialise], shardings: TrainState
) -> TrainState:
    """As `taken_over`, the state alone."""
    return taken_over(state, initialisers, shardings)[0]


def taken_over(
    state: TrainState, initialisers: Sequence[Initialise], shardings: TrainState
) -> tuple[TrainState, list[str]]:
    """The state with imported weights, each array in its sharding; later sources win.

    A table with rows to spare (a vocabulary padded for another mesh) is filled from the top and
    keeps its fresh rows below.

    Returns:
      the state, and the paths of the parameters that no source has, which keep their fresh values.

    Raises:
      InitialiseError: a path matches nothing, something is left over or missing that no pattern
        allows, or a shape differs. Lists them all.
    """
    here = _parameters(state)
    opened: list[_Opened] = []
    taken: dict[str, np.ndarray] = {}
    problems: list[str] = []
    misfits: dict[str, str] = {}
    for initialiser in initialisers:
        source = _open(initialiser.source, opened)
        source.unused += initialiser.unused
        for theirs, ours in _pairs(initialiser, source.arrays, here, problems):
            source.used.add(theirs)
            try:
                taken[ours] = _fit(source.arrays[theirs], here[ours], initialiser.layers)
            except ValueError as error:
                misfits[ours] = f"{ours} from {theirs} of {source.source}: {error}"
    missing = [pattern for initialiser in initialisers for pattern in initialiser.missing]
    absent = sorted(here.keys() - taken.keys() - misfits.keys())
    problems += [*misfits.values(), *_left_over(opened)]
    problems += [
        f"{path}: in the model, in no source" for path in absent if not _allowed(missing, path)
    ]
    if problems:
        raise InitialiseError(
            "weights do not fit:\n  "
            + "\n  ".join(problems)
            + "\nCorrect Initialise.paths or Initialise.layers, or list what may be left over in "
            "Initialise.unused, what may keep its fresh values in Initialise.missing."
        )
    if absent and jax.process_index() == 0:
        print(f"in no source, so fresh: {_summary(absent, here)}", flush=True)
    state = dataclasses.replace(
        state,
        params=_replace(state.params, shardings.params, taken),
        variables=_replace(state.variables, shardings.variables, taken),
    )
    return state, absent


def _parameters(state: TrainState) -> dict[str, Any]:
    """Path -> variable of every parameter, trainable or frozen."""
    frozen = nnx.split_state(state.variables, nnx.Param, ...)[0]
    found = (*nnx.to_flat_state(state.params), *nnx.to_flat_state(frozen))
    return {path_string(path): variable for path, variable in found}


def _summary(paths: Sequence[str], tree: Mapping[str, Any]) -> str:
    """The paths, in words; a part of the model that is there as a whole by its name alone."""
    words = []
    for top in _tops(dict.fromkeys(paths)):
        below = [path for path in paths if path.split("/")[0] == top]
        whole = len(below) == sum(path.split("/")[0] == top for path in tree)
        words += [f"{top} ({len(below)} parameters)"] if whole else below
    return ", ".join(words)


def _open(source: Source, opened: list[_Opened]) -> _Opened:
    """Reads a source once, however many initialisers name it."""
    for known in opened:
        if known.source == source:
            return known
    opened.append(_Opened(source, source.arrays()))
    return opened[-1]


def _pairs(
    initialiser: Initialise,
    arrays: Mapping[str, Any],
    here: Mapping[str, Any],
    problems: list[str],
) -> Iterator[tuple[str, str]]:
    """(path in the source, path here) of what is on both sides."""
    for source_prefix, target_prefix in initialiser.paths.items():
        theirs, ours = _below(arrays, source_prefix), _below(here, target_prefix)
        if not theirs:
            problems.append(
                f"{source_prefix!r}: {initialiser.source} has nothing there, only {_tops(arrays)}"
            )
        if not ours:
            problems.append(f"{target_prefix!r}: the model has nothing there, only {_tops(here)}")
        for rest in sorted(theirs & ours):
            yield _join(source_prefix, rest), _join(target_prefix, rest)


def _left_over(opened: Sequence[_Opened]) -> list[str]:
    return [
        f"{path}: in {one.source}, taken by nothing here"
        for one in opened
        for path in sorted(one.arrays.keys() - one.used)
        if not _allowed(one.unused, path)
    ]


def _fit(array: np.ndarray, variable: Any, layers: Sequence[int] | None) -> np.ndarray:
    """The array in the shape of the variable.

    Raises:
      ValueError: with both shapes.
    """
    names, shape = variable.get_metadata().get("out_sharding") or (), tuple(variable.shape)
    stacked = names[:1] == ("layers",)
    if layers is not None and (stacked or array.ndim == len(shape) + 1):
        if not all(-len(array) <= layer < len(array) for layer in layers):
            raise ValueError(f"expected layers among {len(array)}, found {list(layers)}")
        array = array[np.asarray(layers)]
        array = array[0] if not stacked and len(layers) == 1 else array
    if array.shape == shape:
        return array
    padded = names[:1] == ("vocab",) and array.shape[1:] == shape[1:] and len(array) < shape[0]
    if not padded:
        raise ValueError(f"expected shape {shape}, found {array.shape}")
    fresh = _on_host(variable.get_value())
    fresh[: len(array)] = array
    return fresh


def _on_host(array: jax.Array) -> np.ndarray:
    """A copy that may be written to; whole on every process."""
    if not array.is_fully_addressable:
        from jax.experimental import multihost_utils

        return np.array(multihost_utils.process_allgather(array, tiled=True))
    return np.array(array)


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


def _below(tree: Mapping[str, Any], prefix: str) -> set[str]:
    """The rests of the paths at or below a path."""
    if not prefix:
        return set(tree)
    start = prefix + "/"
    return {path[len(start) :] for path in tree if path.startswith(start)} | (
        {""} if prefix in tree else set()
    )


def _join(prefix: str, rest: str) -> str:
    return "/".join(part for part in (prefix, rest) if part)


def _tops(tree: Mapping[str, Any]) -> list[str]:
    return sorted({path.split("/")[0] for path in tree})


def _allowed(patterns: Sequence[str], path: str) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)
