"""Checkpoints: asynchronous, complete or ignored, verified before they are used.

Each is a folder `<step>/` of orbax items, stored apart so that parameters can be read alone:

  parameters   every nnx.Param, trainable or frozen, as nested dicts by path
  optimizer    optax's state, likewise
  variables    every other Variable but tables, likewise (absent if there is none)
  progress     step and key
  meta         JSON: what the trainer says, the development metric, the shape of every array

`integrity.json` is written last; without it the folder does not count (see checkpoint_folder).
"""

import dataclasses
import logging
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import jax
import numpy as np
from flax import nnx

from t5x_style.checkpoints import checkpoint_directory, checksums, state_layout
from t5x_style.checkpoints.agreement import agree, together
from t5x_style.checkpoints.checkpoint_directory import find as find
from t5x_style.checkpoints.state_layout import CheckpointError as CheckpointError
from t5x_style.distributed import peer_watch
from t5x_style.interfaces.objective import Table
from t5x_style.step.train_state import TrainState
from t5x_style.storage import epaths, mirror, places
from t5x_style.storage.errors import StorageError
from t5x_style.storage.mirror import Mirror

if TYPE_CHECKING:  # it takes 0.4 s, and the check of a recipe reads and writes no checkpoint
    import orbax.checkpoint as ocp
    from etils import epath

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """Settings.

    Attributes:
      keep: how many of the newest stay; besides them, the best by the development metric stays,
        and what a longer training continues from. A finished training keeps less, see `thin`.
      asynchronous: write in the background while training continues.
      fall_back: if the newest is damaged, set it aside and use the one before it.
    """

    keep: Annotated[int, "operational"]
    asynchronous: Annotated[bool, "operational"] = True
    fall_back: Annotated[bool, "operational"] = False

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"Checkpointing.keep: expected at least 1, found {self.keep}")


class Checkpointer:
    """Writes and reads the checkpoints of one training run.

    With several processes all of them make the same calls; process 0 alone moves and deletes. Where
    the folder is a copy of one on object storage their disks need not be shared: all write there,
    and process 0 copies what they have written.

    Attributes:
      shared: what a longer training continues from, which stays however old it is; None if
        nothing but the best is spared. The trainer sets it.
    """

    def __init__(self, folder: Path, settings: Checkpointing):
        """Args:
        folder: nobody else writes there.
        settings: see `Checkpointing`.
        """
        self.folder, self.settings = Path(folder).absolute(), settings
        agree(0, None)  # process 0 may still have been emptying an outdated folder
        self._url = places.remote(self.folder)
        self._orbax: ocp.AsyncCheckpointer | None = None
        self._finishing: threading.Thread | None = None
        self._error: Exception | None = None
        self.shared: checkpoint_directory.Shared | None = None
        self._best = checkpoint_directory.best(self.folder)
        self.last_saved = self.latest()  # by this run or the one before it
        checkpoint_directory.report_others(self.folder)

    def latest(self) -> int | None:
        """The step of the newest checkpoint that training can resume from."""
        return max(checkpoint_directory.resumable_steps(self.folder), default=None)

    def best(self) -> tuple[int, float] | None:
        """Step and value of the best development metric so far."""
        return self._best

    def bytes_of_run(self, state: TrainState) -> int:
        """About as many bytes as the run's folder holds at most.

        The checkpoints that are kept, the best, the one that a longer training continues from, and
        one that is being written.
        """
        count = self.settings.keep + 2 + (self.shared is not None)
        return count * _bytes_of(state_layout.items(state))

    def save(self, state: TrainState, meta: dict[str, Any], value: float | None = None) -> None:
        """Starts writing; returns once the arrays may be donated.

        Args:
          state: a healthy one.
          meta: anything that JSON holds.
          value: of the development metric, larger is better.

        Raises:
          CheckpointError: the disk is full, or this save or the one before it has failed.
        """
        self.wait()
        step, items = int(state.step), state_layout.items(state)
        if step in checkpoint_directory.complete_steps(self.folder):
            return
        needed = _bytes_of(items)
        together(lambda: self._prepare(step, needed))
        meta = meta | {
            "value": value,
            "shapes": state_layout.shapes(items),
            "key_impl": str(jax.random.key_impl(state.key)),
        }
        import orbax.checkpoint as ocp

        alone = jax.process_count() == 1
        try:
            self._writer().save(
                self.folder / str(step) if alone or not self._url else self._there(step),
                args=ocp.args.Composite(
                    **{name: ocp.args.PyTreeSave(item) for name, item in items.items()},
                    meta=ocp.args.JsonSave(meta),
                ),
            )
        except Exception as error:
            raise self._failure(step, needed, error) from error
        if value is not None and (self._best is None or value > self._best[1]):
            self._best = (step, value)
        self.last_saved = step
        self._finishing = threading.Thread(target=self._finish, args=(step, needed))
        self._finishing.start()
        peer_watch.let_finish(self._finishing)
        if not self.settings.asynchronous:
            self.wait()

    def _push(self, place: Mirror) -> None:
        """At once, so that a preemption loses no more than the steps after it.

        What else of the run a resumed one reads, such as a plan of its batches, is there before.
        """
        try:
            mirror.push_around(place.folder)
            place.push()
        except StorageError as error:  # the push of the folder is tried again later
            _log.warning("%s: not there yet: %s", place.url, error)

    def _there(self, step: int) -> "epath.Path":
        """Where several processes write together, none of which need see the disk of another."""
        return epaths.of(f"{self._url}/{step}")

    def _writer(self) -> "ocp.AsyncCheckpointer":
        import orbax.checkpoint as ocp

        if self._orbax is None:
            self._orbax = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
        return self._orbax

    def _prepare(self, step: int, needed: int) -> int:
        checkpoint_directory.clear(self.folder, step)
        if self._url:  # what a process that was killed has left
            mirror.clear(f"{self._url}/{step}", self.folder / str(step))
        if needed > (free := shutil.disk_usage(self.folder).free):
            raise self._failure(
                step, needed, OSError(f"not started, since only {free:,} bytes are free")
            )
        return step

    def _finish(self, step: int, needed: int) -> None:
        """In the background: waits for orbax, then makes the checkpoint count."""
        try:
            self._writer().wait_until_finished()  # after all processes have written their part
            if jax.process_index() == 0:
                place = Mirror(self.folder / str(step), f"{self._url}/{step}")
                if self._url and jax.process_count() > 1:
                    place.pull()
                checksums.write(place.folder)
                if self._url:
                    self._push(place)
                full, bare = self._spared()
                checkpoint_directory.delete_old(self.folder, self.settings.keep, full | bare)
        except Exception as error:
            self._error = self._failure(step, needed, error)
            if jax.process_index() == 0:  # what was written is of no use, and may fill the disk
                for path in checkpoint_directory.half_written(self.folder):
                    shutil.rmtree(path, ignore_errors=True)

    def _spared(self) -> tuple[set[int], set[int]]:
        """Steps that stay whatever their age, and of those that stay for their parameters alone."""
        full: set[int] = set()
        found = [self._best]
        if self.shared is not None:
            full.add(self.shared.step)
            found.append(checkpoint_directory.best(self.folder, self.shared.includes))
        return full, {best[0] for best in found if best is not None}

    def thin(self) -> None:
        """Deletes what a training that has finished does not need, once the last save is complete.

        The last checkpoint stays, and the one that a longer training continues from; the best one
        and the best one that a longer training comes to stay without their optimizer.

        Raises:
          CheckpointError: the last save has failed, or a checkpoint's record is damaged.
        """
        self.wait()

        def thin() -> int:
            full, bare = self._spared()
            last = self.latest()
            checkpoint_directory.thin(self.folder, full if last is None else full | {last}, bare)
            return 0

        together(thin)

    def wait(self) -> None:
        """Returns once the last save is complete.

        Raises:
          CheckpointError: it failed; the checkpoint before it is intact.
        """
        if self._finishing is None:
            return
        self._finishing.join()
        self._finishing = None
        error, self._error = self._error, None
        try:
            agree(0, error)
        except CheckpointError:  # the best and the last are among those that are there
            self._best, self.last_saved = checkpoint_directory.best(self.folder), self.latest()
            raise

    def finish_alone(self) -> None:
        """Lets the last save complete on the way out of an error that may be this process's own."""
        if self._finishing is not None:
            self._finishing.join()

    def close(self) -> None:
        """Waits and frees the writer."""
        try:
            self.wait()
        finally:
            if self._orbax is not None:
                self._orbax.close()
                self._orbax = None

    def _failure(self, step: int, needed: int, error: Exception) -> CheckpointError:
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        last = self.latest()
        kept = "There is none before it" if last is None else f"Step {last} is intact"
        return CheckpointError(
            f"{self.folder}: step {step} could not be saved: {error}\n"
            f"It needs about {needed:,} bytes; {shutil.disk_usage(existing).free:,} bytes are free "
            f"now. {kept}. Free disk space (or lower Checkpointing.keep, now "
            f"{self.settings.keep}), and run the same command: it resumes."
        )

    def restore(
        self, state: TrainState, shardings: TrainState
    ) -> tuple[TrainState, dict[str, Any]]:
        """Reads the newest complete checkpoint.

        Args:
          state: a state of the shapes to be filled, concrete or abstract.
          shardings: where each array goes; neither they nor which parameters are frozen need be
            those of the run that saved it.

        Returns:
          the state and the meta that was saved with it.

        Raises:
          CheckpointError: none is complete; the newest is damaged and `fall_back` is off; or it
            belongs to another architecture, with one line for each array that differs.
        """
        step = together(
            lambda: checkpoint_directory.newest_undamaged(self.folder, self.settings.fall_back)
        )
        path = self.folder / str(step)
        target = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            state,
            shardings,
        )
        meta = checkpoint_directory.read_meta(path)
        wanted = state_layout.without_fresh_moments(state_layout.items(target), meta["shapes"])
        shapes = state_layout.shapes(wanted)
        saved = state_layout.without_frozen_moments(meta["shapes"], shapes)
        state_layout.require_shapes(saved, shapes, path)
        found = _read(path, wanted)
        self.last_saved, self._best = step, checkpoint_directory.best(self.folder)
        return state_layout.state_like(target, found, shardings, meta["key_impl"]), meta


def load(
    folder: str | Path, params: nnx.State, others: nnx.State, step: int | None = None
) -> tuple[nnx.State, nnx.State]:
    """Reads an objective's parameters and other variables, and nothing of the optimizer.

    Args:
      folder: of a training stage, or its `checkpoints/`.
      params: nnx.State of ShapeDtypeStructs with shardings, every Param of the objective.
      others: likewise, every other Variable. The checkpoint may hold more: what is not trained is
        not always needed, an index least of all where one embeds. Tables are left unchanged.
      step: which checkpoint; the best by development metric by default, or else the newest.

    Raises:
      CheckpointError: none there, damaged, or of another architecture.
    """
    kept = nnx.split_state(others, Table, ...)[1]
    names = ("parameters", "variables") if jax.tree.leaves(kept) else ("parameters",)
    path = find(folder, step, (*names, "meta"))
    wanted = {
        name: state_layout.nested(state) for name, state in zip(names, (params, kept), strict=False)
    }
    shapes = checkpoint_directory.read_meta(path)["shapes"]
    wanted_shapes = state_layout.shapes(wanted)
    saved = {"parameters": shapes["parameters"]}
    if "variables" in wanted_shapes:
        there = shapes.get("variables", {})
        saved["variables"] = {
            name: there[name] for name in wanted_shapes["variables"] if name in there
        }
    state_layout.require_shapes(saved, wanted_shapes, path)
    found = _read(path, wanted)
    return (
        state_layout.filled(params, found["parameters"]),
        state_layout.filled(others, found.get("variables", {})),
    )


def newest(folder: str | Path) -> int | None:
    """The step of the newest complete checkpoint of a training stage; None before the first."""
    steps = checkpoint_directory.complete_steps(Path(folder) / "checkpoints")
    return max(steps, default=None)


def read_parameters(folder: str | Path, step: int | None = None) -> dict[str, np.ndarray]:
    """All parameters as they were saved: path -> array in this host's memory.

    Arguments and errors as for `load`.
    """
    import orbax.checkpoint as ocp

    path = find(folder, step, ("parameters", "meta"))
    handler = ocp.PyTreeCheckpointHandler()
    saved = handler.metadata(path / "parameters").tree
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), saved)
    with ocp.Checkpointer(handler) as reader:
        args = ocp.args.PyTreeRestore(restore_args=as_numpy)
        tree = reader.restore(path / "parameters", args=args)
    return {
        jax.tree_util.keystr(where, simple=True, separator="/"): np.asarray(leaf)
        for where, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _read(path: Path, wanted: dict[str, Any]) -> Any:
    """The wanted arrays of each item, in the wanted shardings; others are left on the disk."""
    import orbax.checkpoint as ocp

    args = {
        name: ocp.args.PyTreeRestore(
            item=item,
            restore_args=ocp.checkpoint_utils.construct_restore_args(item),
            partial_restore=True,
        )
        for name, item in wanted.items()
    }
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
        return reader.restore(path, args=ocp.args.Composite(**args))


def _bytes_of(items: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(items))
