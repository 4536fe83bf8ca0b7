"""The folder of a run's checkpoints: complete and damaged ones, and which may be deleted.

    checkpoints/500/                    complete: has integrity.json
    checkpoints/1000/                   half-written if it has not: deleted by the next save
    checkpoints/1000.orbax-checkpoint-tmp/   likewise
    checkpoints/500.damaged/            set aside when training fell back; nobody reads it again

A complete checkpoint may have been stripped of its optimizer (`drop_optimizer`): it can be loaded
and evaluated like any other, but training cannot resume from it.

Everything else is not ours: it is named in the log, and left alone.
"""

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from t5x_style.checkpoints import checksums
from t5x_style.checkpoints.state_layout import CheckpointError

OPTIMIZER = "optimizer"
ITEMS = ("parameters", OPTIMIZER, "variables", "progress", "meta")
META_FILE = "meta/metadata"  # in a checkpoint's folder
_OURS = {
    *ITEMS,
    "_CHECKPOINT_METADATA",
    "commit_success.txt",
    checksums.FILE_NAME,
    checksums.TEMPORARY,
}
_ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Shared:
    """Steps that a training shares with the same training of more steps.

    Attributes:
      step: the last step whose state does not depend on the length.
      evaluate_every: steps between two evaluations. Training evaluates at its end, too, whatever
        the step; one of more steps would not.
    """

    step: int
    evaluate_every: int

    def evaluates(self, step: int) -> bool:
        """Whether the longer training, too, evaluates at this step."""
        return step % self.evaluate_every == 0

    def includes(self, step: int) -> bool:
        """Whether the longer training, too, comes to the checkpoint and the value of this step."""
        return step <= self.step and self.evaluates(step)


def complete_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints that count, in order."""
    return sorted(int(path.name) for path in _folders(folder) if _is_complete(path))


def resumable_steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints that have their optimizer, in order."""
    return [
        step
        for step in complete_steps(folder)
        if OPTIMIZER not in checksums.dropped(folder / str(step))
    ]


def half_written(folder: Path) -> list[Path]:
    """Find the remains of an interrupted save."""
    return [path for path in _folders(folder) if _is_half_written(path)]


def report_others(folder: Path) -> list[str]:
    """Logs everything that does not count as a checkpoint, and why; returns the lines."""
    lines = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and _is_half_written(path):
            lines.append(f"ignoring {path}: a checkpoint that was never finished")
        elif not (path.is_dir() and _is_complete(path)):
            lines.append(f"ignoring {path}: not a checkpoint of this run")
    for line in lines:
        _log.warning("%s", line)
    return lines


def clear(folder: Path, step: int) -> None:
    """Deletes half-written checkpoints and moves away what is in the place of a new one."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in half_written(folder):
        _log.warning("deleting %s: a checkpoint that was never finished", path)
        shutil.rmtree(path)
    place = folder / str(step)
    if place.exists():  # a stray folder or file; a complete checkpoint is not saved again
        set_aside(place, "stray")


def set_aside(path: Path, suffix: str) -> Path:
    """Renames a folder to one that nobody takes for a checkpoint; nothing is lost."""
    free = (path.with_name(f"{path.name}.{suffix}{n or ''}") for n in range(10_000))
    target = next(candidate for candidate in free if not candidate.exists())
    path.rename(target)
    _log.warning("moved %s to %s", path, target.name)
    return target


def delete_old(folder: Path, keep: int, spared: Collection[int]) -> None:
    """Deletes all complete checkpoints but the newest `keep` and those of the steps in `spared`."""
    for step in complete_steps(folder)[:-keep]:
        if step not in spared:
            _delete(folder / str(step))


def thin(folder: Path, full: Collection[int], bare: Collection[int] = ()) -> None:
    """Deletes what a finished training does not need; called again after a crash, it continues.

    Args:
      folder: of the checkpoints.
      full: steps whose checkpoints stay unchanged.
      bare: steps whose checkpoints stay without their optimizer, unless they are in `full`.
        All other checkpoints are deleted, half-written ones included.

    Raises:
      CheckpointError: the record of a checkpoint in `bare` is damaged.
    """
    for path in half_written(folder):
        shutil.rmtree(path)
    for step in complete_steps(folder):
        if step in full:
            continue
        if step in bare:
            drop_optimizer(folder / str(step))
        else:
            _delete(folder / str(step))


def drop_optimizer(path: Path) -> None:
    """Deletes the optimizer of one complete checkpoint, which is complete at each instant.

    Nobody can resume training from it afterwards. Its fingerprint stays the same.

    Args:
      path: folder of the checkpoint.

    Raises:
      CheckpointError: it is not complete, or its record is damaged.
    """
    try:
        checksums.drop(path, OPTIMIZER)
    except (ValueError, TypeError, KeyError, FileNotFoundError) as error:
        raise CheckpointError(
            f"{path}: expected a complete checkpoint, found {error!r} in {checksums.FILE_NAME}. "
            "Move the folder away to continue without this checkpoint."
        ) from error


def drop_optimizers(folder: Path) -> list[str]:
    """Calls `drop_optimizer` for all checkpoints of a finished training.

    Args:
      folder: of the training stage; it need not be one.

    Returns:
      what is gone now, as paths relative to `folder`.
    """
    gone = []
    for step in complete_steps(folder / "checkpoints"):
        item = folder / "checkpoints" / str(step) / OPTIMIZER
        if item.exists():
            drop_optimizer(item.parent)
            gone.append(item.relative_to(folder).as_posix())
    return gone


def _delete(path: Path) -> None:
    # Without its record it no longer counts, should the process die while deleting.
    (path / checksums.FILE_NAME).unlink()
    shutil.rmtree(path)


def best(
    folder: Path, counts: Callable[[int], bool] = lambda step: True
) -> tuple[int, float] | None:
    """Step and value of the complete checkpoint with the largest development metric.

    The values are in the checkpoints: a separate record could disagree with what is there.

    Args:
      folder: of the checkpoints.
      counts: whether the checkpoint of a step is considered.
    """
    found: tuple[int, float] | None = None
    for step in filter(counts, complete_steps(folder)):
        try:
            value = read_meta(folder / str(step)).get("value")
        except CheckpointError as error:  # damaged; an error is raised where it is used
            _log.warning("%s", error)
            continue
        if value is not None and (found is None or value > found[1]):
            found = (step, float(value))
    return found


def read_meta(path: Path) -> dict[str, Any]:
    """Reads the metadata that was saved with the arrays of one checkpoint."""
    file = path / META_FILE
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: expected JSON, found {error!r}") from error
    if not isinstance(meta, dict):
        raise CheckpointError(f"{file}: expected a JSON object, found {type(meta).__name__}")
    return meta


def find(folder: str | Path, step: int | None, below: tuple[str, ...] = ("",)) -> Path:
    """The folder of one undamaged checkpoint.

    Args:
      folder: of a training stage, or its `checkpoints/`.
      step: which; the best by development metric by default, or else the newest.
      below: the items that will be read.

    Raises:
      CheckpointError: it is not there, or is damaged.
    """
    folder = Path(folder).absolute()
    folder = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    steps = complete_steps(folder)
    if not steps:
        raise CheckpointError(
            f"{folder}: expected a finished checkpoint, found none. Train first, or "
            "name another folder."
        )
    if step is None:
        found = best(folder)
        step = steps[-1] if found is None else found[0]
    if step not in steps:
        raise CheckpointError(f"{folder}: no checkpoint of step {step}; complete are {steps}")
    if problems := checksums.problems(folder / str(step), below):
        others = [s for s in steps if s != step]
        raise CheckpointError(
            f"{folder / str(step)} is damaged: {'; '.join(problems)}. "
            + (f"Name another step: {others}." if others else "There is no other.")
        )
    return folder / str(step)


def newest_undamaged(folder: Path, fall_back: bool) -> int:
    """The step to resume from; damaged checkpoints newer than it are set aside.

    Raises:
      CheckpointError: there is none, or the newest is damaged and `fall_back` is False.
    """
    steps = resumable_steps(folder)
    damaged: list[Path] = []
    for step in reversed(steps):
        problems = checksums.problems(folder / str(step))
        if not problems:
            for path in damaged:
                set_aside(path, "damaged")
            return step
        message = f"{folder / str(step)} is damaged: {'; '.join(problems)}."
        if not fall_back:
            raise CheckpointError(f"{message} {_advice([s for s in steps if s < step])}")
        damaged.append(folder / str(step))
        # Training continues from an older state: print it, since nobody may read the log.
        print(f"WARNING: {message}\nFalling back to the checkpoint before it.", flush=True)
        _log.error("%s Falling back to the checkpoint before it.", message)
    raise CheckpointError(
        f"{folder}: expected an undamaged checkpoint with its optimizer, found none among "
        f"{complete_steps(folder)}. Move the folder away to train from the start."
    )


def _advice(earlier: list[int]) -> str:
    if not earlier:
        return "There is none before it: move the folder away to train from the start."
    return (
        f"To continue from step {earlier[-1]}, the one before it, set "
        "checkpointing.Checkpointing.fall_back = True."
    )


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _is_complete(path: Path) -> bool:
    return _is_step(path.name) and checksums.is_complete(path)


def _is_half_written(path: Path) -> bool:
    name, temporary, _ = path.name.partition(_ORBAX_TEMPORARY)
    if not _is_step(name) or checksums.is_complete(path):
        return False
    # A folder called '3' that holds anything else is somebody's, and not deleted.
    return bool(temporary) or {entry.name for entry in path.iterdir()} <= _OURS


def _is_step(name: str) -> bool:
    return name.isascii() and name.isdigit() and str(int(name)) == name
