"""The folder of a run's checkpoints: what counts, what is damaged, what may be deleted.

    checkpoints/500/                    complete: has integrity.json
    checkpoints/1000/                   half-written if it has not: deleted by the next save
    checkpoints/1000.orbax-checkpoint-tmp/   likewise
    checkpoints/500.damaged/            set aside when training fell back; nobody reads it again

Everything else is not ours: it is named in the log, and left alone.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from t5x_style import integrity
from t5x_style.checkpoint_items import CheckpointError

ITEMS = ("parameters", "optimizer", "variables", "progress", "meta")
_OURS = {
    *ITEMS,
    "_CHECKPOINT_METADATA",
    "commit_success.txt",
    integrity.FILE_NAME,
    integrity.TEMPORARY,
}
_ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"
_log = logging.getLogger(__name__)


def complete_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints that count, in order."""
    return sorted(int(path.name) for path in _folders(folder) if _is_complete(path))


def half_written(folder: Path) -> list[Path]:
    """What a save that was interrupted has left."""
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
    """Makes room for a checkpoint: deletes half-written ones, moves away what is in its place."""
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


def delete_old(folder: Path, keep: int, best: int | None) -> None:
    """Deletes all complete checkpoints but the newest `keep` and the best one."""
    steps = complete_steps(folder)
    for step in steps[:-keep]:
        if step != best:
            # Without its record it no longer counts, should the process die while deleting.
            (folder / str(step) / integrity.FILE_NAME).unlink()
            shutil.rmtree(folder / str(step))


def best(folder: Path) -> tuple[int, float] | None:
    """Step and value of the complete checkpoint with the largest development metric.

    The values lie in the checkpoints: a separate record could disagree with what is there.
    """
    found: tuple[int, float] | None = None
    for step in complete_steps(folder):
        try:
            value = read_meta(folder / str(step)).get("value")
        except CheckpointError as error:  # damaged; whoever wants to use it is told
            _log.warning("%s", error)
            continue
        if value is not None and (found is None or value > found[1]):
            found = (step, float(value))
    return found


def read_meta(path: Path) -> dict[str, Any]:
    """What was saved beside the arrays of one checkpoint."""
    file = path / "meta" / "metadata"
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
    if problems := integrity.problems(folder / str(step), below):
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
    steps = complete_steps(folder)
    damaged: list[Path] = []
    for step in reversed(steps):
        problems = integrity.problems(folder / str(step))
        if not problems:
            for path in damaged:
                set_aside(path, "damaged")
            return step
        message = f"{folder / str(step)} is damaged: {'; '.join(problems)}."
        if not fall_back:
            raise CheckpointError(f"{message} {_advice([s for s in steps if s < step])}")
        damaged.append(folder / str(step))
        # Training goes on from an older state: say so even where nobody reads the log.
        print(f"WARNING: {message}\nFalling back to the checkpoint before it.", flush=True)
        _log.error("%s Falling back to the checkpoint before it.", message)
    raise CheckpointError(
        f"{folder}: expected an undamaged checkpoint, found none among {steps}. Move the folder "
        "away to train from the start."
    )


def _advice(earlier: list[int]) -> str:
    if not earlier:
        return "There is none before it: move the folder away to train from the start."
    return (
        f"To go on from step {earlier[-1]}, the one before it, set "
        "checkpointing.Checkpointing.fall_back = True."
    )


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _is_complete(path: Path) -> bool:
    return _is_step(path.name) and integrity.is_complete(path)


def _is_half_written(path: Path) -> bool:
    name, temporary, _ = path.name.partition(_ORBAX_TEMPORARY)
    if not _is_step(name) or integrity.is_complete(path):
        return False
    # A folder called '3' that holds anything else is somebody's, and not deleted.
    return bool(temporary) or {entry.name for entry in path.iterdir()} <= _OURS


def _is_step(name: str) -> bool:
    return name.isascii() and name.isdigit() and str(int(name)) == name
