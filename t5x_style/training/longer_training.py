"""Continue a finished training as one of more steps, in another folder.

    parent (1,000 steps, finished)   --step 1,000-->   folder (3,000 steps)

The longer training copies what a resumed run reads, and resumes: it ends with the same bits as if
all its steps had run without interruption. `how` decides from which step this is possible, which
depends on the learning rate: one that decays over all steps is another from the first step on.
"""

import ast
import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5x_style.checkpoints import checkpoint_directory, checksums
from t5x_style.checkpoints.checkpoint_directory import OPTIMIZER, Shared
from t5x_style.checkpoints.state_layout import CheckpointError
from t5x_style.interfaces.batch_source import ModelDependentSource, SourceError
from t5x_style.step.optimizers import AdamW
from t5x_style.training import metric_writer
from t5x_style.workflow.store import STAGE_FILE

TENSORBOARD = "tensorboard"


def how(
    parent: Path, optimizer: AdamW, steps: int, source: ModelDependentSource | None = None
) -> tuple[int | None, str]:
    """Decide from which step of a finished training a longer one may continue.

    Args:
      parent: folder of the finished training; its `stage.json` holds "parameters", which differ
        from those of the longer training in `cadence.steps`, `optimizer.total_steps` and
        `optimizer.decay_steps` alone.
      optimizer: of the longer training.
      steps: `cadence.steps` of the longer training.
      source: of batches, if it depends on the model.

    Returns:
      the step, or None where training has to start from step 0; and a sentence that says so.
    """
    ended, theirs = _settings(parent, optimizer)
    start = f"training starts from step 0, not from {parent}"
    if source is not None and source.not_continued:
        return None, f"{start}: {source.not_continued}"
    if steps < ended:
        return None, f"{start}: that has {ended:,} steps, more than the {steps:,} of this one"
    branch, latest = theirs.branch_step(), optimizer.branch_step()
    if branch is None or latest is None:
        if theirs == optimizer:  # the rate depends on total_steps, which is the same
            return _from(parent, ended)
        decay = theirs.decay if branch is None else optimizer.decay
        return None, (
            f"{start}: the learning rate of a {decay!r} decay depends on the total number of "
            "steps, from the first one on. A training with optimizers.AdamW.decay = 'constant' or "
            "'warmup_stable_decay' can be continued"
        )
    branch = min(branch, ended)
    if branch < 1:
        return None, f"{start}: that has no step before its decay, from which it could be continued"
    if latest < branch:
        max_decay_steps = optimizer.total_steps - branch
        return None, (
            f"{start}: that can be continued from step {branch:,}, but the decay of this one "
            f"begins at step {latest:,}. With optimizers.AdamW.decay_steps of at most "
            f"{max_decay_steps:,} it can be continued"
        )
    return _from(parent, branch)


def _from(parent: Path, step: int) -> tuple[int | None, str]:
    """Result of `how` for this step, whose optimizer may have been deleted since."""
    if OPTIMIZER in checksums.dropped(parent / "checkpoints" / str(step)):
        return None, (
            f"training starts from step 0: {parent} could be continued from step {step:,}, but "
            "the optimizer of that checkpoint has been deleted to save disk space"
        )
    return step, f"continues {parent} from step {step:,}"


def _settings(parent: Path, optimizer: AdamW) -> tuple[int, AdamW]:
    """The steps of the finished training and its optimizer: `optimizer` of another length."""
    try:
        record = json.loads((parent / STAGE_FILE).read_text(encoding="utf-8"))
        parameters: Mapping[str, str] = record["parameters"]
        values: dict[str, Any] = {
            name: ast.literal_eval(parameters[f"optimizer.{name}"])
            for name in ("total_steps", "decay", "decay_steps")
            if f"optimizer.{name}" in parameters
        }
        # What the record leaves out has its default value.
        values = {"decay": AdamW.decay, "decay_steps": AdamW.decay_steps} | values
        return int(parameters["cadence.steps"]), dataclasses.replace(optimizer, **values)
    except (OSError, ValueError, SyntaxError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{parent / STAGE_FILE}: expected the record of a finished training with its "
            f"parameters, found {error!r}. {_advice(parent)}"
        ) from error


def seed(
    parent: Path,
    folder: Path,
    step: int,
    evaluate_every: int = 1,
    source: ModelDependentSource | None = None,
) -> list[str]:
    """Copy what a training that resumes at `step` reads; called again after a crash, it continues.

    The checkpoint of `step` comes last and counts only when it is whole. Files are copied, not
    linked: the parent may be deleted afterwards.

    Args:
      parent: folder of the finished training.
      folder: of the longer training, without a checkpoint to resume from.
      step: that the longer training continues from.
      evaluate_every: steps between two evaluations, where a development metric is measured. A
        value that the parent measured only because it ended there does not count.
      source: of batches, if it depends on the model; says which of its files are copied.

    Returns:
      what was copied, as paths relative to `folder`.

    Raises:
      CheckpointError: the checkpoint, the best one or a file of the source is absent or damaged, or
        the disk has no space for the copies; with what to do.
    """
    finished, target = parent / "checkpoints", folder / "checkpoints"
    shared = Shared(step, evaluate_every)
    _require(finished / str(step), parent, resumed=True)
    for other in filter(shared.includes, checkpoint_directory.complete_steps(finished)):
        if other != step:  # a damaged one could be the best
            _require(finished / str(other), parent)
    best = checkpoint_directory.best(finished, shared.includes)
    files = [] if source is None else _resume_files(parent, step, source)
    try:
        checkpoint_directory.clear(target, step)
        copied = [*_copy_files(parent, folder, files), *_copy_metrics(parent, folder, shared)]
        if best is not None and best[0] != step:
            name = str(best[0])
            if not checksums.is_complete(target / name):
                checksums.copy(finished / name, target / name, without=(OPTIMIZER,))
            copied.append(f"checkpoints/{name}")
        replaced = {} if shared.evaluates(step) else _without_value(finished / str(step))
        checksums.copy(finished / str(step), target / str(step), replaced=replaced)
    except OSError as error:
        for path in checkpoint_directory.half_written(target):  # it may fill the disk
            shutil.rmtree(path, ignore_errors=True)
        raise CheckpointError(
            f"{folder}: step {step} of {parent} could not be copied: {error}. Free space, and run "
            "the same command: it starts copying again."
        ) from error
    return [*copied, f"checkpoints/{step}"]


def _require(checkpoint: Path, parent: Path, resumed: bool = False) -> None:
    """Raises CheckpointError unless the checkpoint is complete and undamaged."""
    if not checksums.is_complete(checkpoint):
        problem = "expected a complete checkpoint, found none"
    elif resumed and OPTIMIZER in checksums.dropped(checkpoint):
        problem = "expected a checkpoint with its optimizer, which has been deleted"
    elif problems := checksums.problems(checkpoint):
        problem = f"is damaged: {'; '.join(problems)}"
    else:
        return
    raise CheckpointError(f"{checkpoint}: {problem}. {_advice(parent)}")


def _advice(parent: Path) -> str:
    return (
        f"Restore {parent} from a copy to continue from it, or move it away to train from step 0."
    )


def _resume_files(parent: Path, step: int, source: ModelDependentSource) -> list[Path]:
    try:
        return source.resume_files(parent, step)
    except SourceError as error:
        raise CheckpointError(f"{error} {_advice(parent)}") from error


def _copy_files(parent: Path, folder: Path, files: list[Path]) -> list[str]:
    """Copies these files and the curves that TensorBoard shows."""
    curves = [path for path in sorted((parent / TENSORBOARD).rglob("*")) if path.is_file()]
    names = [str(path.relative_to(parent)) for path in (*files, *curves)]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        temporary = (folder / name).with_name(f"{Path(name).name}.part")
        shutil.copyfile(parent / name, temporary)
        _replace(temporary, folder / name)
    return names


def _copy_metrics(parent: Path, folder: Path, shared: Shared) -> list[str]:
    """Copies the lines of steps that both trainings have."""
    if not (parent / metric_writer.JSONL).exists():
        return []
    lines = [
        line
        for line in metric_writer.read_lines(parent / metric_writer.JSONL)
        if line["step"] < shared.step
        or (line["step"] == shared.step and (shared.evaluates(shared.step) or not _is_eval(line)))
    ]
    temporary = folder / f"{metric_writer.JSONL}.part"
    temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    _replace(temporary, folder / metric_writer.JSONL)
    return [metric_writer.JSONL]


def _is_eval(line: Mapping[str, float]) -> bool:
    prefixes = (metric_writer.EVALUATIONS, metric_writer.EMBEDDINGS)
    return any(name.startswith(prefixes) for name in line)


def _replace(temporary: Path, path: Path) -> None:
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _without_value(checkpoint: Path) -> dict[str, bytes]:
    """The metadata of a checkpoint without the development metric, if it has that."""
    meta = checkpoint_directory.read_meta(checkpoint)
    if meta.get("value") is None:
        return {}
    return {checkpoint_directory.META_FILE: json.dumps(meta | {"value": None}).encode()}
