"""Checkpoints: asynchronous, complete or ignored, verified before they are used.

Each is a folder `<step>/` of orbax items, stored apart so that parameters can be read alone:

  parameters   every nnx.Param, trainable or frozen, as nested dicts by path
  optimizer    optax's state
  variables    every other Variable, likewise by path (absent if there is none)
  progress     step and key
  meta         JSON: what the trainer says, and the shape of every array

`integrity.json` is written last, by `integrity.write`; without it the folder does not count.
"""

import dataclasses
import errno
import json
import logging
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from flax import nnx

from t5x_style import integrity
from t5x_style.optim import path_string
from t5x_style.train_state import TrainState

BEST = "best.json"
_log = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, is damaged, or belongs to another architecture."""


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """Settings.

    Attributes:
      keep: how many of the newest stay; the best by the development metric stays besides.
      asynchronous: write in the background while training goes on.
      fall_back: if the newest is damaged, use the one before it instead of stopping.
    """

    keep: int
    asynchronous: bool = True
    fall_back: bool = False

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"Checkpointing.keep: expected at least 1, found {self.keep}")


class Checkpointer:
    """Writes and reads the checkpoints of one training run."""

    def __init__(self, folder: Path, settings: Checkpointing):
        """Args:
        folder: nobody else writes there.
        settings: see `Checkpointing`.
        """
        self.folder, self.settings = Path(folder).absolute(), settings
        self._orbax: ocp.AsyncCheckpointer | ocp.Checkpointer | None = None
        self._finishing: threading.Thread | None = None
        self._error: BaseException | None = None
        self._best = read_best(self.folder)
        self.last_saved = latest(self.folder)  # by this run or the one before it

    def latest(self) -> int | None:
        """The step of the newest complete checkpoint."""
        return latest(self.folder)

    def best(self) -> tuple[int, float] | None:
        """Step and value of the best development metric so far."""
        return self._best

    def save(self, state: TrainState, meta: dict[str, Any], value: float | None = None) -> None:
        """Starts writing; returns once the arrays may be donated.

        Args:
          state: a healthy one.
          meta: anything that JSON holds.
          value: of the development metric, larger is better.

        Raises:
          CheckpointError: there is no room, or the save before this one has failed.
        """
        self.wait()
        step = int(state.step)
        items = _items(state)
        self._require_room(step, items)
        if self._orbax is None:
            self._start()
        if value is not None and (self._best is None or value > self._best[1]):
            self._best = (step, value)
        arrays = {name: ocp.args.StandardSave(item) for name, item in items.items()}
        meta = meta | {"value": value, "shapes": _shapes(items)}
        assert self._orbax is not None
        try:
            self._orbax.save(
                self.folder / str(step),
                args=ocp.args.Composite(**arrays, meta=ocp.args.JsonSave(meta)),
            )
        except Exception as error:
            raise self._explain(step, error) from error
        self.last_saved = step
        self._finishing = threading.Thread(target=self._finish, args=(step, self._best))
        self._finishing.start()
        if not self.settings.asynchronous:
            self.wait()

    def _start(self) -> None:
        """Clears away what a killed run left half-written; then makes the writer."""
        if jax.process_index() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.iterdir():
                if path.is_dir() and _is_unfinished(path):
                    _log.warning("removing %s: a checkpoint that was never finished", path)
                    shutil.rmtree(path)
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices("checkpoint folder cleared")
        handler = ocp.CompositeCheckpointHandler()
        self._orbax = ocp.AsyncCheckpointer(handler)

    def _finish(self, step: int, best: tuple[int, float] | None) -> None:
        """In the background: waits for orbax, then makes the checkpoint count."""
        try:
            assert self._orbax is not None
            self._orbax.wait_until_finished()
            if jax.process_index() == 0:
                integrity.write(self.folder / str(step))
                if best is not None:
                    _write_json(self.folder / BEST, {"step": best[0], "value": best[1]})
                self._delete_old(best)
        except BaseException as error:
            self._error = self._explain(step, error)

    def _delete_old(self, best: tuple[int, float] | None) -> None:
        keep = set(complete_steps(self.folder)[-self.settings.keep :])
        keep |= set() if best is None else {best[0]}
        for step in set(complete_steps(self.folder)) - keep:
            # Without its record it no longer counts, should the process die while deleting.
            (self.folder / str(step) / integrity.FILE_NAME).unlink()
            shutil.rmtree(self.folder / str(step))

    def wait(self) -> None:
        """Returns once the last save is complete.

        Raises:
          CheckpointError: it failed; the checkpoint before it is intact.
        """
        if self._finishing is not None:
            self._finishing.join()
            self._finishing = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Waits and frees the writer."""
        self.wait()
        if self._orbax is not None:
            self._orbax.close()
            self._orbax = None

    def _require_room(self, step: int, items: dict[str, Any]) -> None:
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(items))
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        if needed > free:
            raise self._explain(step, OSError(errno.ENOSPC, f"needs about {needed:,} bytes"))

    def _explain(self, step: int, error: BaseException) -> CheckpointError:
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        last = self.latest()
        kept = "there is none before it" if last is None else f"step {last} is intact"
        full = "no space left on the disk: " if _is_full(error) else ""
        return CheckpointError(
            f"{self.folder}: step {step} could not be saved: {full}{error}. {free:,} bytes are free; "
            f"{kept}. Make room (or lower Checkpointing.keep, now {self.settings.keep}), and run the "
            "same command: it resumes."
        )

    def restore(self, state: TrainState, shardings: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Reads the newest complete checkpoint.

        Args:
          state: a state of the shapes to be filled, concrete or abstract.
          shardings: where each array goes; need not be that of the run that saved it.

        Returns:
          the state and the meta that was saved with it.

        Raises:
          CheckpointError: none is complete; the newest is damaged and `fall_back` is off; or it
            belongs to another architecture, with one line for each array that differs.
        """
        step = verified_step(self.folder, self.settings.fall_back)
        target = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            state,
            shardings,
        )
        wanted = _items(target)
        meta = _read_meta(self.folder / str(step))
        require_shapes(meta["shapes"], _shapes(wanted), self.folder / str(step))
        found = _read(self.folder / str(step), wanted)
        key = jax.random.wrap_key_data(found["progress"]["key"], impl=jax.random.key_impl(state.key))
        params = _filled(state.params, found["parameters"], {})
        variables = _filled(state.variables, found["parameters"], found.get("variables", {}))
        self.last_saved = step
        return TrainState(
            step=found["progress"]["step"],
            params=params,
            opt_state=found["optimizer"],
            variables=variables,
            key=jax.device_put(key, shardings.key),
            healthy=jax.device_put(jnp.ones((), jnp.bool_), shardings.healthy),
        ), meta


def load_parameters(folder: str | Path, abstract: nnx.State, step: int | None = None) -> nnx.State:
    """Reads parameters only.

    Args:
      folder: of a training stage, or its `checkpoints/`.
      abstract: nnx.State of ShapeDtypeStructs with shardings, every Param of the objective.
      step: which checkpoint; the best by development metric by default, or else the newest.

    Raises:
      CheckpointError: none there, damaged, or of another architecture.
    """
    path = find(folder, step)
    wanted = {"parameters": _nested(abstract)}
    shapes = {name: _read_meta(path)["shapes"][name] for name in wanted}
    require_shapes(shapes, _shapes(wanted), path)
    return _filled(abstract, _read(path, wanted)["parameters"], {})


def find(folder: str | Path, step: int | None = None) -> Path:
    """The folder of one undamaged checkpoint; arguments as for `load_parameters`."""
    folder = Path(folder).absolute()
    folder = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    best = read_best(folder)
    if step is None:
        step = best[0] if best is not None else verified_step(folder, fall_back=False)
    _require_undamaged(folder / str(step))
    return folder / str(step)


def complete_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints that count, in order."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()]
    return sorted(int(path.name) for path in named if integrity.is_complete(path))


def latest(folder: Path) -> int | None:
    """The newest complete step; says which folders it passes over."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not integrity.is_complete(path):
            _log.warning("ignoring %s: not a finished checkpoint", path)
    return max(complete_steps(folder), default=None)


def read_best(folder: Path) -> tuple[int, float] | None:
    """Step and value in best.json, if that checkpoint is there."""
    path = folder / BEST
    if not path.is_file():
        return None
    best = json.loads(path.read_text(encoding="utf-8"))
    return (best["step"], best["value"]) if best["step"] in complete_steps(folder) else None


def verified_step(folder: Path, fall_back: bool) -> int:
    """The newest complete checkpoint that is undamaged.

    Raises:
      CheckpointError: there is none, or the newest is damaged and `fall_back` is False.
    """
    steps = complete_steps(folder)
    for step in reversed(steps):
        try:
            _require_undamaged(folder / str(step), [s for s in steps if s < step])
            return step
        except CheckpointError as error:
            if not fall_back:
                raise
            _log.warning("%s", error)
            print(f"WARNING: {error}\nFalling back to the one before it.", flush=True)
    raise CheckpointError(f"{folder}: expected a finished checkpoint, found none that is undamaged")


def _require_undamaged(path: Path, earlier: list[int] | None = None) -> None:
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: no such checkpoint; complete are {complete_steps(path.parent)}"
        )
    if problems := integrity.problems(path):
        advice = (
            f"Step {earlier[-1]} is before it: set checkpointing.Checkpointing.fall_back = True to "
            "use that."
            if earlier
            else "There is none before it."
        )
        raise CheckpointError(f"{path} is damaged: " + "; ".join(problems) + f". {advice}")


def require_shapes(
    saved: dict[str, dict[str, str]], wanted: dict[str, dict[str, str]], path: Path
) -> None:
    """Raises CheckpointError, a line an array, unless both hold the same shapes by the same names."""
    lines = []
    for item in sorted(saved.keys() | wanted.keys()):
        have, want = saved.get(item, {}), wanted.get(item, {})
        for name in sorted(have.keys() | want.keys()):
            if have.get(name) != want.get(name):
                lines.append(
                    f"  {item} {name}: expected {want.get(name, 'nothing')}, "
                    f"found {have.get(name, 'nothing')}"
                )
    if lines:
        shown = lines[:20] + ([f"  and {len(lines) - 20} more"] if len(lines) > 20 else [])
        raise CheckpointError(
            f"{path} is a checkpoint of another architecture or optimizer:\n"
            + "\n".join(shown)
            + "\nUse the configuration that it was trained with (operative_config.gin lies beside "
            "checkpoints/), or initialise_from to take over a part."
        )


def _items(state: TrainState) -> dict[str, Any]:
    """What is saved, item by item."""
    frozen, others = nnx.split_state(state.variables, nnx.Param, ...)
    key = state.key
    data = (
        jax.eval_shape(jax.random.key_data, key)
        if isinstance(key, jax.ShapeDtypeStruct)
        else jax.random.key_data(key)
    )
    items = {
        "parameters": _nested(nnx.merge_state(state.params, frozen)),
        "optimizer": state.opt_state,
        "progress": {"step": state.step, "key": data},
    }
    return items | ({"variables": _nested(others)} if jax.tree.leaves(others) else {})


def _nested(state: nnx.State) -> dict[str, Any]:
    """Nested dicts of arrays with string keys."""
    result: dict[str, Any] = {}
    for path, variable in nnx.to_flat_state(state):
        node = result
        for part in path[:-1]:
            node = node.setdefault(str(part), {})
        node[str(path[-1])] = variable.get_value() if isinstance(variable, nnx.Variable) else variable
    return result


def _filled(state: nnx.State, *sources: dict[str, Any]) -> nnx.State:
    """`state` with each variable's value looked up by its path in the sources."""
    filled = []
    for path, variable in nnx.to_flat_state(state):
        filled.append((path, variable.replace(_find(path, sources))))
    return nnx.from_flat_state(filled)


def _find(path: tuple[Any, ...], sources: tuple[dict[str, Any], ...]) -> Any:
    for source in sources:
        node: Any = source
        for part in path:
            node = node.get(str(part)) if isinstance(node, dict) else None
        if node is not None:
            return node
    raise KeyError(path_string(path))


def _shapes(items: dict[str, Any]) -> dict[str, dict[str, str]]:
    """item -> path -> 'float32[3, 4]'."""
    return {
        name: {
            jax.tree_util.keystr(path, simple=True, separator="/"): _describe(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(item)
        }
        for name, item in items.items()
    }


def _describe(leaf: Any) -> str:
    return f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _read_meta(path: Path) -> dict[str, Any]:
    return json.loads((path / "meta" / "metadata").read_text(encoding="utf-8"))


def _read(path: Path, wanted: dict[str, Any]) -> Any:
    args = {name: ocp.args.StandardRestore(item) for name, item in wanted.items()}
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
        return reader.restore(path, args=ocp.args.Composite(**args))


def _is_unfinished(path: Path) -> bool:
    orbax_name = path.name.split(".orbax-checkpoint-tmp")[0]
    return orbax_name.isdigit() and not integrity.is_complete(path)


def _is_full(error: BaseException) -> bool:
    return getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)


def _write_json(path: Path, value: Any) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value) + "\n", encoding="utf-8")
    os.replace(temporary, path)
